"""The door to ClickHouse, where a copy of the ledger is kept for analytics.

Belongs here: the connection, copying in order of arrival, and comparing the copy with the ledger.
Does not: the replica's tables and views (`contracts.clickhouse`).
"""
