"""The Postgres schema `eai`, as Alembic migrations that run on a connection the caller opened.

Belongs here: roles, tables, policies, triggers, comments. Does not: connecting, retrying, data (resources/postgres).
A released version is never edited; a change is a new file in `versions/` and a new `HEAD`.
"""

from __future__ import annotations

from importlib.resources import files

from sqlalchemy import Connection, text

HEAD = "0001"

_MIGRATION_LOCK = 6_387_001


def revision(connection: Connection) -> str | None:
    """The version that schema `eai` is at; None where it is not installed."""
    if connection.scalar(text("SELECT to_regclass('eai.alembic_version')")) is None:
        return None
    found = connection.scalar(text("SELECT version_num FROM eai.alembic_version"))
    return None if found is None else str(found)


def upgrade(connection: Connection) -> None:
    """Bring schema `eai` to HEAD inside the transaction of `connection`; a second caller waits, then does nothing.

    The user needs CREATE on the database, and either CREATEROLE or a database where `roles.sql` was run before.
    """
    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
    if revision(connection) == HEAD:
        return
    from alembic import command
    from alembic.config import Config

    connection.execute(text(files(__package__).joinpath("roles.sql").read_text(encoding="utf-8")))
    connection.execute(text("CREATE SCHEMA IF NOT EXISTS eai AUTHORIZATION eai_owner"))
    connection.execute(text("SET LOCAL ROLE eai_owner"))
    config = Config()
    config.set_main_option("script_location", "finops_pipeline.contracts:migrations")
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    connection.execute(text("RESET ROLE"))
