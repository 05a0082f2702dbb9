"""Labels that cannot be taken at their word: two pods in one row, profiles and cards that no table knows (A8, A19).

What belongs here: what an exporter writes that may mean something else. What does not: labels that contradict the
lifecycle (`label_conflicts`), and readings that cannot be true (`implausible`).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from finops_pipeline.accounting.arrays import Bools
from finops_pipeline.accounting.findings.context import Scene
from finops_pipeline.accounting.findings.kinds import Finding, Kind
from finops_pipeline.accounting.telemetry.summaries import NEVER_AFTER, NEVER_BEFORE


def two_pods(scene: Scene) -> Iterator[Finding]:
    """One row per device, pod that counts, and other pod that its rows name."""
    for (device, label, other), at in scene.hour.two_pods.items():
        windows = np.unique((at - scene.timeline.start) // scene.width)
        yield _of_windows(
            scene,
            Kind.TWO_PODS,
            str(scene.hour.devices.key[device]),
            np.bincount(windows, minlength=scene.config.windows)[None, :] > 0,
            f"its rows name {label}, which counts, and {other}",
        )


def unknown_profiles(scene: Scene) -> Iterator[Finding]:
    """One row per instance that was read at some time and is visible with a profile that is not understood."""
    timeline = scene.timeline
    read = (timeline.last_before.at != NEVER_BEFORE) | (timeline.first_after.at != NEVER_AFTER)
    read[timeline.runs.device] = True
    odd = scene.found.visible & ~scene.slices.known & read[:, None]
    for device in np.flatnonzero(odd.any(axis=1)).tolist():
        detail = (
            "its MIG profile gives no number of slices: it takes an equal part of what the others leave of the card"
        )
        yield _of_windows(scene, Kind.UNKNOWN_PROFILE, str(timeline.devices.key[device]), odd[device][None, :], detail)


def unknown_cards(scene: Scene) -> Iterator[Finding]:
    """One row per model of which an instance is visible and that no table of slices has."""
    devices = scene.timeline.devices
    for model in sorted(set(devices.model[devices.instance != ""].tolist())):
        odd = scene.found.visible[(devices.instance != "") & (devices.model == model)]
        if odd.any() and scene.timeline.names.known_slices(model) is None:
            detail = f"its card is taken to have {scene.timeline.names.slices(model)} slices: set it in [mig_slices]"
            yield _of_windows(scene, Kind.UNKNOWN_CARD, model, odd, detail)


def _of_windows(scene: Scene, kind: Kind, subject: str, odd: Bools, detail: str) -> Finding:
    """A finding of the device time in which some devices (devices x windows) are odd."""
    windows = np.flatnonzero(odd.any(axis=0))
    first, last = int(windows[0]) * scene.width, int(windows[-1] + 1) * scene.width
    return Finding(kind, subject, None, None, first, last, int(odd.sum()) * scene.width, detail)
