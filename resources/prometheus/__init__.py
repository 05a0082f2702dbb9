"""The door to a Prometheus, or to what speaks its language.

Belongs here: pulling raw samples completely or failing with a clear error.
Does not: what the samples mean (`accounting.telemetry`).
"""
