"""Doors to the outside: sources of readings and records, the lake, the databases."""
