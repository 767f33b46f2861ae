"""The tests of Holdfast: a folder for each kind, a marker for each engine or server."""
