"""How a number survives a dispute (A34, A35).

Belongs here: the hash chain with its anchor, and the way of an amount back to raw readings.
Does not: reading or writing the log (`resources.postgres`).
"""
