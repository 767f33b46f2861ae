"""Stand-ins in memory, with switches for what real servers do wrong."""
