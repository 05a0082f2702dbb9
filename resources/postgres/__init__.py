"""The door to Postgres, schema `eai`.

Belongs here: the connection, bulk reads and writes in Arrow, and one module for each thing that is stored; their SQL is
in `sql/`.
Does not: the schema itself (`contracts.migrations`), and rules (`accounting`).
"""
