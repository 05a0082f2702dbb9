"""The door to the Parquet lake, in a folder or in a bucket.

Belongs here: where each table and hour lies, how a file is encoded, and writing it whole or not at all.
Does not: the tables' schemas (`contracts.lake`).
"""
