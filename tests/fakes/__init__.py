"""In-memory stand-ins, with switches for the faults of real servers."""
