"""Ledgers as earlier versions wrote them. Every later version must read them and go on."""
