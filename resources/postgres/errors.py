"""What can go wrong with Postgres, as one line: where, what, what to do, and whether another try may help.

Belongs here: the wording and the classification. Does not: trying again (that is Dagster's retry policy).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import sqlalchemy as sa

from finops_pipeline.errors import FinopsError, SourceError, UsageError

CONNECT_SECONDS = 10

# Serialization failure, deadlock, lock timeout, cancelled, shutdown and crash, too many connections, idle timeout.
_TRANSIENT_STATES = frozenset({"40001", "40P01", "55P03", "57014", "57P01", "57P02", "57P03", "53300", "25P03"})

_CONNECTING: tuple[tuple[str, str, bool | None], ...] = (
    # what libpq or the server says, what we say, transient (None: wrong use)
    ("password authentication failed", "wrong user or password", None),
    ("no password supplied", "a password is needed, the URL has none", None),
    ("no pg_hba.conf entry", "the server does not accept this user, host and database (pg_hba.conf)", None),
    ("does not exist", "there is no such database or user", None),
    ("permission denied for database", "the user may not connect to this database", None),
    ("does not support SSL", "the server has no TLS; change sslmode", None),
    ("certificate", "the server's TLS certificate is not accepted", None),
    ("invalid connection option", "the URL has an unknown option", None),
    ("Connection refused", "connection refused: is the server running, and is this its host and port?", True),
    ("name resolution", "the host name cannot be looked up just now", True),
    ("resolve host", "unknown host name", False),
    ("translate host name", "unknown host name", False),
    ("timeout expired", f"no answer within {CONNECT_SECONDS} seconds", True),
    ("Network is unreachable", "the network is unreachable", True),
    ("No route to host", "no route to the host", True),
    ("too many clients", "the server has no connection left", True),
    ("connection slots", "the server has no connection left", True),
    ("starting up", "the server is starting up", True),
    ("shutting down", "the server is shutting down", True),
)

_ADVICE = (
    "an administrator has to run contracts/migrations/roles.sql and GRANT eai_pipeline TO {user}"
    " (to migrate also eai_owner, and CREATE on the database)"
)


def shown(url: sa.URL) -> str:
    """The database in a message: no password."""
    host = url.host or url.query.get("host") or "localhost"
    return f"Postgres {url.username or ''}@{host}:{url.port or 5432}/{url.database or ''}"


@contextmanager
def translated(url: sa.URL) -> Iterator[None]:
    """Database errors that a user can fix become one line without the password; the rest stays what it is."""
    try:
        yield
    except sa.exc.DBAPIError as error:
        mendable = _mendable(error.orig, url)
        if mendable is None:
            raise
        raise mendable from None
    except psycopg.Error as error:
        mendable = _mendable(error, url)
        if mendable is None:
            raise
        raise mendable from None


def _mendable(error: BaseException | None, url: sa.URL) -> FinopsError | None:
    if not isinstance(error, psycopg.Error):
        return None
    where, state, message = shown(url), error.sqlstate, error.diag.message_primary or ""
    if isinstance(error, psycopg.OperationalError) and (state is None or state.startswith(("28", "3D"))):
        return _not_connected(where, str(error), url)
    if state is None:
        return None
    if state in _TRANSIENT_STATES or state.startswith("08"):
        return SourceError(f"{where}: {message}", transient=True)
    if state in {"42501", "0LP01"}:
        return UsageError(f"{where}: {message}; {_ADVICE.format(user=url.username)}")
    if state in {"3F000", "42P01", "22023"} and "eai" in message:
        return UsageError(f"{where}: {message}; schema eai is not installed here: run the migration first")
    if state.startswith("53"):
        return SourceError(f"{where}: {message}", transient=False)
    return None


def _not_connected(where: str, said: str, url: sa.URL) -> FinopsError:
    for sign, meaning, transient in _CONNECTING:
        if sign in said:
            if transient is None:
                return UsageError(f"{where}: {meaning}")
            return SourceError(f"{where}: {meaning}", transient=transient)
    line = " ".join(said.split())
    return SourceError(f"{where}: {line.replace(str(url.password), '***') if url.password else line}", transient=True)
