"""The sink contract, on every table that Holdfast has."""
