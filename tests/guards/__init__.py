"""The guards of the protocol, and a run that removes each of them."""
