"""A simulation of the protocol: the product's own code, and a seed in place of the world."""
