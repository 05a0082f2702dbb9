"""The door to Prometheus against a real one: the same samples as the file that it was loaded from, or a clear failure."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import requests

from finops_pipeline.errors import SourceError, UsageError
from finops_pipeline.resources.bundle.openmetrics import read_series
from finops_pipeline.resources.prometheus import client as prometheus
from finops_pipeline.resources.prometheus.client import PrometheusDoor, pull_many
from finops_pipeline.resources.series import window
from tests.services.prometheus_server import (
    Answer,
    Fault,
    FaultProxy,
    PrometheusServer,
    Request,
    failure,
    free_port,
    load_blocks,
    own_certificate,
    programs,
)

START = 1_790_848_800_000
END = START + 3_600_000
MINUTE = 60_000
METRICS = ["A", "B", "odd", "absent"]
Real = Callable[[], Answer]


def dump() -> str:
    """Two metrics every 15 s over more than an hour, on the hour's very edges too, and one with odd values and labels."""
    lines = []
    for metric, labels in (("A", '{gpu="0"}'), ("A", '{gpu="1",model="NVIDIA H100"}'), ("B", "")):
        for step in range(-40, 300):
            instant = START + step * 15_000 + (0 if metric == "A" else (step * 7) % 5)
            lines.append((f"{metric}{labels}", f"{step * 0.1 + 1e-9}", instant))
    odd = [
        "NaN",
        "+Inf",
        "-Inf",
        "-0",
        "9223372036854775794",
        "140737488355328",
        "1e300",
        "5e-324",
        "0.1",
        "1e-7",
        "1e21",
    ]
    lines += [('odd{x="a\\\\b\\"c\\nd,{e}",y="é 名"}', value, START + step) for step, value in enumerate(odd)]
    lines += [("late", "1", END), ("late", "1", END - 1), ("early", "1", START - 1), ("early", "1", START)]
    lines.sort(key=lambda line: line[2])
    return "".join(f"{name} {value} {at // 1000}.{at % 1000:03d}\n" for name, value, at in lines) + "# EOF\n"


@pytest.fixture(scope="module")
def dump_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dump") / "dcgm.om"
    path.write_text(dump(), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def expected(dump_file: Path) -> pa.Table:
    return read_series(dump_file)


@pytest.fixture(scope="module", params=programs(), ids=lambda path: path.strip("/").replace("/", "-"))
def server(
    dump_file: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[PrometheusServer]:
    data = tmp_path_factory.mktemp("prometheus") / "data"
    load_blocks(dump_file, data)
    with PrometheusServer(data, request.param) as running:
        yield running


def door(url: str, **options: Any) -> PrometheusDoor:
    return PrometheusDoor("c1", url, **({"backoff": 0.01, "attempts": 4} | options))


def bits(table: pa.Table) -> list[Any]:
    """A table with its values as bits: NaN equals itself, -0 does not equal 0."""
    values: Any = table["values"].combine_chunks()
    return [table.drop_columns(["values"]).to_pylist(), np.asarray(values.flatten()).view(np.int64).tolist()]


def only(table: pa.Table, metrics: list[str]) -> pa.Table:
    return table.filter(pa.array([metric in metrics for metric in table["metric"].to_pylist()]))


@pytest.mark.parametrize(
    ("start", "end"),
    [
        (START, END),
        (START - 10 * MINUTE, END + 15 * MINUTE),
        (START + 15_000, START + 30_000),
        (START + 15_000, START + 15_001),
        (START + 15_001, START + 30_000),
        (START, START + 1),
        (START + 5 * MINUTE, START + 65 * MINUTE),
        (START + 4, START + 7),
    ],
)
def test_the_door_gives_the_samples_of_the_file(
    server: PrometheusServer, expected: pa.Table, start: int, end: int
) -> None:
    metrics = [*METRICS, "late", "early"]
    assert bits(door(server.url).series(start, end, metrics)) == bits(window(expected, start, end))


def test_both_edges_of_the_hour(server: PrometheusServer) -> None:
    table = door(server.url).series(START, END, ["late", "early"])
    assert [(row["metric"], len(row["timestamps"])) for row in table.to_pylist()] == [("early", 1), ("late", 1)]


@pytest.mark.parametrize("span", [1_000, 7_777, 15_000, 60_000])
def test_spans_meet_without_gap_or_overlap(
    server: PrometheusServer, expected: pa.Table, monkeypatch: pytest.MonkeyPatch, span: int
) -> None:
    monkeypatch.setattr(prometheus, "FIRST_SPAN_MS", span)
    monkeypatch.setattr(prometheus, "GROWTH", 1)
    end = START + 5 * MINUTE
    assert bits(door(server.url).series(START, end, METRICS)) == bits(only(window(expected, START, end), METRICS))


@pytest.mark.parametrize("case", ["01-shared-server-70-30", "07-duplicates-and-the-edge", "08-blanks-and-garbage"])
def test_a_case_comes_the_same_from_file_and_prometheus(cases: Path, tmp_path: Path, case: str) -> None:
    dump = cases / case / "dcgm.om.gz"
    load_blocks(dump, tmp_path / "data")
    whole = read_series(dump)
    metrics = sorted({row["metric"] for row in whole.select(["metric"]).to_pylist()})
    with PrometheusServer(tmp_path / "data") as running:
        for start, end in ((START, END), (START - 3_600_000, END + 3_600_000)):
            assert bits(door(running.url).series(start, end, metrics)) == bits(window(whole, start, end))


def test_label_matchers_narrow_the_question(server: PrometheusServer, expected: pa.Table) -> None:
    wanted = expected.filter(pa.array([dict(row["labels"]).get("gpu") == "1" for row in expected.to_pylist()]))
    for found in (
        door(server.url, match='gpu="1"').series(START, END, ["A", "B"]),
        door(server.url).series(START, END, ["A", "B"], match='gpu=~"1|2"'),
    ):
        assert bits(found) == bits(window(wanted, START, END))


def test_a_wrong_matcher_is_told_at_once(server: PrometheusServer) -> None:
    with pytest.raises(SourceError, match=r"answered 400.*check the URL and the extra label matchers") as caught:
        door(server.url, match="gpu=").series(START, END, ["A"])
    assert not caught.value.transient


def test_several_clusters_at_once(server: PrometheusServer, expected: pa.Table) -> None:
    doors = [PrometheusDoor(name, server.url) for name in ("c1", "c2", "c3")]
    found = pull_many(doors, START, END, ["A", "B"])
    assert list(found) == ["c1", "c2", "c3"]
    assert all(bits(table) == bits(only(window(expected, START, END), ["A", "B"])) for table in found.values())


def test_ping(server: PrometheusServer) -> None:
    health = door(server.url).ping()
    assert health.version
    assert health.clock_skew_seconds is not None
    assert abs(health.clock_skew_seconds) < 2
    assert health.oldest_ms is not None
    assert health.oldest_ms <= START - 10 * MINUTE


def test_the_server_s_own_limit_makes_the_questions_smaller(
    dump_file: Path, expected: pa.Table, tmp_path: Path
) -> None:
    load_blocks(dump_file, tmp_path / "data")
    wanted = only(window(expected, START, END), ["A", "B"])
    with (
        PrometheusServer(tmp_path / "data", options=("--query.max-samples=60",)) as running,
        FaultProxy(running.url, lambda _, real: real()) as proxy,
    ):
        assert bits(door(proxy.url).series(START, END, ["A", "B"])) == bits(wanted)
        assert proxy.queries > 12
    with (
        PrometheusServer(tmp_path / "data", options=("--query.max-samples=1",)) as running,
        pytest.raises(SourceError, match=r"too many samples.*\(A, 1 s of it\): raise its query limits") as caught,
    ):
        door(running.url).series(START, START + 1000, ["A"])
    assert not caught.value.transient


def test_few_samples_are_few_requests_and_many_are_more(server: PrometheusServer) -> None:
    for limit, least, most in ((5_000_000, 2, 2), (40, 10, 60)):
        with FaultProxy(server.url, lambda _, real: real()) as proxy:
            door(proxy.url, max_samples=limit).series(START, END, ["A"])
        assert least <= proxy.queries <= most


# --- retention


def test_hours_before_the_oldest_sample_are_an_error(server: PrometheusServer) -> None:
    with pytest.raises(SourceError) as caught:
        door(server.url).series(START - 7_200_000, START - 3_600_000, METRICS)
    assert not caught.value.transient
    assert "2026-10-01T08:00:00Z to 2026-10-01T09:00:00Z is older than its retention" in str(caught.value)
    assert "keeps samples since 2026-10-01T09:50:00Z only" in str(caught.value)
    assert door(server.url).series(START - 7_200_000, START - 3_600_000, METRICS, may_be_gone=True).num_rows == 0


def test_a_kept_hour_without_samples_is_an_empty_hour(server: PrometheusServer) -> None:
    assert door(server.url).series(END + 7_200_000, END + 10_800_000, METRICS).num_rows == 0


def hide_metrics(request: Request, real: Real) -> Answer:
    return Answer(404, b"no") if request.path.startswith("/metrics") else real()


def test_a_server_that_does_not_tell_its_oldest_sample_is_asked_for_earlier_ones(server: PrometheusServer) -> None:
    with FaultProxy(server.url, hide_metrics) as proxy:
        hidden = door(proxy.url)
        assert hidden.oldest_ms() is None
        assert hidden.series(START, END, ["A"]).num_rows == 2
        assert hidden.series(END + 7_200_000, END + 10_800_000, ["A"]).num_rows == 0
        with pytest.raises(SourceError, match=r"older than its retention \(it has no sample of then or before\)"):
            hidden.series(START - 7_200_000, START - 3_600_000, ["A"])


def test_an_empty_server_is_no_empty_hour(tmp_path: Path) -> None:
    with PrometheusServer(tmp_path / "data") as running, pytest.raises(SourceError, match="older than its retention"):
        door(running.url).series(START, END, METRICS)


def test_what_the_server_deletes_while_we_pull_is_noticed(server: PrometheusServer) -> None:
    later = f"prometheus_tsdb_lowest_timestamp_seconds {(END + 1) / 1000}\n".encode()

    def fault(request: Request, real: Real) -> Answer:
        return Answer(200, later, {"Content-Type": "text/plain"}) if request.path.startswith("/metrics") else real()

    with FaultProxy(server.url, fault) as proxy, pytest.raises(SourceError, match="older than its retention"):
        door(proxy.url).series(START, END, ["A"])


# --- failures: the right samples, or a clear error that says whether another try may help


def queries(answer: Callable[[Request, Real], Answer]) -> Fault:
    """A fault of queries only; everything else is passed on."""
    return lambda request, real: answer(request, real) if request.path.startswith("/api/v1/query?") else real()


def cut(real: Real, share: float) -> Answer:
    answer = real()
    answer.cut_at = int(len(answer.body) * share)
    return answer


def slow(seconds: float, real: Real) -> Answer:
    time.sleep(seconds)
    return real()


def span_of(request: Request) -> int:
    """Milliseconds that a range selector asks for, without the margin."""
    return int(request.path.split("%5B")[1].split("ms%5D")[0]) - prometheus.OVERFETCH_MS


def warned(real: Real) -> Answer:
    answer = real()
    answer.body = json.dumps(json.loads(answer.body) | {"warnings": ["store eu-1 is down"]}).encode()
    return answer


def spaced(real: Real) -> Answer:
    answer = real()
    answer.body = json.dumps(json.loads(answer.body), indent=1).encode()
    return answer


def informed(real: Real) -> Answer:
    answer = real()
    answer.body = json.dumps(json.loads(answer.body) | {"infos": ["PromQL info: not a counter"], "new": 1}).encode()
    return answer


MENDED: dict[str, Fault] = {
    "500 twice": queries(lambda r, real: failure(500, "internal", "oh") if r.number < 2 else real()),
    "502 without a body": queries(lambda r, real: Answer(502, b"") if r.number in {0, 3, 5} else real()),
    "503 not ready": queries(lambda r, real: Answer(503, b"Service Unavailable") if r.number < 2 else real()),
    "408": queries(lambda r, real: Answer(408, b"") if r.number == 0 else real()),
    "429 with a wish": queries(
        lambda r, real: Answer(429, b"", {"Retry-After": "0"}) if r.number in {0, 2} else real()
    ),
    "cut once": queries(lambda r, real: cut(real, 0.5) if r.number == 1 else real()),
    "cut before the body": queries(lambda r, real: cut(real, 0) if r.number in {0, 1} else real()),
    "slow once": queries(lambda r, real: slow(1.2, real) if r.number == 1 else real()),
    "422 for more than 2 minutes": queries(
        lambda r, real: failure(422, "execution", "too many samples") if span_of(r) > 2 * MINUTE else real()
    ),
    "413 for more than 20 minutes": queries(lambda r, real: Answer(413, b"") if span_of(r) > 20 * MINUTE else real()),
    "503 timeout for more than 1 minute": queries(
        lambda r, real: failure(503, "timeout", "query timed out") if span_of(r) > 80_000 else real()
    ),
    "504 for more than 3 minutes": queries(lambda r, real: Answer(504, b"") if span_of(r) > 3 * MINUTE else real()),
    "blanks in the JSON": queries(lambda _, real: spaced(real)),
    "infos and unknown keys": queries(lambda _, real: informed(real)),
}


@pytest.mark.parametrize("name", MENDED)
def test_what_passes_or_a_smaller_question_mends_gives_the_right_samples(
    server: PrometheusServer, expected: pa.Table, name: str
) -> None:
    with FaultProxy(server.url, MENDED[name]) as proxy:
        found = door(proxy.url, timeout=1.0).series(START, END, METRICS)
    assert bits(found) == bits(only(window(expected, START, END), METRICS))


LOGIN = Answer(200, b"<html>log in</html>", {"Content-Type": "text/html"})
BROKEN: dict[str, tuple[Fault, str, bool]] = {
    "500 for ever": (
        queries(lambda _, __: failure(500, "internal", "disk\nfull")),
        r"answered 500 Internal Server Error \(disk full\) \(4 tries\): check that it is up",
        True,
    ),
    "503 for ever": (queries(lambda _, __: Answer(503, b"")), r"answered 503 .*\(4 tries\)", True),
    "slow for ever": (queries(lambda _, real: slow(0.8, real)), r"no answer within 0\.3 s", True),
    "cut for ever": (queries(lambda _, real: cut(real, 0.9)), r"connection failed .*\(4 tries\)", True),
    "422 for ever": (
        queries(lambda _, __: failure(422, "execution", "too many samples")),
        r"answered 422 .*too many samples.* s of it\): raise its query limits",
        False,
    ),
    "401": (queries(lambda _, __: Answer(401, b"no")), r"answered 401 Unauthorized \(no\): set a bearer token", False),
    "403": (queries(lambda _, __: Answer(403, b"")), r"answered 403 Forbidden: set a bearer token", False),
    "404": (queries(lambda _, __: Answer(404, b"")), r"answered 404 Not Found: check the URL", False),
    "400": (queries(lambda _, __: failure(400, "bad_data", "parse error")), r"answered 400 .*parse error", False),
    "warnings": (queries(lambda _, real: warned(real)), r"may be incomplete \(store eu-1 is down\)", True),
    "partial": (
        queries(lambda _, __: Answer(200, b'{"status":"success","isPartial":true,"data":{"resultType":"matrix"}}')),
        r"may be incomplete \(isPartial\)",
        True,
    ),
    "error with 200": (
        queries(lambda _, __: Answer(200, b'{"status":"error","error":"gone"}')),
        "its answer is error.*gone",
        False,
    ),
    "a login page": (queries(lambda _, __: LOGIN), "answered with text/html: check that the URL is", False),
    "nothing": (queries(lambda _, __: Answer(200, b"")), r"0 bytes is cut or garbled .*\(4 tries\)", True),
    "half a JSON": (queries(lambda _, __: Answer(200, b'{"status":"succ')), "15 bytes is cut or garbled", True),
    "another JSON": (queries(lambda _, __: Answer(200, b'["ok"]')), "not the query API's", False),
    "a scalar": (
        queries(lambda _, __: Answer(200, b'{"status":"success","data":{"resultType":"scalar","result":[1,"2"]}}')),
        "not the query API's",
        False,
    ),
    "garbled samples": (
        queries(
            lambda _, __: Answer(
                200,
                b'{"status":"success","data":{"resultType":"matrix","result":'
                b'[{"metric":{},"values":[[1790848800,"1"],[1790848815,"1x"]]}]}}',
            )
        ),
        "samples of A cannot be read",
        False,
    ),
    "histograms": (
        queries(
            lambda _, __: Answer(
                200,
                b'{"status":"success","data":{"resultType":"matrix","result":'
                b'[{"metric":{},"histograms":[[1790848800,{"count":"1"}]]}]}}',
            )
        ),
        "native histogram",
        False,
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_nothing_mends_is_a_clear_error(server: PrometheusServer, name: str) -> None:
    fault, reason, transient = BROKEN[name]
    with FaultProxy(server.url, fault) as proxy, pytest.raises(SourceError, match=reason) as caught:
        door(proxy.url, timeout=0.3).series(START, END, ["A"])
    assert caught.value.transient == transient
    assert str(caught.value).startswith(f"cluster c1: Prometheus at {proxy.url}: ")
    assert "\n" not in str(caught.value)


def test_permanent_errors_are_not_tried_again_and_ping_tells_them_too(server: PrometheusServer) -> None:
    with FaultProxy(server.url, queries(lambda _, __: Answer(401, b""))) as proxy:
        with pytest.raises(SourceError, match="answered 401"):
            door(proxy.url).series(START, END, ["A"])
        assert proxy.queries == 1
        with pytest.raises(SourceError, match="answered 401"):
            door(proxy.url).ping()


def test_an_answer_without_series_is_no_samples(server: PrometheusServer) -> None:
    with FaultProxy(
        server.url,
        queries(lambda _, __: Answer(200, b'{"status":"success","data":{"resultType":"matrix","result":[]}}')),
    ) as proxy:
        assert door(proxy.url).series(START, END, ["A"]).num_rows == 0


def test_a_body_that_trickles_in_is_given_up() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", free_port()))
        listener.listen()
        done = threading.Event()

        def trickle() -> None:
            listener.settimeout(0.1)
            head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
            while not done.is_set():
                try:
                    client, _ = listener.accept()
                except TimeoutError:
                    continue
                with client:
                    try:
                        client.recv(65536)
                        client.sendall(head)
                        while not done.wait(0.05):
                            client.sendall(b"1\r\n \r\n")
                    except OSError:
                        pass

        thread = threading.Thread(target=trickle)
        thread.start()
        try:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            before = time.monotonic()
            with pytest.raises(SourceError, match=r"no answer within 0\.4 s") as caught:
                door(url, timeout=0.4).series(START, END, ["A"])
            assert caught.value.transient
            assert time.monotonic() - before < 5
        finally:
            done.set()
            thread.join()


def test_nobody_listens() -> None:
    with pytest.raises(SourceError, match=r"connection failed \(.*refused.*\) \(2 tries\)") as caught:
        door(f"http://127.0.0.1:{free_port()}", attempts=2).series(START, END, ["A"])
    assert caught.value.transient


def test_a_name_that_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    with pytest.raises(
        SourceError, match=r"cluster c1: Prometheus at http://prometheus\.invalid: the connection failed"
    ) as caught:
        door("http://prometheus.invalid", attempts=1).ping()
    assert caught.value.transient


def test_one_metric_that_fails_fails_all(server: PrometheusServer) -> None:
    fault = queries(lambda r, real: failure(400, "bad_data", "no") if "B" in r.path else real())
    with FaultProxy(server.url, fault) as proxy, pytest.raises(SourceError, match="answered 400"):
        door(proxy.url).series(START, END, METRICS)


# --- who asks, and how


def guarded(secret: str) -> Fault:
    return lambda request, real: real() if request.headers.get("Authorization") == secret else Answer(401, b"")


@pytest.mark.parametrize(
    ("options", "user_info", "header"),
    [
        ({"bearer_token": "s3cret-t0ken"}, "", "Bearer s3cret-t0ken"),
        ({"username": "ana", "password": "s3crét"}, "", "Basic YW5hOnMzY3LDqXQ="),
        ({}, "ana:s3cr%C3%A9t@", "Basic YW5hOnMzY3LDqXQ="),
    ],
)
def test_credentials_are_sent_and_never_shown(
    server: PrometheusServer,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    options: dict[str, str],
    user_info: str,
    header: str,
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login other password other\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with FaultProxy(server.url, guarded(header)) as proxy:
        url = proxy.url.replace("//", f"//{user_info}")
        assert door(url, **options).series(START, END, ["A"]).num_rows == 2
        assert door(url, **options).ping().version
        with pytest.raises(SourceError, match="answered 401") as caught:
            door(proxy.url).series(START, END, ["A"])
        assert proxy.url in str(caught.value)
    with pytest.raises(SourceError) as refused:
        door(url, attempts=1, **options).series(START, END, ["A"])
    for text in (repr(door(url, **options)), str(refused.value)):
        assert "s3cr" not in text


def test_only_a_known_certificate_is_accepted(server: PrometheusServer, tmp_path: Path) -> None:
    certificate, key = own_certificate(tmp_path)
    with FaultProxy(server.url, lambda _, real: real(), (certificate, key)) as proxy:
        assert door(proxy.url, ca_file=certificate).series(START, END, ["A"]).num_rows == 2
        with pytest.raises(SourceError, match=r"certificate is not accepted \(.*\): set its CA file") as caught:
            door(proxy.url).series(START, END, ["A"])
        assert not caught.value.transient


def test_thanos_is_asked_for_raw_deduplicated_and_whole_data(server: PrometheusServer) -> None:
    with FaultProxy(server.url, lambda _, real: real()) as proxy:
        door(proxy.url, thanos=True, parameters={"engine": "thanos"}).series(START, END, ["A"])
        (path,) = {request.path.split("&timeout")[0].split("?")[0] for request in proxy.requests} - {"/metrics"}
        asked = [request.path for request in proxy.requests if request.path.startswith(path)]
    for wanted in (
        "dedup=true",
        "partial_response=false",
        "max_source_resolution=0s",
        "engine=thanos",
        "timeout=120000ms",
    ):
        assert all(wanted in one for one in asked)


def test_a_prefix_in_the_url_is_kept(server: PrometheusServer) -> None:
    def fault(request: Request, real: Real) -> Answer:
        assert request.path.startswith("/team/prom/")
        got = requests.get(server.url + request.path.removeprefix("/team/prom"), timeout=10)
        return Answer(got.status_code, got.content, {"Content-Type": got.headers["Content-Type"]})

    with FaultProxy(server.url, fault) as proxy:
        assert door(f"{proxy.url}/team/prom/").series(START, END, ["A"]).num_rows == 2


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"url": "prometheus:9090"}, "a Prometheus URL is like"),
        ({"url": "ftp://prometheus"}, "a Prometheus URL is like"),
        ({"url": "http://prometheus:port"}, "URL is malformed"),
        ({"url": "http://p", "bearer_token": "t", "username": "u"}, "not both"),
        ({"url": "http://p", "ca_file": Path("nowhere.pem")}, "CA file nowhere.pem is not there"),
    ],
)
def test_wrong_settings_are_refused_before_the_first_request(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=f"cluster c1: .*{reason}"):
        PrometheusDoor("c1", **options)


def test_a_prometheus_that_restarts_is_waited_for(
    dump_file: Path, expected: pa.Table, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    load_blocks(dump_file, tmp_path / "data")
    with PrometheusServer(tmp_path / "data") as server:
        server.stop()
        again = threading.Timer(2, server.start)
        again.start()
        patient = door(server.url, attempts=1, patience=60.0, backoff=0.1)
        table = patient.series(START, END, METRICS)
        again.join()
    assert bits(table) == bits(only(window(expected, START, END), METRICS))
    assert f"cluster c1: Prometheus at {server.url}: the connection failed" in caplog.text
    assert "asked again for up to" in caplog.text


def test_a_log_that_is_replayed_is_waited_out(
    server: PrometheusServer, expected: pa.Table, caplog: pytest.LogCaptureFixture
) -> None:
    """While Prometheus replays its log, it answers 503 without JSON."""
    ready = time.monotonic() + 1.5

    def replaying(_request: Request, real: Callable[[], Answer]) -> Answer:
        if time.monotonic() < ready:
            return Answer(503, b"Service Unavailable", {"Content-Type": "text/plain"})
        return real()

    with FaultProxy(server.url, replaying) as proxy:
        table = door(proxy.url, attempts=1, patience=30.0).series(START, END, METRICS)
    assert bits(table) == bits(only(window(expected, START, END), METRICS))
    assert "it answered 503 Service Unavailable" in caplog.text


def test_patience_ends_and_says_how_long_it_was() -> None:
    impatient = door(f"http://127.0.0.1:{free_port()}", attempts=1, patience=0.5)
    before = time.monotonic()
    with pytest.raises(SourceError, match=r"the connection failed .*tries in \d s\): check that it is up") as error:
        impatient.series(START, END, ["A"])
    assert error.value.transient
    assert 0.5 <= time.monotonic() - before < 20
