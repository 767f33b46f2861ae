"""Parquet files as an input that workers read themselves."""
