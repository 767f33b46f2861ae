"""Fuzz: damaged, mixed and forged ledgers, read by every command and resumed by a start."""
