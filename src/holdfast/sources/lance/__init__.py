"""Versions of Lance datasets as an input that workers read themselves."""
