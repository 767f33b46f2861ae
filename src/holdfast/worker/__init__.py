"""What runs on an executor: transform, write, report."""
