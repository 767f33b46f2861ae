"""The guards of the protocol, and a run that takes each away."""
