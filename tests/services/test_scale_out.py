"""Two code locations, each with a cluster of its own, in one Dagster, at once on one ledger.

What comes of it is what each cluster alone gives, byte for byte, in one audit log and one statement.
"""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Any

import dagster as dg
import pytest

from finops_pipeline.commands.audit import verify
from finops_pipeline.commands.runner import INSTANCE_SETTINGS, run_hours
from finops_pipeline.definitions import HOURLY, KEY, PREFIX
from finops_pipeline.resources.anchor import Anchor
from finops_pipeline.resources.bundle.files import Bundle
from finops_pipeline.resources.postgres.balance import trial_balance
from finops_pipeline.resources.postgres.client import Database
from finops_pipeline.resources.postgres.copy import with_constant
from finops_pipeline.resources.postgres.published import read_statement
from finops_pipeline.resources.site import open_site
from finops_pipeline.settings import load_settings
from tests.databases import Databases
from tests.services.conftest import Finops
from tests.services.dagster_server import CodeServer, DagsterServer
from tests.services.prometheus_server import Answer, Fault, FaultProxy, PrometheusServer, Request, load_blocks

CASES = {"dc1-gpu": "01-shared-server-70-30", "dc2-gpu": "04-gap-across-the-hour"}
"""Cluster -> the case whose readings and records it has."""
HOURS = [datetime(2026, 10, 1, hour, tzinfo=UTC) for hour in (10, 11)]
HOUR = timedelta(hours=1)
MONTH = "2026-10"
PLATFORM = "ff000000-0000-4000-8000-0000000000ff"
RANGE = {
    "dagster/asset_partition_range_start": f"{HOURS[0]:{KEY}}",
    "dagster/asset_partition_range_end": f"{HOURS[-1]:{KEY}}",
}


@dataclass(frozen=True)
class Cluster:
    """A cluster with its own Prometheus, and the settings of the code location that accounts for it."""

    name: str
    folder: Path
    bundle: Bundle
    prometheus_url: str

    def settings(self, database_url: str, home: str = "home") -> dict[str, str]:
        return {
            "FINOPS_HOME": str(self.folder / home),
            "EAI_DATABASE_URL": database_url,
            "FINOPS_PROMETHEUS_URLS": f"{self.name}={self.prometheus_url}",
            "FINOPS_PLATFORM_TENANT": PLATFORM,
            "FINOPS_CONFIG": str(self.folder / "accounting.toml"),
            PREFIX: self.name,
            "FINOPS_DEFAULT_CLUSTER": "dc1-gpu",
        }


@dataclass(frozen=True)
class Deployment:
    """One Dagster with a code location for each cluster, all on one database."""

    server: DagsterServer
    clusters: Sequence[Cluster]
    database_url: str
    database: Database
    meeting: Meeting


class Meeting:
    """Holds the first readings of each cluster back until the others have been asked too: then both runs are at it."""

    def __init__(self) -> None:
        self.asked = {name: Event() for name in CASES}
        self.late: set[str] = set()

    def fault(self, name: str) -> Fault:
        def answer(_request: Request, real: Callable[[], Answer]) -> Answer:
            self.asked[name].set()
            if not all(event.wait(60) for event in self.asked.values()):
                self.late.add(name)
            return real()

        return answer


@contextmanager
def cluster_of(name: str, case: Path, folder: Path, meeting: Meeting) -> Iterator[Cluster]:
    folder.mkdir()
    text = (case / "bundle.toml").read_text()
    (folder / "accounting.toml").write_text(text[text.index("\n[") :])
    load_blocks(case / "dcgm.om.gz", folder / "prometheus")
    with (
        PrometheusServer(folder / "prometheus") as prometheus,
        FaultProxy(prometheus.url, meeting.fault(name)) as proxy,
    ):
        yield Cluster(name, folder, Bundle.open(case), proxy.url)


def record(database_url: str, clusters: Sequence[Cluster]) -> None:
    """What the platforms of the clusters write: rows that name their cluster, and policies for all."""
    database = Database(database_url)
    with database.transaction() as connection:
        for cluster in clusters:
            for name, rows in cluster.bundle.platform().items():
                here = with_constant(rows, "cluster", cluster.name)
                match name:
                    case "allocation_policies":
                        database.add_policies(connection, rows.to_pylist(), name)
                    case "token_usage":
                        events = with_constant(with_constant(here, "usage_type", "llm"), "source", "gateway")
                        database.copy(connection, "usage_events", events)
                    case _:
                        database.copy(connection, name, here)
    database.close()


@pytest.fixture(scope="module")
def deployment(cases: Path, databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder, url = tmp_path_factory.mktemp("scale-out"), databases.fresh()
    home = folder / "dagster"
    home.mkdir()
    shutil.copyfile(INSTANCE_SETTINGS, home / "dagster.yaml")
    with dg.DagsterInstance.from_config(str(home)):
        """Made before anybody uses it: two processes that create its tables at once would fail each other."""
    meeting = Meeting()
    with ExitStack() as stack:
        clusters = [
            stack.enter_context(cluster_of(name, cases / case, folder / name, meeting)) for name, case in CASES.items()
        ]
        record(url, clusters)
        code = [stack.enter_context(CodeServer(home, cluster.settings(url))) for cluster in clusters]
        servers = [
            {"grpc_server": {"host": "127.0.0.1", "port": server.port, "location_name": cluster.name}}
            for server, cluster in zip(code, clusters, strict=True)
        ]
        (home / "workspace.yaml").write_text(json.dumps({"load_from": servers}))
        for location in code:
            location.wait()
        server = stack.enter_context(DagsterServer(home, {}, load=["-w", str(home / "workspace.yaml")]))
        server.wait()
        database = Database(url)
        stack.callback(database.close)
        yield Deployment(server, clusters, url, database, meeting)
    for process in (*code, server):
        assert process.processes() == []


def launch(server: DagsterServer, location: str, job: str, tags: dict[str, str]) -> str:
    answer = server.ask(
        """mutation($params: ExecutionParams!) { launchRun(executionParams: $params) {
            __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }""",
        params={
            "selector": {
                "repositoryLocationName": location,
                "repositoryName": "__repository__",
                "jobName": job,
            },
            "executionMetadata": {"tags": [{"key": key, "value": value} for key, value in tags.items()]},
        },
    )["launchRun"]
    assert answer["__typename"] == "LaunchRunSuccess", answer
    return str(answer["run"]["runId"])


def finished(server: DagsterServer, runs: Sequence[str], seconds: float = 90) -> list[dict[str, Any]]:
    """The runs once all are over; each a success."""
    deadline = time.monotonic() + seconds
    while True:
        found: list[dict[str, Any]] = server.ask(
            """query($ids: [String!]) { runsOrError(filter: {runIds: $ids}) {
                ... on Runs { results { runId status startTime endTime } } } }""",
            ids=list(runs),
        )["runsOrError"]["results"]
        if all(run["endTime"] for run in found):
            break
        assert time.monotonic() < deadline, f"{found}: {server.log.read_text()[-3000:]}"
        time.sleep(0.3)
    assert [run["status"] for run in found] == ["SUCCESS"] * len(runs), errors(server, runs)
    return found


def errors(server: DagsterServer, runs: Sequence[str]) -> list[str]:
    """What the steps of the runs failed with."""
    found = [
        server.ask(
            """query($id: ID!) { logsForRun(runId: $id) { ... on EventConnection { events {
                ... on ExecutionStepFailureEvent { error { message causes { message } } }
                ... on RunFailureEvent { message } } } } }""",
            id=run,
        )["logsForRun"]["events"]
        for run in runs
    ]
    return [str(event) for events in found for event in events if event]


def launched(deployment: Deployment, job: str, tags: dict[str, str]) -> list[dict[str, Any]]:
    """The job of every location, launched together, once all are over."""
    server = deployment.server
    return finished(server, [launch(server, cluster.name, job, tags) for cluster in deployment.clusters])


@pytest.fixture(scope="module")
def first(deployment: Deployment) -> list[dict[str, Any]]:
    """The runs of the hours, and after them those of the month."""
    found = launched(deployment, "hourly", RANGE)
    launched(deployment, "monthly", {"dagster/partition": f"{MONTH}-01"})
    return found


@dataclass(frozen=True)
class Alone:
    """What a cluster gives that has a ledger of its own."""

    documents: list[str]
    hours: list[tuple[Any, ...]]
    statement: dict[str, Any]


@pytest.fixture(scope="module")
def alone(deployment: Deployment, databases: Databases) -> dict[str, Alone]:
    found = {}
    for cluster in deployment.clusters:
        url = databases.fresh()
        record(url, deployment.clusters)
        shared = {PREFIX, "FINOPS_DEFAULT_CLUSTER"}
        settings = {name: text for name, text in cluster.settings(url, "alone").items() if name not in shared}
        with open_site(load_settings(settings)) as site, dg.DagsterInstance.ephemeral() as instance:
            run_hours(site, instance, HOURS[0], HOURS[-1] + HOUR)
            documents, hours = documents_of(site.database, cluster.name), hours_of(site.database, cluster.name)
            found[cluster.name] = Alone(documents, hours, read_statement(site.database, MONTH))
    return found


def documents_of(database: Database, cluster: str) -> list[str]:
    """The events of a cluster in the order in which they were booked."""
    rows = database.query(
        "SELECT document, content_sha256 FROM eai.usage_events WHERE usage_type <> 'llm' AND cluster = %s"
        " AND period_start = ANY(%s) ORDER BY seq",
        (cluster, HOURS),
    ).to_pylist()
    return [f"{row['content_sha256']} {row['document']}" for row in rows]


def hours_of(database: Database, cluster: str) -> list[tuple[Any, ...]]:
    rows = database.query(
        "SELECT hour, provisional, unpriced, quarantined, input_fingerprint FROM eai.hour_runs"
        " WHERE cluster = %s AND hour = ANY(%s) ORDER BY hour",
        (cluster, HOURS),
    ).to_pylist()
    return [tuple(row.values()) for row in rows]


def test_no_asset_is_another_location_s(deployment: Deployment) -> None:
    """Equal keys would be one asset to Dagster, which then refuses to launch it."""
    keys = [{"path": [cluster.name, *asset.key.path]} for cluster in deployment.clusters for asset in HOURLY]
    answer = deployment.server.ask(
        """query($keys: [AssetKeyInput!]!) {
            assetNodeDefinitionCollisions(assetKeys: $keys) { assetKey { path } }
            assetNodes(assetKeys: $keys) { assetKey { path } repository { location { name } } } }""",
        keys=keys,
    )
    assert answer["assetNodeDefinitionCollisions"] == []
    places = [(node["repository"]["location"]["name"], node["assetKey"]["path"]) for node in answer["assetNodes"]]
    assert len(places) == len(CASES) * len(HOURLY)
    assert all(path[0] == location for location, path in places)


def test_both_book_at_once_what_each_books_alone(
    deployment: Deployment, first: list[dict[str, Any]], alone: dict[str, Alone]
) -> None:
    assert not deployment.meeting.late, "they did not run side by side"
    assert max(run["startTime"] for run in first) < min(run["endTime"] for run in first)
    for cluster in CASES:
        assert len(hours_of(deployment.database, cluster)) == len(HOURS)
        assert hours_of(deployment.database, cluster) == alone[cluster].hours
        assert documents_of(deployment.database, cluster) == alone[cluster].documents
        assert alone[cluster].documents


def test_the_statement_has_both(deployment: Deployment, first: list[dict[str, Any]], alone: dict[str, Alone]) -> None:
    """Its money is that of the ledger; rounded line by line (A30), it need not be the sum of two statements."""
    lines = seconds_of(read_statement(deployment.database, MONTH))
    parts = [seconds_of(alone[cluster].statement) for cluster in CASES]
    assert all(parts)
    assert lines == parts[0] + parts[1]
    assert [proof for proof in trial_balance(deployment.database, MONTH) if not proof.holds] == []


def seconds_of(statement: dict[str, Any]) -> Counter[tuple[str, str]]:
    """GPU-milliseconds of each tenant and deployment."""
    found: Counter[tuple[str, str]] = Counter()
    for item in statement["items"]:
        found[item["tenant_id"], item["deployment_id"]] += int(item["gpu_seconds"] * 1000)
    return found


def test_the_audit_log_is_one_chain_and_each_location_s_anchor_follows_it(
    deployment: Deployment, first: list[dict[str, Any]], tmp_path: Path
) -> None:
    one, other = deployment.clusters
    done = Finops(one.folder / "home", one.settings(deployment.database_url))("audit", "verify", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["result"] == "intact"
    anchored = Database(deployment.database_url, anchor=Anchor(other.folder / "home" / "audit.anchor"))
    found = verify(anchored)
    anchored.close()
    assert found.worst is None
    assert found.chain.entries >= 1 + len(CASES) * len(HOURS)


def test_a_second_launch_books_nothing(deployment: Deployment, first: list[dict[str, Any]]) -> None:
    before = {cluster: documents_of(deployment.database, cluster) for cluster in CASES}
    launched(deployment, "hourly", RANGE)
    assert {cluster: documents_of(deployment.database, cluster) for cluster in CASES} == before


def test_each_location_s_schedule_looks_at_its_own_hours(deployment: Deployment, first: list[dict[str, Any]]) -> None:
    """The hour after the first two, computed by one location, is still to be done for the other."""
    after = HOURS[-1] + HOUR
    one, other = deployment.clusters
    server = deployment.server
    finished(server, [launch(server, one.name, "hourly", {"dagster/partition": f"{after:{KEY}}"})])
    assert asked(server, one.name, after) == []
    assert asked(server, other.name, after) == [f"{after:{KEY}}"]


def asked(server: DagsterServer, location: str, hour: datetime) -> list[str]:
    """The hours that the schedule of a location asks for at its tick after `hour`."""
    result = server.ask(
        """mutation($of: ScheduleSelector!, $at: Float) { scheduleDryRun(selectorData: $of, timestamp: $at) {
            ... on DryRunInstigationTick { evaluationResult { error { message }
              runRequests { tags { key value } } } } } }""",
        of={
            "repositoryLocationName": location,
            "repositoryName": "__repository__",
            "scheduleName": "hourly_schedule",
        },
        at=(hour + HOUR + timedelta(minutes=10)).timestamp(),
    )["scheduleDryRun"]["evaluationResult"]
    assert result["error"] is None, result
    tags = [{tag["key"]: tag["value"] for tag in request["tags"]} for request in result["runRequests"] or []]
    return [tag["dagster/partition"] for tag in tags]
