"""Objects in stores: the only way in which Holdfast reads and writes storage."""
