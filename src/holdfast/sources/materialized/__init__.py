"""A DataFrame that is written once, as Parquet under the run, and read as a scan from then on."""
