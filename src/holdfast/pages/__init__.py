"""Pages: what a person opens in a browser to see how a run went."""
