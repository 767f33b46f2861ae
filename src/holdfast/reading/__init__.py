"""How files are read: by scans, and by changes that rewrite a table's files."""
