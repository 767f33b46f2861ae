"""Progress: what a person sees of a run while it is at work. Reads the ledger, writes nothing."""
