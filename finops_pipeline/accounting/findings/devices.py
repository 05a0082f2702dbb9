"""Devices that are gone, that somebody uses uninvited, or that are another model than their holder's class (A17, A21).

What belongs here: what inventory, labels and classes say of a device that its readings do not. What does not: labels of
workloads (`label_conflicts`), units on a card (`overcommitment`).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from finops_pipeline.accounting.arrays import mapped
from finops_pipeline.accounting.findings.context import Scene, listed, stretches, sums
from finops_pipeline.accounting.findings.kinds import Finding, Kind
from finops_pipeline.accounting.holding.view import NOBODY


def uninvited_pods(scene: Scene) -> Iterator[Finding]:
    """A row for each pod, over the devices that running workloads take whole while they carry its label."""
    holding, cells = scene.holding, scene.holding.cells
    cell, pod = holding.uninvited.cell, holding.uninvited.holder - len(holding.intervals)
    begin, end = cells.begin[cell], cells.end[cell]
    found = sums((pod,), begin, end, end - begin)
    for member, first, last, ms in zip(*(part.tolist() for part in found), strict=True):
        devices = np.unique(cells.device[cell[pod == pod[member]]])
        label = holding.pods[pod[member]]
        detail = (
            f"has no lifecycle events, and is on {listed(scene.timeline.devices.key[devices])}, which others hold whole"
        )
        yield Finding(Kind.UNINVITED_POD, label, label, None, first, last, ms, detail)


def devices_gone(scene: Scene) -> Iterator[Finding]:
    """A row for each device that its node stopped showing, from its last reading (or the hour's start) on."""
    timeline, width = scene.timeline, scene.width
    device, window = np.nonzero(scene.gone)
    found = stretches((device,), window * width, (window + 1) * width)
    for member, first, last, ms in zip(*(part.tolist() for part in found), strict=True):
        number = int(device[member])
        since = scene.instant(int(timeline.last_read[number]) - timeline.start)
        node = timeline.devices.node[number]
        detail = (
            f"not read since {since}, while {node or 'its node'} was read for 10 minutes: it is not visible any more"
        )
        yield Finding(Kind.DEVICE_GONE, str(timeline.devices.key[number]), None, None, first, last, ms, detail)


def other_models(scene: Scene) -> Iterator[Finding]:
    """A row for each device and workload, where `placed_class` is the class of another model."""
    pieces, intervals, config = scene.found.pieces, scene.holding.intervals, scene.config
    classes = [name or "" for name in intervals.placed_class.tolist()]
    models = scene.timeline.devices.model.tolist()
    known = {config.model_key(name) for name in (*models, *config.models, *config.models.values(), *config.card_limits)}
    asked = np.array([key if key in known else "" for key in mapped(config.model_key, classes)], dtype=object)
    has = np.array(mapped(config.model_key, models), dtype=object)
    held = np.flatnonzero(pieces.interval != NOBODY)
    wanted = asked[pieces.interval[held]]
    held = held[(wanted != "") & (wanted != has[pieces.device[held]])]
    begin, end = pieces.begin[held], pieces.end[held]
    found = sums((pieces.device[held], pieces.holder[held]), begin, end, end - begin)
    for member, first, last, ms in zip(*(part.tolist() for part in found), strict=True):
        row = held[member]
        device = int(pieces.device[row])
        workload, tenant = scene.holder(int(pieces.holder[row]))
        detail = f"is {models[device]}, and {workload} holds it as {classes[pieces.interval[row]]}"
        yield Finding(
            Kind.OTHER_MODEL, str(scene.timeline.devices.key[device]), workload, tenant, first, last, ms, detail
        )
