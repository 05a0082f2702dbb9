"""Boards in parts and devices with several workloads: MIG, time slicing, MPS (A19).

What belongs here: whether the exporter tells the sharing apart. What does not: dividing anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from finops_pipeline.accounting.arrays import Column
from finops_pipeline.doctor.diagnosis.remarks import Level, Remark, counted, listed
from finops_pipeline.doctor.diagnosis.seen import Row, Seen, busy_devices


def check_instances(seen: Seen) -> Iterable[Remark]:
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
        f"{counted(len(cut), 'instance')} on {counted(len(boards), 'board')}: "
        + ", ".join(f"{count} x {profile or '(no profile)'}" for profile, count in sorted(profiles.items()))
        + "; power and energy are the board's and are divided by slices",
    )
    too_many = [b for b in boards if (of := devices.uuid == b).any() and _slices_used(seen, of) > _slices(seen, of)]
    if too_many:
        models = sorted(set(devices.model[np.isin(devices.uuid, too_many)].tolist()))
        yield Remark(
            Level.WARN,
            "MIG",
            f"{counted(len(too_many), 'board')} with more slices in use than their card has by [mig_slices]"
            f" ({listed(too_many)})",
            "in FINOPS_CONFIG: [mig_slices] " + ", ".join(f'"{model}" = slices of the card' for model in models),
        )
    both = sorted(set(devices.uuid[devices.instance == ""].tolist()) & set(boards))
    if both:
        yield Remark(
            Level.WARN,
            "MIG",
            f"{counted(len(both), 'board')} read whole and as instances ({listed(both)}): each is a device (A7)",
            "if MIG was not just switched on or off, let the exporter tell either (-d f, its default)",
        )
    yield from _fractions(seen, "MIG instance", "1/7")


def _profile(row: Row, seen: Seen) -> str:
    return next((row.labels[name] for name in seen.config.labels.profile if row.labels.get(name)), "")


def _slices_used(seen: Seen, of_board: Column) -> int:
    devices = seen.hour.devices
    return int(devices.slices[of_board & (devices.instance != "")].sum())


def _slices(seen: Seen, of_board: Column) -> int:
    return seen.config.slices(str(seen.hour.devices.model[of_board][0]))


def _fractions(seen: Seen, what: str, example: str) -> Iterable[Remark]:
    if not seen.config.class_fraction:
        yield Remark(
            Level.WARN,
            "class_fraction",
            f"a {what} is in use and no class has a fraction: one unit of gpu_count counts for a whole GPU (A4)",
            f'in FINOPS_CONFIG: [class_fraction] "the placed_class of such workloads" = "{example}"',
        )


def check_sharing(seen: Seen) -> Iterable[Remark]:
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
            f"{counted(len(shared), 'device')} shared by up to {int(at_once.max())} pods at once"
            + (", with rows per process" if len(per_process) else ", one row per pod"),
        )
        zero = [
            str(hour.devices.key[device])
            for device in sorted((set(per_process.tolist()) - set(told.tolist())) & busy_devices(seen))
        ]
        if zero:
            yield Remark(
                Level.WARN,
                "sharing",
                f"the rows per process of {listed(zero)} are all 0 though the device is busy: each pod gets an equal part",
                "set hostPID: true on the exporter's pods",
            )
    if flipping:
        yield Remark(
            Level.WARN,
            "sharing",
            f"the workload label of {counted(len(flipping), 'device')} goes to and fro between pods ({listed(flipping)}):"
            " the exporter shows one of the sharing pods at a time",
            "set KUBERNETES_VIRTUAL_GPUS=true on the exporter: one row per pod",
        )
    if len(shared) or flipping:
        yield from _fractions(seen, "shared GPU", "1/4")


def _flipping(seen: Seen) -> list[str]:
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
