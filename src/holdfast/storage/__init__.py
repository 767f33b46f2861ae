"""Objects in stores: all storage that Holdfast reads and writes goes through here."""
