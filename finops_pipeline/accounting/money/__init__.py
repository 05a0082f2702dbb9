"""What usage costs whom, and how it is booked and stated (A22-A33).

Belongs here: policies, token weights, tenants' parts, the ledger's differences, statements, closing, credits, quotas and
fair share.
Does not: how usage was found (`usage`), and where results are stored (`resources`).
"""
