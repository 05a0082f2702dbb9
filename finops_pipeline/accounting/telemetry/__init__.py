"""What a DCGM exporter said of a device, made into windows (A7-A13, A20, A21).

Belongs here: readings and which of them count, summaries of the hours around, the value of each window and the rung it
came from, energy by the counter, and when a device is visible.
Does not: who holds a device (`holding`), and what a holder used (`usage`).
"""
