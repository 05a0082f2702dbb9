"""Who a series is about: device, exporter, node and workload (A7, A8).

What belongs here: labels. What does not: several workloads on one device (`sharing`).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Final

import numpy as np

from finops_pipeline.accounting.telemetry.readings import NO_LABELS
from finops_pipeline.doctor.diagnosis.remarks import Level, Remark, counted, listed, toml_list
from finops_pipeline.doctor.diagnosis.seen import Row, Seen, busy_devices

JOB_LABEL: Final = "hpc_job"


def check_without_uuid(seen: Seen) -> Remark | None:
    lost = [row for row in seen.rows if not row.key and row.samples and row.metric in seen.config.metrics]
    if not lost:
        return None
    carriers = Counter(name for row in lost for name, value in row.labels.items() if value.startswith(("GPU-", "MIG-")))
    remedy = "let the exporter write a label UUID: a device cannot be known by its index (A7)"
    if carriers:
        names = [*seen.config.labels.uuid, carriers.most_common(1)[0][0]]
        remedy = f"in FINOPS_CONFIG: [labels] uuid = {toml_list(names)}"
    return Remark(
        Level.FAIL if not seen.by_device else Level.WARN,
        "uuid",
        f"{counted(len(lost), 'series')} of {listed(sorted({row.metric for row in lost}))} without a uuid"
        f" ({', '.join(seen.config.labels.uuid)}): they are left out",
        remedy,
    )


def check_devices(seen: Seen) -> Iterable[Remark]:
    models = Counter(seen.hour.devices.model.tolist())
    yield Remark(
        Level.OK,
        "devices",
        f"{counted(len(seen.hour.devices), 'device')} on {counted(len(seen.hour.boards), 'board')}: "
        + ", ".join(f"{count} x {model or '(no modelName)'}" for model, count in sorted(models.items())),
    )
    if models.get(""):
        yield Remark(
            Level.WARN,
            "models",
            f"{counted(models[''], 'device')} without a model ({', '.join(seen.config.labels.model)})",
            "in FINOPS_CONFIG: [labels] model = [the label that has it]",
        )


def check_conventions(seen: Seen) -> Iterable[Remark]:
    """Which generations of exporters wrote this, by names and labels."""
    generations: dict[str, set[str]] = defaultdict(set)
    for row in seen.used:
        generations[_generation(row)].add(row.board)
    drivers = sorted({driver for row in seen.used if (driver := row.labels.get("DCGM_FI_DRIVER_VERSION"))})
    told = ", ".join(f"{name} ({counted(len(boards), 'board')})" for name, boards in sorted(generations.items()))
    yield Remark(
        Level.OK, "exporters", f"names and labels of {told}" + (f"; driver {listed(drivers, 5)}" if drivers else "")
    )


def _generation(row: Row) -> str:
    if row.metric.startswith("dcgm_"):
        return "dcgm-exporter 1.x (--use-old-namespace)"
    if "hostname" in row.labels:
        return "dcgm-exporter after 4.8.2 (hostname)"
    if "Hostname" in row.labels:
        return f"dcgm-exporter {'3.3.7 to 4.8.2' if 'pci_bus_id' in row.labels else 'before 3.3.7'} (Hostname)"
    return "no known dcgm-exporter (no host label)"


def check_nodes(seen: Seen) -> Iterable[Remark]:
    nodes = Counter(seen.hour.devices.node.tolist())
    pods = sorted(node for node in nodes if seen.config.labels.exporter_pattern in node)
    if pods:
        better = [name for name in ("node", "kubernetes_node") if any(name in row.labels for row in seen.used)]
        yield Remark(
            Level.WARN,
            "nodes",
            f"{listed(pods)} is the exporter's pod, not a node: the node's name changes whenever the pod does",
            f"in FINOPS_CONFIG: [labels] node = {toml_list([*better, 'Hostname', 'hostname', 'instance'])}"
            if better
            else "add the node's name as a label (relabelling of the scrape job, or a newer exporter)",
        )
    if nodes.get(""):
        yield Remark(
            Level.WARN,
            "nodes",
            f"{counted(nodes[''], 'device')} without a node ({', '.join(seen.config.labels.node)})",
            "in FINOPS_CONFIG: [labels] node = [the label that has it]",
        )


def check_workload_labels(seen: Seen) -> Iterable[Remark]:
    """honorLabels, and whether the exporter's own pod is recognised (A8)."""
    counts = not seen.config.labels.honor_labels
    exported = [row for row in seen.used if row.labels.get("exported_pod") and counts]
    direct = [row for row in seen.used if row.workload is not None and not (row.labels.get("exported_pod") and counts)]
    own_of_idle = [row for row in seen.used if row.workload is None and row.labels.get("pod")]
    if exported:
        yield Remark(
            Level.OK,
            "honorLabels",
            "false: the workload is in exported_pod, and pod is the exporter"
            + (
                f"; {counted(len(direct), 'series')} carry it in {_group_names(seen, direct)} as well (another job)"
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
            f"{listed(pods)} labels devices without a workload, and is recognised as the exporter",
        )
    yield from _strangers(seen, exported)


def _group_names(seen: Seen, rows: list[Row]) -> str:
    names = [group[1] for group in seen.config.labels.groups() if any(row.labels.get(group[1]) for row in rows)]
    return ", ".join(names)


def _strangers(seen: Seen, exported: list[Row]) -> Iterable[Remark]:
    """Exporters whose pods are not recognised as such: an idle device would be charged to them, and every other row
    names two pods (A8).
    """
    surely = sorted({pod for row in exported if (pod := row.labels.get("pod")) and not _own(seen, pod)})
    perhaps = {
        pod
        for row in seen.used
        if row.workload is not None
        and not row.labels.get("exported_pod")
        and (pod := row.labels.get("pod"))
        and re.search(r"dcgm|exporter", f"{pod} {row.labels.get('container', '')}")
    }
    for level, pods in ((Level.FAIL, surely), (Level.WARN, sorted(perhaps - set(surely)))):
        if pods:
            yield Remark(
                level,
                "exporter's pod",
                f"{listed(pods)} {'is' if level == Level.FAIL else 'looks like'} the exporter's own pod and is not"
                f" recognised ({seen.config.labels.exporter_pattern!r} in the pod's name): idle devices count as its"
                " workload" + ("; if it is a workload, set honor_labels = true instead" if level == Level.FAIL else ""),
                f'in FINOPS_CONFIG: [labels] exporter_pattern = "{_common_prefix(pods)}"',
            )


def _own(seen: Seen, pod: str) -> bool:
    return seen.config.labels.may_be_exporter(pod)


def _common_prefix(pods: list[str]) -> str:
    """What the names of a DaemonSet's pods have in common, without its random end."""
    if len(pods) == 1:
        return pods[0].rpartition("-")[0] or pods[0]
    short = min(pods, key=len)
    shared = next((i for i, char in enumerate(short) if any(pod[i] != char for pod in pods)), len(short))
    return short[:shared].rstrip("-") or short


def check_unlabelled(seen: Seen) -> Iterable[Remark]:
    """Devices that without a workload label at all, idle or busy."""
    hour = seen.hour
    labelled = np.zeros(len(hour.devices), dtype=bool)
    labelled[hour.instant_device[hour.instant_set != NO_LABELS]] = True
    bare = np.flatnonzero(~labelled)
    busy = sorted(busy_devices(seen) & set(bare.tolist()))
    if not len(bare):
        return
    told = f"{len(bare)} of {counted(len(hour.devices), 'device')} without a workload label"
    events = "or let the lifecycle events name the devices in gpu_uuids (A17)"
    if busy:
        yield Remark(
            Level.WARN,
            "workload labels",
            f"{told}, {len(busy)} of them busy ({listed([str(hour.devices.key[i]) for i in busy])})",
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


def check_slurm_jobs(seen: Seen) -> Iterable[Remark]:
    jobs = {row.labels[JOB_LABEL] for row in seen.used if row.labels.get(JOB_LABEL)}
    if jobs and all(row.workload is None for row in seen.used):
        yield Remark(
            Level.WARN,
            "Slurm",
            f"{counted(len(jobs), 'job')} in the label {JOB_LABEL} ({listed(sorted(jobs))}), which says nothing of a tenant",
            "let the lifecycle events name the devices of a job in gpu_uuids (A17)",
        )
