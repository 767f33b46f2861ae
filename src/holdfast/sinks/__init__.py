"""Table formats: how output becomes part of a table in one atomic step."""
