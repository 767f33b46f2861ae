"""Values without IO, shared by the rest of Holdfast."""
