"""The ledger: create-once records in the user's store that hold all state of a run."""
