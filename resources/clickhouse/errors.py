"""What can go wrong with ClickHouse, as one line: where, what, what to do, and whether another try may help.

Belongs here: the wording and the classification. Does not: trying again (clickhouse.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from clickhouse_connect.driver.exceptions import ClickHouseError, Error, OperationalError, StreamFailureError

from finops_pipeline.errors import FinopsError, SourceError, UsageError

# Timeouts, too many queries or parts, memory, network, lost Keeper or replicas, a cancelled query, a deadlock.
_TRANSIENT = frozenset({159, 202, 209, 210, 241, 242, 252, 279, 285, 319, 394, 473, 999})
_TRANSIENT_STATUS = frozenset({408, 429, 500, 502, 503, 504})
_ADVICE = {
    81: "create the database, or give the user CREATE DATABASE",
    164: "the user may only read: give it SELECT, INSERT, ALTER DELETE, CREATE and DROP on the replica's database",
    192: "wrong user or password: check EAI_CLICKHOUSE_URL",
    193: "wrong user or password: check EAI_CLICKHOUSE_URL",
    194: "a password is needed: put it into EAI_CLICKHOUSE_URL",
    243: "make room on its disk",
    497: "give the user SELECT, INSERT, ALTER DELETE, CREATE and DROP on the replica's database",
    516: "wrong user or password: check EAI_CLICKHOUSE_URL",
}


@contextmanager
def translated(where: str) -> Iterator[None]:
    """ClickHouse's errors as one line without address parameters, user or password."""
    try:
        yield
    except ClickHouseError as error:
        raise mendable(error, where) from None


def mendable(error: ClickHouseError, where: str) -> FinopsError:
    """What a user reads instead of `error`."""
    code = error.code if isinstance(error, Error) else None
    said = " ".join(str(error).split())
    if code is None and (found := re.search(r"\bCode: (\d+)", said)):
        code = int(found[1])
    if code is not None:
        advice = _ADVICE.get(code)
        wrong_use = code in _ADVICE and code != 243
        line = f"{where}: {_message(said)}" + (f"; {advice}" if advice else "")
        return UsageError(line) if wrong_use else SourceError(line, transient=code in _TRANSIENT)
    if "CERTIFICATE_VERIFY_FAILED" in said:
        return UsageError(f"{where}: its certificate is not accepted: EAI_CLICKHOUSE_CA_FILE names who signs it")
    if found := re.search(r"HTTP status (\d+)", said):
        return SourceError(f"{where}: HTTP status {found[1]}", transient=int(found[1]) in _TRANSIENT_STATUS)
    if isinstance(error, StreamFailureError):
        return SourceError(f"{where}: the answer broke off", transient=True)
    if isinstance(error, OperationalError):
        return SourceError(f"{where}: {_reason(said)}", transient=True)
    return SourceError(f"{where}: {said}", transient=False)


def _message(said: str) -> str:
    """ClickHouse's own sentence, without the server's version and address."""
    text = re.sub(r"^.*?DB::Exception: ", "", said)
    text = re.sub(r" \(for url [^)]*\)$", "", text)
    return re.sub(r"\s*\(version [^()]*(\([^()]*\))?[^()]*\)", "", text)[:500]


def _reason(said: str) -> str:
    for sign, meaning in (
        ("Name or service not known", "unknown host name"),
        ("name resolution", "the host name cannot be looked up just now"),
        ("Connection refused", "connection refused: is the server running, and is this its HTTP port?"),
        ("imed out", "no answer in time"),
        ("WRONG_VERSION_NUMBER", "no TLS at this port: is it http, not https?"),
    ):
        if sign in said:
            return meaning
    return "the connection broke"
