"""The only place that imports pyspark: sessions, jobs, version differences."""
