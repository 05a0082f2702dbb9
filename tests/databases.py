"""Fresh databases for tests, quickly: one private Postgres, and copies of a migrated template in it."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql

from finops_pipeline.resources.embedded import server as embedded
from finops_pipeline.resources.postgres.client import Database


class Databases:
    """A server under `folder`; each `fresh()` is the URL of a new database with schema `eai` in it.

    `package` is where its binaries are; None is the installed wheel.
    It never waits for the disk: what these tests end is a client, not the server.
    """

    def __init__(self, folder: Path, *, package: Path | None = None) -> None:
        self._server = embedded.start(folder, package=package)
        self._count = 0

    def __enter__(self) -> Self:
        with psycopg.connect(self._server.admin_url, autocommit=True) as connection:
            for setting in ("fsync", "synchronous_commit", "full_page_writes"):
                connection.execute(sql.SQL("ALTER SYSTEM SET {} = off").format(sql.Identifier(setting)))
            connection.execute("SELECT pg_reload_conf()")
        database = Database(self._server.url, admin_url=self._server.admin_url)
        database.migrate()
        database.close()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()

    def fresh(self) -> str:
        """URL of a new database, as the worker."""
        return self.copy_of(self._server.url)

    def copy_of(self, url: str) -> str:
        """URL of a copy of a database of this server that nobody is connected to."""
        self._count += 1
        name, parts = f"fresh_{self._count}", urlsplit(self._server.admin_url)
        template = urlsplit(url).path.lstrip("/")
        with psycopg.connect(urlunsplit(parts._replace(path="/postgres")), autocommit=True) as connection:
            connection.execute(
                sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template))
            )
        return urlunsplit(urlsplit(self._server.url)._replace(path=f"/{name}"))

    def admin(self, url: str) -> str:
        """URL of the same database as the administrator."""
        return urlunsplit(urlsplit(self._server.admin_url)._replace(path=urlsplit(url).path))
