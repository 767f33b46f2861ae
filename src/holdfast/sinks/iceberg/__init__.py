"""Iceberg, format v2, through PyIceberg. Imported only where an Iceberg table is used."""
