"""Where a run's truth lives: create-once records in the user's store."""
