"""The Lance sink: fragments staged by workers, one version made of them, once."""
