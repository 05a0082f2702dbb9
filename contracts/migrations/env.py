"""Alembic's entry point: runs the migrations on the connection in `config.attributes`, in the caller's transaction."""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"], version_table_schema="eai")
with context.begin_transaction():
    context.run_migrations()
