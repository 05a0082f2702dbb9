"""Who holds a device, at every moment of an hour (A3-A6, A14, A17, A18).

Belongs here: running intervals from lifecycle events, which arrival of an event counts, which deployment a pod is of, and
A17's order of holders.
Does not: what was used meanwhile (`usage`), and what it costs (`money`).
"""
