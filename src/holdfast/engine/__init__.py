"""The driver's steps. Clock, nonces, sleep, store, table and Spark are passed in."""
