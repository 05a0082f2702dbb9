"""What minutes of DCGM series tell about the exporters, scrapes and labels behind them: the judgements of `finops doctor`.

Each check looks at one thing that has been seen to go wrong on real clusters (A7-A11, A19) and says what it saw and what
to set. What belongs here: judging. What does not: asking servers and printing (`finops_pipeline.doctor`), and the rules
themselves, which are used as they are (`readings`, `around`), so that the doctor sees what the accounting sees.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from finops_pipeline.accounting.around import MAX_SCRAPE_SECONDS, combined_utilization
from finops_pipeline.accounting.arrays import Column, Ints, ints, texts, whole
from finops_pipeline.accounting.config import FINE, PERCENT, RATIO, AccountingConfig, Quantity
from finops_pipeline.accounting.readings import NO_LABELS, HourReadings, SeriesColumns, read_hour

BUSY: Final = RATIO * FINE // 20
"""Mean utilization above which a device without a workload label is worth a look: 5 %."""
SHOWN: Final = 3
"""Examples named in a remark."""
MILLISECONDS: Final = 1000
STILL_THERE_MS: Final = 60_000
"""A device is not called silent before 2.5 times this long."""
JOB_LABEL: Final = "hpc_job"

_COUNTERS: Final = "in the counters file of dcgm-exporter (-f)"
_NEEDS: Final[tuple[tuple[str, tuple[Quantity, ...], str, str], ...]] = (
    (
        "utilization",
        (Quantity.UTILIZATION, Quantity.UTILIZATION_COARSE),
        "active seconds stay null",
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
    ),
    ("memory", (Quantity.MEMORY,), "memory stays null", "DCGM_FI_DEV_FB_USED"),
    (
        "energy",
        (Quantity.ENERGY, Quantity.POWER),
        "energy is modelled from [class_watts], or null",
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION and DCGM_FI_DEV_POWER_USAGE",
    ),
)
_UNLIKE: Final = re.compile(r"limit|violation|mgmt|enforced|percent|free|total_time|state|cap$|throttl", re.IGNORECASE)
_LIKELY: Final[tuple[tuple[re.Pattern[str], Quantity, int], ...]] = tuple(
    (re.compile(pattern, re.IGNORECASE), quantity, factor)
    for pattern, quantity, factor in (
        (r"gr_engine|gpu_active", Quantity.UTILIZATION, RATIO),
        (r"gpu_util", Quantity.UTILIZATION_COARSE, PERCENT),
        (r"fb_used|framebuffer_used|memory_used", Quantity.MEMORY, 1024),
        (r"energy", Quantity.ENERGY, 1),
        (r"power", Quantity.POWER, 1000),
    )
)
_REPLICA: Final = re.compile(r"replica|^prometheus$")


class Level(StrEnum):
    """How much a remark matters."""

    OK = "ok"
    """as it should be, or only worth knowing"""
    WARN = "warn"
    """the pipeline runs, but a number will be estimated, null or attributed otherwise than meant"""
    FAIL = "fail"
    """the pipeline cannot run, or what it computes would be wrong"""


@dataclass(frozen=True)
class Remark:
    """One thing that the doctor looked at."""

    level: Level
    subject: str
    seen: str
    remedy: str = ""
    """what to set, and where; empty where nothing needs to be done"""
    where: str = ""
    """the system: `settings`, a cluster, `Postgres`, `lake`"""


@dataclass(frozen=True)
class SeriesDiagnosis:
    remarks: list[Remark]
    models: frozenset[str]
    """the platform's names of the models that were seen"""


def likely_quantity(metric: str) -> tuple[Quantity, int] | None:
    """What an unknown DCGM metric probably tells, by its name, and the factor if its unit is DCGM's usual one."""
    if _UNLIKE.search(metric):
        return None
    return next(((quantity, factor) for pattern, quantity, factor in _LIKELY if pattern.search(metric)), None)


def diagnose_series(
    series: pa.Table, start: int, end: int, names: Collection[str], config: AccountingConfig
) -> SeriesDiagnosis:
    """Judge the series (DCGM_SERIES) of `[start, end)`, at most an hour, epoch ms.

    `names` are the names of all DCGM metrics that are there, configured or not; `series` has the samples of those that
    are configured and may have those of others.
    """
    known = [name for name in names if name in config.metrics]
    if not known:
        return SeriesDiagnosis([_nothing(names, start, end)], frozenset())
    seen = _Seen.of(series, start, end, config)
    remarks = [_without_uuid(seen)]
    if len(seen.hour.devices):
        checks = (
            _devices,
            _quantities,
            _conventions,
            _nodes,
            _workload_labels,
            _unlabelled,
            _jobs,
            _scrapes,
            _silent,
            _duplicates,
            _instances,
            _sharing,
            _limits,
            _rejected,
        )
        remarks += [remark for check in checks for remark in check(seen)]
        remarks.append(_unused(seen, names))
    return SeriesDiagnosis(
        [remark for remark in remarks if remark is not None], frozenset(seen.hour.devices.model.tolist())
    )


@dataclass(frozen=True)
class _Row:
    """One series."""

    metric: str
    labels: Mapping[str, str]
    key: str
    """of its device; empty without a uuid"""
    board: str
    workload: str | None
    first: int
    last: int
    samples: int

    @property
    def read(self) -> bool:
        return bool(self.key) and self.samples > 0


@dataclass(frozen=True)
class _Seen:
    """What all checks look at."""

    rows: list[_Row]
    hour: HourReadings
    start: int
    end: int
    config: AccountingConfig
    by_device: Mapping[str, list[_Row]]
    interval: list[int | None]
    """commonest seconds between the instants of each device; None with fewer than two distances"""
    usual_ms: Ints
    """of each device: what A11 takes for its scrape interval"""

    @staticmethod
    def of(series: pa.Table, start: int, end: int, config: AccountingConfig) -> _Seen:
        rows = _rows(series, config)
        by_device: dict[str, list[_Row]] = defaultdict(list)
        for row in rows:
            if row.read and row.metric in config.metrics:
                by_device[row.key].append(row)
        hour = read_hour(series, start, config)
        interval = _intervals(hour)
        floor = config.window_seconds
        usual = [min(max(seconds or 0, floor), max(MAX_SCRAPE_SECONDS, floor)) for seconds in interval]
        return _Seen(
            rows, hour, start, end, config, by_device, interval, np.array(usual, dtype=np.int64) * MILLISECONDS
        )

    @property
    def used(self) -> Iterable[_Row]:
        return (row for rows in self.by_device.values() for row in rows)

    @property
    def minutes(self) -> str:
        return _minutes(self.end - self.start)


def _rows(series: pa.Table, config: AccountingConfig) -> list[_Row]:
    if not len(series):
        return []
    columns = SeriesColumns.of(series, config)
    lists = whole(series["timestamps"])
    at, counts = ints(lists.flatten()), ints(lists.value_lengths())
    stop = np.cumsum(counts)
    labels: Column = whole(series["labels"])
    return [
        _Row(
            metric=columns.metric[row],
            labels=dict(pairs),
            key=columns.key[row] if columns.uuid[row] else "",
            board=columns.uuid[row],
            workload=columns.label[row],
            first=int(at[end - count]) if count else 0,
            last=int(at[end - 1]) if count else 0,
            samples=count,
        )
        for row, (pairs, count, end) in enumerate(zip(labels.to_pylist(), counts.tolist(), stop.tolist(), strict=True))
    ]


def _intervals(hour: HourReadings) -> list[int | None]:
    bounds = np.searchsorted(hour.instant_device, np.arange(len(hour.devices) + 1))
    found: list[int | None] = []
    for first, past in pairwise(bounds.tolist()):
        seconds = np.rint(np.diff(hour.instant_at[first:past]) / MILLISECONDS).astype(np.int64)
        values, counts = np.unique(seconds[seconds > 0], return_counts=True)
        found.append(int(values[np.argmax(counts)]) if counts.sum() > 1 else None)
    return found


def _nothing(names: Collection[str], start: int, end: int) -> Remark:
    others = sorted(names)
    guess = next((name for name in others if likely_quantity(name)), None)
    return Remark(
        Level.FAIL,
        "metrics",
        f"no DCGM metric that is configured has a sample in {_minutes(end - start)}"
        + (f"; other DCGM metrics are there: {_listed(others)}" if others else ", and none under another name"),
        _metric_entry(guess)
        if guess
        else "scrape dcgm-exporter with this Prometheus (see its /targets page), or name the right one in"
        " FINOPS_PROMETHEUS_URLS",
    )


def _metric_entry(name: str) -> str:
    """The line of FINOPS_CONFIG that would make a metric count."""
    found = likely_quantity(name)
    if found is None:
        return ""
    quantity, factor = found
    return f'in FINOPS_CONFIG: [metrics] {name} = {{quantity = "{quantity.name.lower()}", factor = {factor}}}'


def _without_uuid(seen: _Seen) -> Remark | None:
    lost = [row for row in seen.rows if not row.key and row.samples and row.metric in seen.config.metrics]
    if not lost:
        return None
    carriers = Counter(name for row in lost for name, value in row.labels.items() if value.startswith(("GPU-", "MIG-")))
    remedy = "let the exporter write a label UUID: a device cannot be told by its index (A7)"
    if carriers:
        names = [*seen.config.labels.uuid, carriers.most_common(1)[0][0]]
        remedy = f"in FINOPS_CONFIG: [labels] uuid = {_toml_list(names)}"
    return Remark(
        Level.FAIL if not seen.by_device else Level.WARN,
        "uuid",
        f"{_count(len(lost), 'series')} of {_listed(sorted({row.metric for row in lost}))} without a uuid"
        f" ({', '.join(seen.config.labels.uuid)}): they are left out",
        remedy,
    )


def _devices(seen: _Seen) -> Iterable[Remark]:
    models = Counter(seen.hour.devices.model.tolist())
    yield Remark(
        Level.OK,
        "devices",
        f"{_count(len(seen.hour.devices), 'device')} on {_count(len(seen.hour.boards), 'board')}: "
        + ", ".join(f"{count} x {model or '(no modelName)'}" for model, count in sorted(models.items())),
    )
    if models.get(""):
        yield Remark(
            Level.WARN,
            "models",
            f"{_count(models[''], 'device')} without a model ({', '.join(seen.config.labels.model)})",
            "in FINOPS_CONFIG: [labels] model = [the label that has it]",
        )


def _quantities(seen: _Seen) -> Iterable[Remark]:
    """Which metric each quantity comes from, and the devices that have none (A9)."""
    for what, quantities, otherwise, metrics in _NEEDS:
        of_board = what == "energy"
        owners = [str(owner) for owner in (seen.hour.boards if of_board else seen.hour.devices.key)]
        with_reading = {int(owner) for q in quantities for owner in np.unique(seen.hour.values[q].owner)}
        without = [owner for index, owner in enumerate(owners) if index not in with_reading]
        sources = _sources(seen, quantities, of_board=of_board)
        if sources:
            yield Remark(
                Level.OK,
                what,
                ", ".join(f"{name} ({_count(count, 'board' if of_board else 'device')})" for name, count in sources),
            )
        if without:
            yield Remark(
                Level.WARN,
                what,
                f"{len(without)} of {_count(len(owners), 'board' if of_board else 'device')} without a valid reading of"
                f" {what} ({_listed(without)}): {otherwise}",
                _missing_remedy(seen, quantities, set(without), metrics),
            )
    if not len(seen.hour.values[Quantity.ENERGY].owner) and len(seen.hour.values[Quantity.POWER].owner):
        yield Remark(
            Level.WARN,
            "energy",
            "there is power but no energy counter: energy in a gap is estimated instead of read from the counter",
            f"export DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION {_COUNTERS}",
        )


def _sources(seen: _Seen, quantities: tuple[Quantity, ...], *, of_board: bool) -> list[tuple[str, int]]:
    found: dict[str, set[str]] = defaultdict(set)
    for row in seen.used:
        if seen.config.metrics[row.metric][0] in quantities:
            found[row.metric].add(row.board if of_board else row.key)
    return [(metric, len(owners)) for metric, owners in sorted(found.items())]


def _missing_remedy(seen: _Seen, quantities: tuple[Quantity, ...], without: set[str], metrics: str) -> str:
    """An unknown metric of these very devices that looks right, or what to export."""
    for row in seen.rows:
        found = likely_quantity(row.metric) if row.metric not in seen.config.metrics else None
        if row.read and found is not None and found[0] in quantities and {row.key, row.board} & without:
            return f"{_metric_entry(row.metric)} (check its unit)"
    return f"export {metrics} {_COUNTERS}, or name what has it in FINOPS_CONFIG: [metrics]"


def _unused(seen: _Seen, names: Collection[str]) -> Remark | None:
    others = sorted(name for name in names if name not in seen.config.metrics and likely_quantity(name))
    if not others:
        return None
    return Remark(
        Level.OK,
        "other metrics",
        f"not used, though of the kind: {_listed(others, len(others))}",
        f"only if it shall count: {_metric_entry(others[0])}",
    )


def _conventions(seen: _Seen) -> Iterable[Remark]:
    """Which generations of exporters wrote this, by names and labels."""
    generations: dict[str, set[str]] = defaultdict(set)
    for row in seen.used:
        generations[_generation(row)].add(row.board)
    drivers = sorted({driver for row in seen.used if (driver := row.labels.get("DCGM_FI_DRIVER_VERSION"))})
    told = ", ".join(f"{name} ({_count(len(boards), 'board')})" for name, boards in sorted(generations.items()))
    yield Remark(
        Level.OK, "exporters", f"names and labels of {told}" + (f"; driver {_listed(drivers, 5)}" if drivers else "")
    )


def _generation(row: _Row) -> str:
    if row.metric.startswith("dcgm_"):
        return "dcgm-exporter 1.x (--use-old-namespace)"
    if "hostname" in row.labels:
        return "dcgm-exporter after 4.8.2 (hostname)"
    if "Hostname" in row.labels:
        return f"dcgm-exporter {'3.3.7 to 4.8.2' if 'pci_bus_id' in row.labels else 'before 3.3.7'} (Hostname)"
    return "no known dcgm-exporter (no host label)"


def _nodes(seen: _Seen) -> Iterable[Remark]:
    nodes = Counter(seen.hour.devices.node.tolist())
    pods = sorted(node for node in nodes if seen.config.labels.exporter_pattern in node)
    if pods:
        better = [name for name in ("node", "kubernetes_node") if any(name in row.labels for row in seen.used)]
        yield Remark(
            Level.WARN,
            "nodes",
            f"{_listed(pods)} is the exporter's pod, not a node: the node's name changes whenever the pod does",
            f"in FINOPS_CONFIG: [labels] node = {_toml_list([*better, 'Hostname', 'hostname', 'instance'])}"
            if better
            else "add the node's name as a label (relabelling of the scrape job, or a newer exporter)",
        )
    if nodes.get(""):
        yield Remark(
            Level.WARN,
            "nodes",
            f"{_count(nodes[''], 'device')} without a node ({', '.join(seen.config.labels.node)})",
            "in FINOPS_CONFIG: [labels] node = [the label that has it]",
        )


def _workload_labels(seen: _Seen) -> Iterable[Remark]:
    """honorLabels, and whether the exporter's own pod is recognised (A8)."""
    exported = [row for row in seen.used if row.labels.get("exported_pod")]
    direct = [row for row in seen.used if row.workload is not None and not row.labels.get("exported_pod")]
    own_of_idle = [row for row in seen.used if row.workload is None and row.labels.get("pod")]
    if exported:
        yield Remark(
            Level.OK,
            "honorLabels",
            "false: the workload is in exported_pod, and pod is the exporter"
            + (
                f"; {_count(len(direct), 'series')} carry it in {_group_names(seen, direct)} as well (another job)"
                if direct
                else ""
            ),
        )
    elif direct:
        yield Remark(Level.OK, "honorLabels", f"true, or no clash: the workload is in {_group_names(seen, direct)}")
    if own_of_idle:
        pods = sorted({row.labels["pod"] for row in own_of_idle})
        yield Remark(
            Level.OK,
            "exporter's pod",
            f"{_listed(pods)} labels devices without a workload, and is recognised as the exporter",
        )
    yield from _strangers(seen, exported)


def _group_names(seen: _Seen, rows: list[_Row]) -> str:
    names = [group[1] for group in seen.config.labels.workload if any(row.labels.get(group[1]) for row in rows)]
    return ", ".join(names)


def _strangers(seen: _Seen, exported: list[_Row]) -> Iterable[Remark]:
    """Exporters whose pods are not recognised as such: an idle device would be charged to them."""
    surely = {
        (pod, container)
        for row in exported
        if (pod := row.labels.get("pod")) and not _own(seen, pod, container := row.labels.get("container", ""))
    }
    perhaps = {
        (pod, row.labels.get("container", ""))
        for row in seen.used
        if row.workload is not None
        and not row.labels.get("exported_pod")
        and (pod := row.labels.get("pod"))
        and re.search(r"dcgm|exporter", f"{pod} {row.labels.get('container', '')}")
    } - surely
    for level, found in ((Level.FAIL, surely), (Level.WARN, perhaps)):
        if found:
            pods, containers = sorted({pod for pod, _ in found}), {container for _, container in found}
            remedy = f'exporter_pattern = "{_common_prefix(pods)}"'
            if len(containers) == 1 and "" not in containers:
                remedy = f'exporter_container = "{next(iter(containers))}"'
            yield Remark(
                level,
                "exporter's pod",
                f"{_listed(pods)} {'is' if level == Level.FAIL else 'looks like'} the exporter's own pod and is not"
                f" recognised ({seen.config.labels.exporter_pattern!r} in pod or container, or container"
                f" {seen.config.labels.exporter_container!r}): idle devices count as its workload",
                f"in FINOPS_CONFIG: [labels] {remedy}",
            )


def _own(seen: _Seen, pod: str, container: str) -> bool:
    labels = seen.config.labels
    return (
        labels.exporter_pattern in pod or labels.exporter_pattern in container or container == labels.exporter_container
    )


def _common_prefix(pods: list[str]) -> str:
    """What the names of a DaemonSet's pods have in common, without its random end."""
    if len(pods) == 1:
        return pods[0].rpartition("-")[0] or pods[0]
    short = min(pods, key=len)
    shared = next((i for i, char in enumerate(short) if any(pod[i] != char for pod in pods)), len(short))
    return short[:shared].rstrip("-") or short


def _unlabelled(seen: _Seen) -> Iterable[Remark]:
    """Devices that without a workload label at all, idle or busy."""
    hour = seen.hour
    labelled = np.zeros(len(hour.devices), dtype=bool)
    labelled[hour.instant_device[hour.instant_set != NO_LABELS]] = True
    bare = np.flatnonzero(~labelled)
    busy = sorted(_busy(seen) & set(bare.tolist()))
    if not len(bare):
        return
    told = f"{len(bare)} of {_count(len(hour.devices), 'device')} without a workload label"
    events = "or let the lifecycle events name the devices in gpu_uuids (A17)"
    if busy:
        yield Remark(
            Level.WARN,
            "workload labels",
            f"{told}, {len(busy)} of them busy ({_listed([str(hour.devices.key[i]) for i in busy])})",
            f"switch on the exporter's Kubernetes mapping (DCGM_EXPORTER_KUBERNETES=true, and the kubelet's"
            f" pod-resources socket mounted), {events}",
        )
    elif len(bare) == len(hour.devices):
        yield Remark(
            Level.WARN,
            "workload labels",
            f"{told}: all are idle, or the exporter does not map pods",
            f"check DCGM_EXPORTER_KUBERNETES=true, {events}",
        )
    else:
        yield Remark(Level.OK, "workload labels", f"{told}: they are idle")


def _busy(seen: _Seen) -> set[int]:
    readings = combined_utilization(seen.hour, seen.config)
    count = np.bincount(readings.owner, minlength=1)
    total = np.bincount(readings.owner, weights=readings.value.astype(np.float64), minlength=1)
    return set(np.flatnonzero(total > BUSY * np.maximum(count, 1)).tolist())


def _jobs(seen: _Seen) -> Iterable[Remark]:
    jobs = {row.labels[JOB_LABEL] for row in seen.used if row.labels.get(JOB_LABEL)}
    if jobs and all(row.workload is None for row in seen.used):
        yield Remark(
            Level.WARN,
            "Slurm",
            f"{_count(len(jobs), 'job')} in the label {JOB_LABEL} ({_listed(sorted(jobs))}), which says nothing of a tenant",
            "let the lifecycle events name the devices of a job in gpu_uuids (A17)",
        )


def _scrapes(seen: _Seen) -> Iterable[Remark]:
    """The scrape interval, and holes in these very minutes (A11)."""
    intervals = Counter(seconds for seconds in seen.interval if seconds is not None)
    if not intervals:
        yield Remark(
            Level.WARN,
            "scrape interval",
            f"too few samples in {seen.minutes} to tell it",
            "set scrape_interval of the job to 60 s or less",
        )
        return
    slow = max(intervals) > MAX_SCRAPE_SECONDS
    told = ", ".join(f"{seconds} s ({_count(count, 'device')})" for seconds, count in sorted(intervals.items()))
    yield Remark(
        Level.WARN if slow else Level.OK,
        "scrape interval",
        told + (f": above {MAX_SCRAPE_SECONDS} s every distance is a gap (A11)" if slow else ""),
        "set scrape_interval of the job to 60 s or less" if slow else "",
    )
    yield from _holes(seen)


def _holes(seen: _Seen) -> Iterable[Remark]:
    hour = seen.hour
    same = hour.instant_device[1:] == hour.instant_device[:-1]
    distance = np.where(same, hour.instant_at[1:] - hour.instant_at[:-1], 0)
    hole = 2 * distance > 5 * seen.usual_ms[hour.instant_device[1:]]
    if hole.any():
        devices = np.unique(hour.instant_device[1:][hole])
        yield Remark(
            Level.WARN,
            "holes",
            f"{_count(len(devices), 'device')} silent for up to {int(distance.max()) // MILLISECONDS} s in"
            f" {seen.minutes} ({_listed([str(hour.devices.key[i]) for i in devices])})",
            "such gaps are estimated and flagged (A13); look at the exporter's restarts and its scrape_timeout",
        )


def _silent(seen: _Seen) -> Iterable[Remark]:
    """Devices that have stopped telling anything."""
    hour = seen.hour
    last = hour.instant_at[np.searchsorted(hour.instant_device, np.arange(len(hour.devices)), "right") - 1]
    gone = np.flatnonzero(2 * (seen.end - last) > 5 * np.maximum(seen.usual_ms, STILL_THERE_MS))
    if len(gone):
        yield Remark(
            Level.WARN,
            "silence",
            f"{_count(len(gone), 'device')} with samples in {seen.minutes} and none now"
            f" ({_listed([str(hour.devices.key[i]) for i in gone])})",
            "an exporter that is down, a node that is gone, or a new series under another uuid: look at its /targets",
        )


def _duplicates(seen: _Seen) -> Iterable[Remark]:
    """The same reading stored more than once: two scrape jobs, HA replicas (A7)."""
    groups: dict[tuple[str, str, str | None], list[_Row]] = defaultdict(list)
    for row in seen.used:
        groups[row.metric, row.key, row.workload].append(row)
    differing: Counter[str] = Counter()
    values: dict[str, set[str]] = defaultdict(set)
    devices: set[str] = set()
    for (_, key, _), rows in groups.items():
        together = [row for row in rows if any(other is not row and _overlap(row, other) for other in rows)]
        names = {name for row in together for name in row.labels} - {JOB_LABEL}
        names = {name for name in names if len({row.labels.get(name, "") for row in together}) > 1}
        if names:
            devices.add(key)
            differing.update(names)
            for name in names:
                values[name] |= {row.labels.get(name, "") for row in together}
    if not devices:
        return
    replica = next((name for name in differing if _REPLICA.search(name)), None)
    name = replica or ("job" if "job" in differing else min(differing, key=lambda n: (-differing[n], n)))
    told = f"{name} = {_listed(sorted(values[name] - {''}))}"
    yield Remark(
        Level.WARN,
        "duplicates",
        f"{_count(len(devices), 'device')} stored twice or more, told apart by {told}: the highest value at an instant counts"
        " (A7)",
        "behind Thanos set FINOPS_PROMETHEUS_THANOS=true, which asks it to deduplicate; else leave it"
        if replica
        else "keep one of the scrape jobs or targets: the other only costs storage",
    )


def _overlap(one: _Row, other: _Row) -> bool:
    return one.first <= other.last and other.first <= one.last


def _instances(seen: _Seen) -> Iterable[Remark]:
    """MIG (A19)."""
    devices = seen.hour.devices
    cut = np.flatnonzero(devices.instance != "")
    if not len(cut):
        return
    profiles = Counter({row.key: _profile(row, seen) for row in seen.used if "/" in row.key}.values())
    boards = sorted(set(devices.uuid[cut].tolist()))
    yield Remark(
        Level.OK,
        "MIG",
        f"{_count(len(cut), 'instance')} on {_count(len(boards), 'board')}: "
        + ", ".join(f"{count} x {profile or '(no profile)'}" for profile, count in sorted(profiles.items()))
        + "; power and energy are the board's and are divided by slices",
    )
    too_many = [b for b in boards if (of := devices.uuid == b).any() and _slices_used(seen, of) > _slices(seen, of)]
    if too_many:
        models = sorted(set(devices.model[np.isin(devices.uuid, too_many)].tolist()))
        yield Remark(
            Level.WARN,
            "MIG",
            f"{_count(len(too_many), 'board')} with more slices in use than their card has by [mig_slices]"
            f" ({_listed(too_many)})",
            "in FINOPS_CONFIG: [mig_slices] " + ", ".join(f'"{model}" = slices of the card' for model in models),
        )
    both = sorted(set(devices.uuid[devices.instance == ""].tolist()) & set(boards))
    if both:
        yield Remark(
            Level.WARN,
            "MIG",
            f"{_count(len(both), 'board')} read whole and as instances ({_listed(both)}): each is a device (A7)",
            "if MIG was not just switched on or off, let the exporter tell either (-d f, its default)",
        )
    yield from _fractions(seen, "MIG instance", "1/7")


def _profile(row: _Row, seen: _Seen) -> str:
    return next((row.labels[name] for name in seen.config.labels.profile if row.labels.get(name)), "")


def _slices_used(seen: _Seen, of_board: Column) -> int:
    devices = seen.hour.devices
    return int(devices.slices[of_board & (devices.instance != "")].sum())


def _slices(seen: _Seen, of_board: Column) -> int:
    return seen.config.slices(str(seen.hour.devices.model[of_board][0]))


def _fractions(seen: _Seen, what: str, example: str) -> Iterable[Remark]:
    if not seen.config.class_fraction:
        yield Remark(
            Level.WARN,
            "class_fraction",
            f"a {what} is in use and no class has a fraction: one unit of gpu_count counts for a whole GPU (A4)",
            f'in FINOPS_CONFIG: [class_fraction] "the placed_class of such workloads" = "{example}"',
        )


def _sharing(seen: _Seen) -> Iterable[Remark]:
    """Time slicing and MPS (A19)."""
    hour = seen.hour
    members = np.array([len(labels) for labels in hour.sets.members], dtype=np.int64)
    at_once = members[hour.instant_set]
    shared = np.unique(hour.instant_device[at_once > 1])
    flipping = _flipping(seen)
    if len(shared):
        per_process = np.unique(np.concatenate([rows.device for rows in hour.processes.values()]))
        told = np.unique(np.concatenate([rows.device[rows.value > 0] for rows in hour.processes.values()]))
        yield Remark(
            Level.OK,
            "sharing",
            f"{_count(len(shared), 'device')} shared by up to {int(at_once.max())} pods at once"
            + (", with rows per process" if len(per_process) else ", one row per pod"),
        )
        zero = [
            str(hour.devices.key[device])
            for device in sorted((set(per_process.tolist()) - set(told.tolist())) & _busy(seen))
        ]
        if zero:
            yield Remark(
                Level.WARN,
                "sharing",
                f"the rows per process of {_listed(zero)} are all 0 though the device is busy: each pod gets an equal part",
                "set hostPID: true on the exporter's pods",
            )
    if flipping:
        yield Remark(
            Level.WARN,
            "sharing",
            f"the workload label of {_count(len(flipping), 'device')} goes to and fro between pods ({_listed(flipping)}):"
            " the exporter shows one of the sharing pods at a time",
            "set KUBERNETES_VIRTUAL_GPUS=true on the exporter: one row per pod",
        )
    if len(shared) or flipping:
        yield from _fractions(seen, "shared GPU", "1/4")


def _flipping(seen: _Seen) -> list[str]:
    """Devices whose single label comes back after another one."""
    hour = seen.hour
    members = np.array([len(labels) for labels in hour.sets.members], dtype=np.int64)
    found = []
    for device, key in enumerate(hour.devices.key.tolist()):
        first, last = np.searchsorted(hour.instant_device, [device, device + 1])
        single = hour.instant_set[first:last]
        single = single[members[single] == 1]
        turns = single[np.append(True, single[1:] != single[:-1])] if len(single) else single
        if len(turns) > len(np.unique(turns)):
            found.append(key)
    return found


def _limits(seen: _Seen) -> Iterable[Remark]:
    """Models without the numbers that plausibility and modelling need (A10, A13)."""
    devices = seen.hour.devices
    models = sorted({model for model in devices.model.tolist() if model})
    unlimited = [m for m in models if None in (seen.config.limit(m).power_w, seen.config.limit(m).memory_gb)]
    if unlimited:
        yield Remark(
            Level.WARN,
            "card_limits",
            f"no power or memory limit of {_listed(unlimited, len(unlimited))}: impossible readings are not all rejected (A10)",
            "in FINOPS_CONFIG: [card_limits] "
            + ", ".join(f'"{model}" = {{power_w = watts, memory_gb = GB}}' for model in unlimited),
        )
    boards = {
        index for q in (Quantity.POWER, Quantity.ENERGY) for index in np.unique(seen.hour.values[q].owner).tolist()
    }
    told = np.isin(seen.hour.board_of(), list(boards))
    unknown = [m for m in models if seen.config.watts(m) is None]
    dark = [m for m in unknown if (~told & (devices.model == m)).any()]
    if unknown:
        yield Remark(
            Level.WARN if dark else Level.OK,
            "class_watts",
            f"no watts of {_listed(dark or unknown, len(unknown))}: "
            + (
                "it tells no power, so its energy is null" if dark else "only needed where no power was ever read (A13)"
            ),
            "in FINOPS_CONFIG: [class_watts] " + ", ".join(f'"{model}" = watts' for model in dark or unknown),
        )


def _rejected(seen: _Seen) -> Iterable[Remark]:
    table = seen.hour.rejected
    counts = pc.replace_substring(table["detail"], "readings=", "").cast(pa.int64()).to_pylist()
    readings: Counter[tuple[str, str]] = Counter()
    devices: Counter[tuple[str, str]] = Counter()
    for key, reason, count in zip(texts(table["key"]), texts(table["reason"]), counts, strict=True):
        kind = (str(reason), str(key).rpartition(":")[2])
        readings[kind] += int(count or 0)
        devices[kind] += 1
    if readings:
        yield Remark(
            Level.WARN,
            "rejected readings",
            f"in {seen.minutes}: "
            + ", ".join(
                f"{count} {kind[0]} of {kind[1]} ({_count(devices[kind], 'device')})"
                for kind, count in sorted(readings.items())
            ),
            "above_limit, above_one: check [card_limits] and the factors in [metrics]; blank: a newer exporter drops them",
        )


def _listed(items: Iterable[str], shown: int = SHOWN) -> str:
    found = list(items)
    more = len(found) - shown
    return ", ".join(found[:shown]) + (f" and {more} more" if more > 0 else "")


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 or what.endswith("s") else f"{number} {what}s"


def _minutes(milliseconds: int) -> str:
    return f"{max(milliseconds // 60_000, 1)} min"


def _toml_list(names: Iterable[str]) -> str:
    return "[" + ", ".join(f'"{name}"' for name in dict.fromkeys(names)) + "]"
