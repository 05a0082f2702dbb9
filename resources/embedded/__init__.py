"""The embedded Postgres, for an installation without one of its own.

Belongs here: a private server in a folder: made, started, shared by several processes, and stopped.
Does not: anything of schema `eai` (`resources.postgres`).
"""
