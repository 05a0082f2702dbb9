"""What each holder, or nobody, had and used in an hour (A4, A15, A18-A21, A24).

Belongs here: pieces of windows with their energy, shares of a board, hourly rows of workloads, idle lines, the fleet
identity, the published windows, and disks.
Does not: prices and tenants' parts (`money`).
"""
