"""`make bench`: how fast, against what a transfer, a plain script and a plain aggregation of the same data cost.

All numbers come from one run on one machine; what counts are the ratios. `--gpus`, `--large` and `--hours` set the
sizes; the defaults take a few minutes on two cores, the sizes of docs/benchmarks.md are given there.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.bench import fleet, ledger
from tests.bench.measure import Measured, Stopwatch, measured

HOUR_MS = fleet.HOUR_MS


@dataclass(frozen=True)
class Line:
    """One row of the report."""

    what: str
    seconds: float
    peak_mib: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Ratio:
    """A figure that should hold, and whether it did."""

    what: str
    value: float
    limit: str
    holds: bool


def main() -> None:
    """Measure, print the report, and write it as JSON."""
    arguments = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    arguments.add_argument("--gpus", type=int, default=1000, help="GPUs of the fleet (default 1000)")
    arguments.add_argument("--large", type=int, default=0, help="GPUs of the large fleet, 0 leaves it out")
    arguments.add_argument("--hours", type=int, default=24, help="hours of the range run, of --gpus GPUs (default 24)")
    arguments.add_argument("--json", type=Path, help="write the figures to this file")
    arguments.add_argument("--naive", action=argparse.BooleanOptionalAction, default=True, help="also the plain script")
    asked = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="finops-bench-") as folder:
        lines, ratios = run(asked, Path(folder))
    report(lines, ratios)
    if asked.json:
        facts = {
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
            "versions": {name: version(name) for name in ("dagster", "duckdb", "numpy", "pyarrow", "psycopg")},
            "sizes": {"gpus": asked.gpus, "large": asked.large, "hours": asked.hours},
            "lines": [asdict(line) for line in lines],
            "ratios": [asdict(ratio) for ratio in ratios],
        }
        asked.json.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def report(lines: list[Line], ratios: list[Ratio]) -> None:
    """The tables for a person."""
    print(f"\n{'':52}{'seconds':>10}{'peak MiB':>10}")
    for line in lines:
        peak = "" if line.peak_mib is None else f"{line.peak_mib:.0f}"
        print(f"{line.what:52}{line.seconds:10.3f}{peak:>10}  {line.note}")
    print(f"\n{'':52}{'measured':>10}{'limit':>16}")
    for ratio in ratios:
        print(f"{ratio.what:52}{ratio.value:10.2f}{ratio.limit:>16}  {'holds' if ratio.holds else 'MISSED'}")


def run(asked: argparse.Namespace, folder: Path) -> tuple[list[Line], list[Ratio]]:
    """All measurements, one after the other."""
    lines: list[Line] = []
    ratios: list[Ratio] = []
    _say(f"an hour of {asked.gpus} GPUs: writing it, loading it into Prometheus")
    measured(_write_open_metrics, asked.gpus, folder / "hour.om")
    with _prometheus(folder) as url:
        samples = asked.gpus * 4 * 240 * 0.99
        transfer = measured(_transfer, url)
        lines.append(
            Line("transfer of the raw samples (curl)", transfer.seconds, None, f"{samples / 1e6:.2f} M samples")
        )
        hour = measured(_hour, asked.gpus, url, folder / "hour", None)
        rate = f"{samples / hour.result['total'] / 1e6:.2f} M samples/s"
        lines += _stages("hour, Prometheus to booked events", hour, rate)
        limit = 4 * transfer.seconds + 1
        ratios.append(
            Ratio("hour / (4 x transfer + 1 s)", hour.result["total"] / limit, "1", hour.result["total"] <= limit)
        )
        ratios.append(Ratio("hour, peak memory in MiB", hour.peak_mib, "1024", hour.peak_mib <= 1024))
        dagster = measured(_through_dagster, asked.gpus, url, folder / "dagster")
        lines.append(Line("  the same through Dagster", dagster.seconds, dagster.peak_mib, "with its own bookkeeping"))
        if asked.naive:
            naive = measured(_naive, url, folder / "naive")
            lines.append(Line("plain script: api-client, pandas, to_sql", naive.result, naive.peak_mib))
            speed = naive.result / hour.result["total"]
            ratios.append(Ratio("plain script / hour", speed, "at least 10", speed >= 10))
    if asked.large:
        _say(f"an hour of {asked.large} GPUs, from landed Parquet")
        small = measured(_hour, asked.gpus, "", folder / "small", asked.gpus)
        large = measured(_hour, asked.large, "", folder / "large", asked.large)
        lines += _stages(f"hour of {asked.gpus}, landed", small) + _stages(f"hour of {asked.large}, landed", large)
        growth = large.result["total"] / small.result["total"]
        bound = 1.1 * asked.large / asked.gpus
        ratios.append(Ratio(f"{asked.large} GPUs / {asked.gpus} GPUs", growth, f"{bound:.0f}", growth <= bound))
        ratios.append(Ratio("large, peak memory in MiB", large.peak_mib, "4096", large.peak_mib <= 4096))
    if asked.hours:
        lines_of_range, ratios_of_range = _range(asked, folder)
        lines += lines_of_range
        ratios += ratios_of_range
    _say("a day of 10 GPUs, with and without Dagster")
    for name, work in (("engine", _day_without_dagster), ("through Dagster", _day_through_dagster)):
        day = measured(work, folder / name.split()[-1])
        lines.append(Line(f"24 hours of 10 GPUs, {name}", day.result, day.peak_mib))
    lines_of_cli, ratios_of_cli = _command_line(folder)
    return lines + lines_of_cli, ratios + ratios_of_cli


def _command_line(folder: Path) -> tuple[list[Line], list[Ratio]]:
    """How long a person waits: best of three, for the first one only warms the page cache."""
    from tests.databases import Databases

    _say("finops --help, and finops status beside a year of hours")
    with Databases(folder) as databases:
        url = databases.fresh()
        ledger.fill_a_year(databases.admin(url), 200_000)
        ledger.fill_a_year_of_hours(databases.admin(url))
        environment = {**os.environ, "EAI_DATABASE_URL": url, "FINOPS_HOME": str(folder / "status")}
        helped, told = (min(_finops(word, environment) for _ in range(3)) for word in ("--help", "status"))
    return [Line("finops --help", helped), Line("finops status, a year of two clusters", told)], [
        Ratio("finops --help, seconds", helped, "0.3", helped < 0.3),
        Ratio("finops status, seconds", told, "1", told < 1),
    ]


def _range(asked: argparse.Namespace, folder: Path) -> tuple[list[Line], list[Ratio]]:
    """A range of hours from landed Parquet to allocation, against one aggregation of the same files."""
    _say(f"{asked.hours} hours of {asked.gpus} GPUs: landing them")
    lake = folder / "range"
    third = max(asked.hours // 3, 1)
    measured(_land, asked.gpus, asked.hours, lake)
    aggregation = measured(_aggregate, lake)
    whole = measured(_allocate_range, asked.gpus, asked.hours, lake)
    part = measured(_allocate_range, asked.gpus, third, lake)
    note = f"{aggregation.result / 1e6:.1f} M readings"
    lines = [
        Line(
            f"{asked.hours} hours: one row a device and window (DuckDB)",
            aggregation.seconds,
            aggregation.peak_mib,
            note,
        )
    ]
    lines += _stages(f"{asked.hours} hours, landed Parquet to allocation", whole)
    lines.append(Line(f"{third} hours", part.seconds, part.peak_mib))
    ratio = whole.result["total"] / aggregation.seconds
    spread = abs(whole.peak_mib - part.peak_mib) / whole.peak_mib
    return lines, [
        Ratio("range / aggregation", ratio, "3", ratio <= 3),
        Ratio("range, peak memory in MiB", whole.peak_mib, "2048", whole.peak_mib <= 2048),
        Ratio(f"memory of {third} and {asked.hours} hours differs by", spread, "0.2", spread <= 0.2),
    ]


def _say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


def _stages(what: str, work: Measured, note: str = "") -> list[Line]:
    stages = [Line(f"  {name}", seconds) for name, seconds in work.result.items() if name != "total"]
    return [Line(what, work.result["total"], work.peak_mib, note), *stages]


def _write_open_metrics(gpus: int, path: Path) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(fleet.open_metrics(fleet.hour_series(gpus, fleet.START)))


def _prometheus(folder: Path) -> Any:
    from tests.services.prometheus_server import PrometheusServer, load_blocks

    load_blocks(folder / "hour.om", folder / "prometheus")
    (folder / "hour.om").unlink()
    return _Running(PrometheusServer(folder / "prometheus"))


class _Running:
    """A server for the length of a block; its address."""

    def __init__(self, server: Any) -> None:
        self._server = server

    def __enter__(self) -> str:
        self._server.start()
        return str(self._server.url)

    def __exit__(self, *_: object) -> None:
        self._server.stop()


def _transfer(url: str) -> None:
    """The same samples with curl, a request a metric."""
    at = (fleet.START + HOUR_MS) / 1000
    for metric in fleet.METRICS:
        subprocess.run(
            [
                *("curl", "-sf", "-o", os.devnull, "--get", f"{url}/api/v1/query"),
                *("--data-urlencode", f"query={metric}[1h]", "--data-urlencode", f"time={at}"),
            ],
            check=True,
        )


def _site(gpus: int, url: str, home: Path, series: Any = None, hours: int = 1) -> Any:
    """A site with its own database; the readings come from Prometheus, or are `series`."""
    from contextlib import ExitStack

    from finops_pipeline.accounting.config import AccountingConfig, CardLimit
    from finops_pipeline.resources.lake.store import Lake
    from finops_pipeline.resources.postgres.database import open_database
    from finops_pipeline.resources.prometheus.client import PrometheusDoor
    from finops_pipeline.resources.site import Site
    from finops_pipeline.resources.source import LiveSource
    from finops_pipeline.settings import load_settings
    from tests.doors import FileDoor

    stack = ExitStack()
    settings = load_settings({"FINOPS_HOME": str(home)})
    database = stack.enter_context(open_database(settings))
    database.load_platform(fleet.CLUSTER, fleet.records(gpus, hours))
    limits = {fleet.MODEL: CardLimit(Decimal(700), Decimal(80))}
    config = AccountingConfig(platform_tenant=fleet.PLATFORM, card_limits=limits)
    door = PrometheusDoor(fleet.CLUSTER, url) if url else FileDoor(series)
    now = fleet.START + hours * HOUR_MS + 600_000
    source = LiveSource({fleet.CLUSTER: door}, database, lambda: now)
    return stack, Site(Lake(settings.lake_folder), database, source, config)


def _hour(gpus: int, url: str, home: Path, landed: int | None) -> dict[str, float]:
    """Every stage of an hour but Dagster; seconds by stage. A small hour first warms the process, as a daemon's is."""
    _stages_of_an_hour(10, "", home / "warm", 10)
    return _stages_of_an_hour(gpus, url, home, landed)


def _stages_of_an_hour(gpus: int, url: str, home: Path, landed: int | None) -> dict[str, float]:
    from tests.bench.stages import Stages

    stack, site = _site(gpus, url, home, fleet.hour_series(gpus, fleet.START) if landed else None)
    stages = Stages(site, fleet.CLUSTER)
    watch, hour = Stopwatch(), fleet.START
    with stack:
        if landed:
            stages.land([hour])
        began = time.perf_counter()
        if not landed:
            watch.time("dcgm_series", stages.land, [hour])
        watch.time("platform_records", stages.read, [hour])
        watch.time("gpu_samples", stages.sample, [hour])
        watch.time("gpu_usage", stages.use, hour)
        watch.time("gpu_cost_allocation", stages.price, hour)
        watch.time("usage_events", stages.book, hour)
        watch.seconds["total"] = time.perf_counter() - began
    return watch.seconds


def _through_dagster(gpus: int, url: str, home: Path) -> int:
    import dagster as dg

    from finops_pipeline.commands.runner import run_hours

    stack, site = _site(gpus, url, home)
    first = datetime.fromtimestamp(fleet.START / 1000, UTC)
    with stack, dg.DagsterInstance.ephemeral() as instance:
        return run_hours(site, instance, first, first + timedelta(hours=1)).booked


def _small_day(home: Path) -> tuple[Any, Any, list[int]]:
    import pyarrow as pa

    span = [fleet.START + number * HOUR_MS for number in range(24)]
    stack, site = _site(10, "", home, pa.concat_tables([fleet.hour_series(10, hour) for hour in span]), 24)
    return stack, site, span


def _day_without_dagster(home: Path) -> float:
    """Seconds; what is left of it is Dagster's bookkeeping, which does not depend on the number of GPUs."""
    from tests.bench.stages import Stages

    stack, site, span = _small_day(home)
    stages = Stages(site, fleet.CLUSTER)
    with stack:
        began = time.perf_counter()
        stages.land(span)
        stages.read(span)
        stages.sample(span)
        for hour in span:
            stages.use(hour)
            stages.price(hour)
            stages.book(hour)
        return time.perf_counter() - began


def _day_through_dagster(home: Path) -> float:
    import dagster as dg

    from finops_pipeline.commands.runner import run_hours

    stack, site, _ = _small_day(home)
    first = datetime.fromtimestamp(fleet.START / 1000, UTC)
    with stack, dg.DagsterInstance.ephemeral() as instance:
        began = time.perf_counter()
        run_hours(site, instance, first, first + timedelta(hours=24))
        return time.perf_counter() - began


def _naive(url: str, folder: Path) -> float:
    """Seconds of what a user would write: range queries into data frames, resample, interpolate, group, to_sql.

    Windows, usage by pod and its price go to Postgres as `gpu_samples`, `gpu_usage` and `gpu_cost_allocation`; no gap is
    flagged, no lifecycle is looked at.
    """
    import pandas as pd
    import sqlalchemy as sa
    from prometheus_api_client import MetricRangeDataFrame, PrometheusConnect

    from tests.databases import Databases

    folder.mkdir()
    with Databases(folder) as databases:
        engine = sa.create_engine(databases.admin(databases.fresh()).replace("postgresql://", "postgresql+psycopg://"))
        began = time.perf_counter()
        connection = PrometheusConnect(url=url, disable_ssl=True)
        start = datetime.fromtimestamp(fleet.START / 1000)  # noqa: DTZ006 - the client wants local time
        keys = ["UUID", "modelName", "exported_pod"]
        windows = []
        for metric in fleet.METRICS:
            found = connection.get_metric_range_data(
                metric, start_time=start, end_time=start + timedelta(hours=1), chunk_size=timedelta(hours=1)
            )
            frame = MetricRangeDataFrame(found)
            frame.index = pd.to_datetime(frame.index, unit="s")
            mean = frame.fillna("").groupby(keys)["value"].resample("15s").mean()
            filled = mean.groupby(level=keys, group_keys=False).apply(lambda one: one.interpolate())
            windows.append(filled.rename(metric))
        table = pd.concat(windows, axis=1).reset_index()
        with engine.begin() as database:
            table.to_sql("gpu_samples", database, index=False)
            table["gpu_seconds"] = 15
            usage = table.groupby(["exported_pod", "modelName"]).agg(
                {**dict.fromkeys(fleet.METRICS, "mean"), "gpu_seconds": "sum"}
            )
            usage.reset_index().to_sql("gpu_usage", database, index=False)
            usage["amount"] = usage["gpu_seconds"] / 3600 * 2.10
            usage.reset_index().to_sql("gpu_cost_allocation", database, index=False)
        return time.perf_counter() - began


def _land(gpus: int, hours: int, folder: Path) -> None:
    """Hours of readings as `dcgm_series` lands them, and the records of each."""
    from finops_pipeline.resources.lake.readings import write_readings
    from finops_pipeline.resources.series import window
    from tests.bench.stages import Stages

    one = fleet.hour_series(gpus, fleet.START)
    stack, site = _site(gpus, "", folder, one, hours)
    stages = Stages(site, fleet.CLUSTER)
    with stack:
        span = [fleet.START + number * HOUR_MS for number in range(hours)]
        for hour in span:
            readings = one if hour == fleet.START else fleet.hour_series(gpus, hour)
            write_readings(site.lake, site.config, fleet.CLUSTER, hour, window(readings, hour, hour + HOUR_MS))
        stages.read(span)


def _aggregate(folder: Path) -> int:
    """The least work that any answer needs: one row a device, metric and window, with its mean, file by file."""
    import duckdb

    connection = duckdb.connect()
    connection.execute("SET enable_progress_bar = false")
    readings = 0
    for file in sorted(folder.glob("lake/dcgm_series/*/*/data.parquet")):
        found = connection.execute(
            "WITH samples AS (SELECT labels['UUID'] AS device, metric, unnest(timestamps) AS ts, unnest(values) AS value"
            " FROM read_parquet(?))"
            " SELECT sum(n) FROM (SELECT device, metric, epoch_ms(ts) // 15000 AS w, avg(value) AS mean, count(*) AS n"
            " FROM samples GROUP BY ALL)",
            [str(file)],
        ).fetchone()
        readings += int(found[0]) if found else 0
    return readings


def _allocate_range(gpus: int, hours: int, folder: Path) -> dict[str, float]:
    """Landed Parquet to allocation, as the assets run it but without Dagster."""
    from tests.bench.stages import Stages

    stack, site = _site(gpus, "", folder, fleet.hour_series(1, fleet.START), hours)
    stages = Stages(site, fleet.CLUSTER)
    watch = Stopwatch()
    with stack:
        span = [fleet.START + number * HOUR_MS for number in range(hours)]
        began = time.perf_counter()
        watch.time("gpu_samples", stages.sample, span)
        for hour in span:
            watch.time("gpu_usage", stages.use, hour)
            watch.time("gpu_cost_allocation", stages.price, hour)
        watch.seconds["total"] = time.perf_counter() - began
    return watch.seconds


def _finops(word: str, environment: dict[str, str]) -> float:
    began = time.perf_counter()
    subprocess.run(
        [Path(sys.executable).with_name("finops"), word], check=True, stdout=subprocess.DEVNULL, env=environment
    )
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
