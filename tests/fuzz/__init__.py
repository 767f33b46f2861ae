"""Fuzz: damaged, mixed and forged ledgers, read by every command and gone on with by a start."""
