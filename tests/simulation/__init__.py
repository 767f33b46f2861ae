"""A simulation of the protocol: the product's own code in a world that is drawn from a seed."""
