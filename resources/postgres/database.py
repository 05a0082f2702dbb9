"""The configured database, opened: a given one, or the embedded one.

Beside `site`, because many commands need nothing but the database, and should answer at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from finops_pipeline.resources.anchor import Anchor
from finops_pipeline.resources.embedded import server as embedded
from finops_pipeline.resources.postgres.client import Database
from finops_pipeline.settings import Settings


@contextmanager
def open_database(settings: Settings) -> Iterator[Database]:
    """The configured database, or the embedded one under FINOPS_HOME; its schema is up to date."""
    if settings.database_url is not None:
        database = Database(settings.database_url.get_secret_value(), anchor=Anchor(settings.anchor_path))
        try:
            if settings.production:
                database.refuse_privileged()
            database.migrate()
            yield database
        finally:
            database.close()
        return
    with embedded.start(settings.home / "postgres") as server:
        database = Database(server.url, admin_url=server.admin_url, anchor=Anchor(settings.anchor_path))
        try:
            database.migrate()
            yield database
        finally:
            database.close()
