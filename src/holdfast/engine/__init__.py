"""The driver's steps, a file each. Clock, nonces, sleep, store, table and Spark are passed in."""
