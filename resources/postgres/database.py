"""The configured database, opened: a given one, or the embedded one.

Beside `site`, because many commands need nothing but the database, and should answer at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from finops_pipeline.errors import UsageError
from finops_pipeline.resources.anchor import Anchor
from finops_pipeline.resources.embedded import server as embedded
from finops_pipeline.resources.postgres.client import Database
from finops_pipeline.settings import Settings


def require_installation(settings: Settings) -> None:
    """UsageError, with the path, where there is neither a database's address nor an embedded one."""
    if settings.database_url is None and not (settings.home / "postgres").is_dir():
        raise UsageError(
            f"{settings.home.absolute()}: there is no installation here: go to its folder, name it by FINOPS_HOME or "
            "EAI_DATABASE_URL, or start one: finops demo, finops run --bundle DIR, finops dev"
        )


@contextmanager
def open_database(settings: Settings, *, existing: bool = False) -> Iterator[Database]:
    """The configured database, or the embedded one under FINOPS_HOME; its schema is up to date.

    Where it must be `existing`, an embedded one that is not there is a UsageError, and none is made: a question in a
    wrong folder leaves nothing behind.
    """
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
    if existing:
        require_installation(settings)
    with embedded.start(settings.home / "postgres") as server:
        database = Database(server.url, admin_url=server.admin_url, anchor=Anchor(settings.anchor_path))
        try:
            database.migrate()
            yield database
        finally:
            database.close()
