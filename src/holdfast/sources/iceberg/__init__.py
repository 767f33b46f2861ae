"""Snapshots of Iceberg tables as an input that workers read themselves."""
