"""Boards in parts and devices with several workloads: MIG, time slicing, MPS (A19).

What belongs here: whether the exporter shows who shares. What does not: dividing anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from finops_pipeline.accounting.config import USUAL_SLICES, profile_slices
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
    too_many = [board for board in boards if _slices_used(seen, board) > seen.config.slices(_card(seen, board))]
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
            "if MIG was not just switched on or off, let the exporter report either (-d f, its default)",
        )
    yield from _unclear(seen, (_card(seen, board) for board in boards))
    yield from _fractions(seen, "MIG instance", "1/7")


def _profile(row: Row, seen: Seen) -> str:
    return next((row.labels[name] for name in seen.config.labels.profile if row.labels.get(name)), "")


def _slices_used(seen: Seen, board: str) -> int:
    """Slices of the instances that are read at the end, by their profiles."""
    last = max(row.last for row in seen.used if row.board == board)
    profiles = {row.key: _profile(row, seen) for row in seen.used if row.board == board and row.last == last}
    return sum(profile_slices(profile) or 0 for key, profile in profiles.items() if "/" in key)


def _card(seen: Seen, board: str) -> str:
    return str(seen.hour.devices.model[seen.hour.devices.uuid == board][0])


def _unclear(seen: Seen, models: Iterable[str]) -> Iterable[Remark]:
    """Profiles and cards that no table understands (A19)."""
    odd = sorted(
        {profile for row in seen.used if "/" in row.key and not profile_slices(profile := _profile(row, seen))}
    )
    if odd:
        yield Remark(
            Level.WARN,
            "MIG",
            f"no number of slices in the profile {listed([profile or '(none)' for profile in odd])}: such an instance takes an"
            " equal part of what the others leave of the card (A19)",
            "let the exporter write the profile as GPU_I_PROFILE, like 3g.40gb; [labels] profile names another label",
        )
    unknown = sorted(model for model in set(models) if seen.config.known_slices(model) is None)
    if unknown:
        yield Remark(
            Level.WARN,
            "mig_slices",
            f"the slices of {listed(unknown)} are not known: {USUAL_SLICES} are assumed (A19)",
            "in FINOPS_CONFIG: [mig_slices] " + ", ".join(f'"{model}" = slices of the card' for model in unknown),
        )


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
