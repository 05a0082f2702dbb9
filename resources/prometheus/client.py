"""The door to a Prometheus (or Thanos, VictoriaMetrics): raw samples of a span of time, all of them or an error.

What belongs here: asking for raw samples in requests of bounded size, decoding them without an object per sample, and
distinguishing what is worth another try, what a smaller question fixes and what a person must fix. What does not: which
metrics exist and what they mean (`finops_pipeline.accounting.config`), and how long readings reach (A12).

Gaps show only in raw samples, so the question is always an instant query with a range selector, never `query_range`.
`metric[1h]` at T is closed on both ends in Prometheus 2 and left-open in 3: more is fetched than wanted, and
`start <= t < end` (A1) is decided here. Each metric is asked for by itself, first for a few minutes; how many samples
these bring decides how long the next span may be.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from pathlib import Path
from threading import Event
from time import monotonic, time
from types import MappingProxyType
from typing import Final, NoReturn, TypeVar
from urllib.parse import unquote, urlsplit, urlunsplit

import msgspec
import numpy as np
import pyarrow as pa
import requests
from pyarrow import csv
from requests.auth import AuthBase, HTTPBasicAuth
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    sleep_using_event,
    stop_after_attempt,
    stop_after_delay,
    stop_all,
    stop_any,
    stop_when_event_set,
    wait_exponential,
    wait_random,
)
from urllib3.exceptions import ReadTimeoutError

from finops_pipeline.contracts.lake import DCGM_SERIES
from finops_pipeline.errors import SourceError, UsageError
from finops_pipeline.resources.series import Column, SeriesBuilder

FIRST_SPAN_MS: Final = 300_000
LEAST_SPAN_MS: Final = 1_000
GROWTH: Final = 12
"""A span may be this many times as long as the one before: 5 minutes, then the rest of the hour."""
OVERFETCH_MS: Final = 1_000
SLOW_TRIES: Final = 3
"""How often a question that timed out is asked again at half its size."""
LONGEST_WAIT_S: Final = 30.0
TOLD_EVERY_S: Final = 60.0
"""So often a person is told that a server is waited for."""
LOG: Final = logging.getLogger(__name__)
CHUNK_BYTES: Final = 1 << 18
THANOS_PARAMETERS: Final = {"dedup": "true", "partial_response": "false", "max_source_resolution": "0s"}

Status = TypeVar("Status", "_BuildData", "_RuntimeData")

_LOWEST: Final = re.compile(rb"^prometheus_tsdb_lowest_timestamp_seconds(?:\{[^}]*\})? ([0-9][0-9.e+]*)", re.MULTILINE)
_BLANKS: Final = b" \t\r\n"
_PAST_SPANS: Final = ("1h", "1d", "31d")
_NO_PROMETHEUS: Final = "check that the URL is a Prometheus query API, without a login page before it"
_SMALLER: Final = "raise its query limits, or narrow the label matchers"
_READ: Final = csv.ReadOptions(column_names=["seconds", "value"])
_PARSE: Final = csv.ParseOptions(newlines_in_values=False)
_CONVERT: Final = csv.ConvertOptions(
    column_types={"seconds": pa.float64(), "value": pa.float64()}, null_values=[], quoted_strings_can_be_null=False
)


@dataclass(frozen=True)
class Health:
    """What a Prometheus says of itself."""

    version: str
    """empty where the server does not report it"""
    clock_skew_seconds: float | None
    """the server's clock minus ours, uncertain by half a second; None where it does not report it"""
    oldest_ms: int | None
    """instant of its oldest sample (UTC milliseconds); None where the server does not report it"""
    retention: str
    """how long it is set to keep samples, in its own words; empty where it does not report it"""


@dataclass(frozen=True)
class PrometheusDoor:
    """One cluster's Prometheus. Secrets are neither in its text nor in its messages.

    `match` is more label matchers for every selector (`job="dcgm-exporter"`); `thanos` adds the parameters under which
    Thanos answers with raw, deduplicated and complete data or not at all; `timeout` bounds one request, in seconds.
    """

    cluster: str
    url: str
    bearer_token: str | None = field(default=None, repr=False)
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    ca_file: Path | None = None
    match: str = ""
    thanos: bool = False
    parameters: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    connect_timeout: float = 5.0
    timeout: float = 120.0
    attempts: int = 5
    patience: float = 0.0
    """seconds that a question is asked again even after that many tries: a restart, which replays a log, takes minutes"""
    backoff: float = 0.5
    workers: int = 2
    max_samples: int = 5_000_000
    """samples that one request should bring at most; Prometheus refuses 50 million"""

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise UsageError(f"cluster {self.cluster}: the Prometheus URL is malformed ({error})") from error
        if parts.scheme not in {"http", "https"} or not host:
            raise UsageError(f"cluster {self.cluster}: a Prometheus URL is like http://host:9090 or https://host/path")
        if parts.username is not None:
            object.__setattr__(self, "username", unquote(parts.username))
            object.__setattr__(self, "password", unquote(parts.password or ""))
        netloc = f"[{host}]" if ":" in host else host
        netloc += "" if port is None else f":{port}"
        object.__setattr__(self, "url", urlunsplit((parts.scheme, netloc, parts.path.rstrip("/"), "", "")))
        if self.bearer_token is not None and self.username is not None:
            raise UsageError(f"cluster {self.cluster}: give a bearer token or a user and password, not both")
        if self.ca_file is not None and not self.ca_file.is_file():
            raise UsageError(f"cluster {self.cluster}: the CA file {self.ca_file} is not there")

    def series(
        self, start_ms: int, end_ms: int, metrics: Sequence[str], match: str = "", *, may_be_gone: bool = False
    ) -> pa.Table:
        """Every sample with `start <= t < end` (UTC milliseconds) as DCGM_SERIES, one row per series.

        Two metrics are pulled at a time (`workers`). A metric that the server does not know has no rows. Raises
        SourceError if anything is missing or in doubt: a failure that retries did not fix, an answer with warnings,
        a cut body, or a span that the server no longer keeps, unless it `may_be_gone` (the readings around an hour):
        then one question shows whether there is anything to pull.
        """
        if end_ms <= start_ms:
            raise ValueError(f"an empty span: {start_ms}..{end_ms}")
        names = sorted(set(metrics))
        if may_be_gone and not (names and self._has_any(names, start_ms, end_ms, match)):
            return DCGM_SERIES.empty_table()
        stop = Event()
        pool = ThreadPoolExecutor(max_workers=self.workers, thread_name_prefix=f"prometheus-{self.cluster}")
        try:
            pulls = [pool.submit(self._pull, name, start_ms, end_ms, match, stop) for name in names]
            tables = [pull.result() for pull in pulls]
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)
        table = pa.concat_tables([DCGM_SERIES.empty_table(), *tables])
        if not may_be_gone:
            self._check_kept(start_ms, end_ms, names, empty=table.num_rows == 0)
        return table

    def oldest_ms(self) -> int | None:
        """The instant of the oldest sample that the server keeps (UTC milliseconds).

        None where it does not report it (Thanos, VictoriaMetrics, a proxy that hides `/metrics`) or has none.
        """
        try:
            with self._session() as session, self._get(session, "/metrics", {}) as response:
                body = self._body(response)
        except (requests.RequestException, TimeoutError):
            return None
        found = _LOWEST.search(body) if response.ok else None
        oldest = float(found.group(1)) if found else float("inf")
        return round(oldest * 1000) if oldest <= time() else None

    def ping(self) -> Health:
        """Asks for version and time. Raises SourceError if it cannot be reached, refuses us or is no Prometheus."""
        with self._session() as session:
            self._small(session, "vector(1)", None)
            build, date, between = self._status(session, "/api/v1/status/buildinfo", _BuildData)
            kept, _, _ = self._status(session, "/api/v1/status/runtimeinfo", _RuntimeData)
        skew = None if date is None else parsedate_to_datetime(date).timestamp() + 0.5 - between
        return Health(build.version, skew, self.oldest_ms(), kept.retention)

    def names(self, pattern: str, start_ms: int, end_ms: int) -> list[str]:
        """Names of the metrics that fit a pattern (RE2, the whole name) and have a sample in `(start, end]`, in order."""
        selector = f"{{{','.join(filter(None, (f'__name__=~{_quoted(pattern)}', self.match)))}}}"
        with self._session() as session:
            found = self._small(
                session, f"count by (__name__) (last_over_time({selector}[{end_ms - start_ms}ms]))", end_ms
            )
        return sorted(series.metric["__name__"] for series in found)

    def _status(self, session: requests.Session, path: str, type_: type[Status]) -> tuple[Status, str | None, float]:
        """What a status page reports, its `Date` and our time in the middle of the request; nothing where it does not."""
        before = time()
        try:
            with self._get(session, path, {}) as response:
                between = (before + time()) / 2
                told = msgspec.json.decode(self._body(response), type=_Status).data
                return msgspec.json.decode(told, type=type_), response.headers.get("Date"), between
        except (requests.RequestException, TimeoutError, msgspec.DecodeError):
            return type_(), None, before

    def _pull(self, metric: str, start_ms: int, end_ms: int, match: str, stop: Event) -> pa.Table:
        """All samples of one metric, in spans of bounded size."""
        builder = SeriesBuilder()
        matchers = ",".join(filter(None, (f"__name__={_quoted(metric)}", self.match, match)))
        at, span, longest, slow = start_ms, FIRST_SPAN_MS, end_ms - start_ms, 0
        with self._session() as session:
            while at < end_ms and not stop.is_set():
                until = min(at + min(span, longest), end_ms)
                selector = f"{{{matchers}}}[{until - at + OVERFETCH_MS}ms]"
                try:
                    found = self._retry(lambda: self._query(session, selector, until), stop)  # noqa: B023
                except _TooMuchError as error:
                    slow += error.slow
                    longest = (until - at) // 2
                    if longest < LEAST_SPAN_MS or slow > SLOW_TRIES:
                        asked = f"{metric}, {(until - at) / 1000:g} s of it"
                        self._fail(f"{error} ({asked})", _SMALLER, transient=error.slow)
                    continue
                count = self._decode(found, metric, at, until, builder)
                span = min((until - at) * GROWTH, (until - at) * self.max_samples // count if count else end_ms)
                span = max(span, LEAST_SPAN_MS)
                at = until
        return builder.table()

    def _decode(self, found: list[_Series], metric: str, start_ms: int, end_ms: int, builder: SeriesBuilder) -> int:
        """Adds the samples with `start <= t < end`; how many there were before the cut."""
        ids, counts, texts = [], [], []
        for series in found:
            if len(bytes(series.histograms)) > 2:
                self._fail(f"{metric} is a native histogram", "leave it out of the metric names", transient=False)
            text = bytes(series.values)
            if any(blank in text for blank in _BLANKS):
                text = text.translate(None, _BLANKS)
            if text == b"[]":
                continue
            ids.append(builder.series(series.metric.pop("__name__", metric), series.metric))
            counts.append(text.count(b"],[") + 1)
            texts.append(text[2:-2])
        if not texts:
            return 0
        source: Column = pa.BufferReader(b"],[".join(texts).replace(b"],[", b"\n"))
        try:
            columns = csv.read_csv(source, _READ, _PARSE, _CONVERT).columns
        except pa.ArrowInvalid as error:
            self._fail(f"samples of {metric} cannot be read ({error})", _NO_PROMETHEUS, transient=False)
        if len(columns[0]) != sum(counts):
            self._fail(f"{metric} came as {len(columns[0])} samples of {sum(counts)}", _NO_PROMETHEUS, transient=False)
        instants = np.rint(np.asarray(columns[0]) * 1000).astype(np.int64)
        kept = (instants >= start_ms) & (instants < end_ms)
        rows = np.repeat(np.array(ids, dtype=np.int64), counts)
        builder.add(rows[kept], instants[kept], np.asarray(columns[1])[kept])
        return len(kept)

    def _check_kept(self, start_ms: int, end_ms: int, names: Sequence[str], *, empty: bool) -> None:
        """Raises if the span lies before all that the server keeps: that is not an empty hour."""
        oldest = self.oldest_ms()
        if oldest is None and (not empty or self._has_past(start_ms, end_ms, names)):
            return
        if oldest is not None and oldest < end_ms:
            return
        since = (
            "it has no sample of then or before" if oldest is None else f"it keeps samples since {_utc(oldest)} only"
        )
        self._fail(
            f"{_utc(start_ms)} to {_utc(end_ms)} is older than its retention ({since})",
            "take these hours from a longer store or a bundle, or raise --storage.tsdb.retention.time",
            transient=False,
        )

    def _has_any(self, names: Sequence[str], start_ms: int, end_ms: int, match: str) -> bool:
        """True if any of these metrics may have a sample in the span; also where the server finds that too much to answer."""
        known = f"__name__=~{_quoted('|'.join(map(re.escape, names)))}"
        selector = f"{{{','.join(filter(None, (known, self.match, match)))}}}[{end_ms - start_ms + OVERFETCH_MS}ms]"
        count, last = f"count(last_over_time({selector}))", end_ms - 1
        with self._session() as session:
            try:
                return bool(self._retry(lambda: self._query(session, count, last), Event()))
            except _TooMuchError:
                return True

    def _has_past(self, start_ms: int, end_ms: int, names: Sequence[str]) -> bool:
        """True if any of these metrics, or `up`, has a sample before the end of the span."""
        known = _quoted("|".join(["up", *map(re.escape, names)]))
        with self._session() as session:
            return any(
                self._small(session, f"count(last_over_time({{__name__=~{known}}}[{past}]))", end_ms)
                for past in (f"{end_ms - start_ms}ms", *_PAST_SPANS)
            )

    def _small(self, session: requests.Session, expression: str, at_ms: int | None) -> list[_Series]:
        """The answer to a question that is never too large."""
        try:
            return self._retry(lambda: self._query(session, expression, at_ms), Event())
        except _TooMuchError as error:
            self._fail(str(error), "check its load", transient=error.slow)

    def _retry(self, ask: Callable[[], list[_Series]], stop: Event) -> list[_Series]:
        """Asks until it is answered; waits longer each time, and as long as the server says.

        What it waits for is a warning in the log, once a minute.
        """
        waits = wait_exponential(multiplier=self.backoff, max=LONGEST_WAIT_S) + wait_random(0, self.backoff)

        def wait(state: RetryCallState) -> float:
            error = state.outcome.exception() if state.outcome else None
            asked = error.wait if isinstance(error, _TransientError) else 0.0
            return max(waits(state), min(asked, LONGEST_WAIT_S))

        began = monotonic()
        retrying = Retrying(
            stop=stop_any(
                stop_all(stop_after_attempt(self.attempts), stop_after_delay(self.patience)), stop_when_event_set(stop)
            ),
            wait=wait,
            before_sleep=self._told(),
            retry=retry_if_exception_type(_TransientError),
            sleep=sleep_using_event(stop),
            reraise=True,
        )
        try:
            return retrying(ask)
        except _TransientError as error:
            asked = f"{retrying.statistics['attempt_number']} tries"
            asked += f" in {monotonic() - began:.0f} s" if self.patience else ""
            self._fail(f"{error} ({asked})", "check that it is up and can be reached", transient=True)

    def _told(self) -> Callable[[RetryCallState], None]:
        """Says why a question is asked again, at the first time that takes long and then once a minute."""
        said = monotonic() - TOLD_EVERY_S

        def told(state: RetryCallState) -> None:
            nonlocal said
            waited = state.seconds_since_start or 0.0
            if self.patience and state.attempt_number > 1 and monotonic() - said >= TOLD_EVERY_S:
                said = monotonic()
                LOG.warning(
                    "cluster %s: Prometheus at %s: %s: asked again for up to %.0f s more",
                    self.cluster,
                    self.url,
                    state.outcome.exception() if state.outcome else "no answer",
                    max(0.0, self.patience - waited),
                )

        return told

    def _query(self, session: requests.Session, expression: str, at_ms: int | None) -> list[_Series]:
        """One instant query, answered whole or not at all.

        Raises _TransientError, _TooMuchError, or SourceError for what neither patience nor a smaller question fixes.
        """
        parameters = {"query": expression, "timeout": f"{round(self.timeout * 1000)}ms", **self.parameters}
        if self.thanos:
            parameters.update(THANOS_PARAMETERS)
        if at_ms is not None:
            parameters["time"] = f"{at_ms // 1000}.{at_ms % 1000:03d}"
        try:
            with self._get(session, "/api/v1/query", parameters) as response:
                body = self._body(response)
        except requests.exceptions.SSLError as error:
            self._fail(f"its certificate is not accepted ({_cause(error)})", "set its CA file", transient=False)
        except (requests.ReadTimeout, TimeoutError) as error:
            raise _TooMuchError(f"no answer within {self.timeout:g} s", slow=True) from error
        except requests.ConnectTimeout as error:
            raise _TransientError(f"no connection within {self.connect_timeout:g} s") from error
        except (requests.ConnectionError, requests.exceptions.ChunkedEncodingError) as error:
            if isinstance(error.args[0] if error.args else None, ReadTimeoutError):
                raise _TooMuchError(f"no whole answer within {self.timeout:g} s", slow=True) from error
            raise _TransientError(f"the connection failed ({_cause(error)})") from error
        except requests.RequestException as error:
            self._fail(f"the request failed ({_cause(error)})", "check the URL", transient=False)
        if not response.ok:
            self._raise_for(response, body)
        return self._answer(response, body)

    def _raise_for(self, response: requests.Response, body: bytes) -> NoReturn:
        """Tells apart the failures by their status."""
        status, (kind, said) = response.status_code, _error_text(body)
        reason = f"it answered {status} {response.reason or ''}".rstrip() + (f" ({said})" if said else "")
        if status in {
            HTTPStatus.UNPROCESSABLE_ENTITY,
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            HTTPStatus.GATEWAY_TIMEOUT,
        } or (status == HTTPStatus.SERVICE_UNAVAILABLE and kind in {"timeout", "canceled"}):
            raise _TooMuchError(reason, slow=status >= HTTPStatus.INTERNAL_SERVER_ERROR)
        if (
            status in {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS}
            or status >= HTTPStatus.INTERNAL_SERVER_ERROR
        ):
            wait = response.headers.get("Retry-After", "")
            raise _TransientError(reason, float(wait) if wait.isdecimal() else 0.0)
        if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
            self._fail(reason, "set a bearer token or user and password that may query it", transient=False)
        self._fail(reason, "check the URL and the extra label matchers", transient=False)

    def _answer(self, response: requests.Response, body: bytes) -> list[_Series]:
        """The series of a 2xx answer, which must be whole: no warnings, nothing partial, nothing cut."""
        if "json" not in response.headers.get("Content-Type", ""):
            kind = response.headers.get("Content-Type", "no content type")
            self._fail(f"it answered with {kind}", _NO_PROMETHEUS, transient=False)
        try:
            answer = msgspec.json.decode(body, type=_Answer)
        except msgspec.ValidationError as error:
            self._fail(f"its answer is not the query API's ({error})", _NO_PROMETHEUS, transient=False)
        except msgspec.DecodeError as error:
            raise _TransientError(f"its answer of {len(body)} bytes is cut or garbled ({error})") from error
        if answer.warnings or answer.partial:
            said = "; ".join(answer.warnings) or "isPartial"
            self._fail(f"its answer may be incomplete ({said})", "repair the store that is missing", transient=True)
        if answer.status != "success" or answer.data.kind not in {"matrix", "vector"}:
            what = f"{answer.status} {answer.data.kind} {answer.error}".strip()
            self._fail(f"its answer is {what}", _NO_PROMETHEUS, transient=False)
        return answer.data.result

    def _session(self) -> requests.Session:
        session = requests.Session()
        near = urlsplit(self.url).hostname in {"localhost", "127.0.0.1", "::1"}
        session.headers.update({"Accept": "application/json", "Accept-Encoding": "identity" if near else "gzip"})
        if self.bearer_token is not None:
            session.auth = _Bearer(self.bearer_token)
        elif self.username is not None:
            session.auth = HTTPBasicAuth(self.username.encode(), (self.password or "").encode())
        return session

    def _get(self, session: requests.Session, path: str, parameters: Mapping[str, str]) -> requests.Response:
        return session.get(
            self.url + path,
            params=parameters,
            timeout=(self.connect_timeout, self.timeout),
            verify=True if self.ca_file is None else str(self.ca_file),
            stream=True,
        )

    def _body(self, response: requests.Response) -> bytes:
        """The whole body; TimeoutError if it trickles in for longer than a request may take."""
        deadline = monotonic() + self.timeout
        pieces = []
        for piece in response.iter_content(CHUNK_BYTES):
            pieces.append(piece)
            if monotonic() > deadline:
                raise TimeoutError
        return b"".join(pieces)

    def _fail(self, what: str, remedy: str, *, transient: bool) -> NoReturn:
        raise SourceError(f"cluster {self.cluster}: Prometheus at {self.url}: {what}: {remedy}", transient=transient)


def pull_many(
    doors: Sequence[PrometheusDoor], start_ms: int, end_ms: int, metrics: Sequence[str], *, at_once: int = 2
) -> dict[str, pa.Table]:
    """The samples of several clusters, `at_once` of them at a time: cluster to DCGM_SERIES. The first failure is raised."""
    with ThreadPoolExecutor(max_workers=at_once) as pool:
        pulls = {door.cluster: pool.submit(door.series, start_ms, end_ms, metrics) for door in doors}
        return {cluster: pull.result() for cluster, pull in pulls.items()}


class _TransientError(Exception):
    """Worth another try, after `wait` seconds if the server said so."""

    def __init__(self, reason: str, wait: float = 0.0) -> None:
        super().__init__(reason)
        self.wait = wait


class _TooMuchError(Exception):
    """A smaller question may be answered; `slow` if the time ran out, else a limit was met."""

    def __init__(self, reason: str, *, slow: bool) -> None:
        super().__init__(reason)
        self.slow = slow


class _Bearer(AuthBase):
    """As an auth object, so that no entry of a .netrc replaces it."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._token}"
        return request


class _Series(msgspec.Struct):
    metric: dict[str, str]
    values: msgspec.Raw = msgspec.Raw(b"[]")
    histograms: msgspec.Raw = msgspec.Raw(b"[]")


class _Data(msgspec.Struct):
    kind: str = msgspec.field(name="resultType", default="")
    result: list[_Series] = []


class _Answer(msgspec.Struct):
    status: str
    data: _Data = msgspec.field(default_factory=_Data)
    error: str = ""
    warnings: list[str] = []
    partial: bool = msgspec.field(name="isPartial", default=False)


class _Failure(msgspec.Struct):
    error: str = ""
    kind: str = msgspec.field(name="errorType", default="")


class _Status(msgspec.Struct):
    data: msgspec.Raw = msgspec.Raw(b"{}")


class _BuildData(msgspec.Struct):
    version: str = ""


class _RuntimeData(msgspec.Struct):
    retention: str = msgspec.field(name="storageRetention", default="")


def _error_text(body: bytes) -> tuple[str, str]:
    """Kind and text of an error answer, on one line."""
    try:
        failure = msgspec.json.decode(body, type=_Failure)
    except msgspec.DecodeError:
        failure = _Failure(error=body[:200].decode("utf-8", "replace"))
    return failure.kind, " ".join(failure.error.split())


def _cause(error: BaseException) -> str:
    """The innermost reason of a chain of wrapped errors, without the addresses that the outer ones repeat."""
    inner: object = error
    while isinstance(inner, BaseException):
        deeper = getattr(inner, "reason", None) or inner.__cause__ or inner.__context__
        if deeper is None or deeper is inner:
            break
        inner = deeper
    return " ".join(str(inner).split()) or type(inner).__name__


def _quoted(text: str) -> str:
    """A PromQL string."""
    return msgspec.json.encode(text).decode()


def _utc(instant_ms: int) -> str:
    return datetime.fromtimestamp(instant_ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
