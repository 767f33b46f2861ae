"""Values without IO: what the rest of Holdfast speaks about."""
