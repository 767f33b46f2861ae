"""Changes of the product, each tried in a fork of one process that has collected the tests."""
