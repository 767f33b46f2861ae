"""What `holdfast doctor` checks: a module for each part of a set-up."""
