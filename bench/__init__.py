"""Benchmarks: ratios against bare Spark, both sides measured in one run."""
