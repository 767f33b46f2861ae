"""The ledger: create-once records in the user's store, the source of truth for a run."""
