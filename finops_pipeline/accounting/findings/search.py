"""What a person should look at in an hour: the table FINDINGS.

Where lifecycle and telemetry disagree, and where money is lost, the thing gets a name, an owner and a number; no
finding changes an amount. `kinds.Kind` lists and explains them.

What belongs here: the order of the searches, and the rows. What does not: the searches (`liveness`,
`label_conflicts`, `overcommitment`, `implausible`), and what follows from a finding (`credits`).
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import pyarrow as pa

from finops_pipeline.accounting.arrays import texts
from finops_pipeline.accounting.exact import quantize
from finops_pipeline.accounting.findings.context import Scene
from finops_pipeline.accounting.findings.devices import devices_gone, other_models, uninvited_pods
from finops_pipeline.accounting.findings.implausible import disagreeing_counters, frozen_series
from finops_pipeline.accounting.findings.kinds import Finding
from finops_pipeline.accounting.findings.label_conflicts import (
    busy_for_nobody,
    label_drops,
    stale_labels,
    too_many_devices,
)
from finops_pipeline.accounting.findings.liveness import held_but_idle, no_sign_of_life, node_failures
from finops_pipeline.accounting.findings.overcommitment import (
    foreign_tenants,
    oversold,
    stranded_slices,
    unmatched,
    unsold_parts,
)
from finops_pipeline.accounting.findings.unclear import two_pods, unknown_cards, unknown_profiles
from finops_pipeline.accounting.holding.deployments import dedicated_owners
from finops_pipeline.contracts.lake import FINDINGS


def findings_table(
    cluster: str, scene: Scene, events: pa.Table, deployments: pa.Table, matches: pa.Table, series: pa.Table
) -> pa.Table:
    """FINDINGS of one hour, by kind and subject.

    `events` (WORKLOAD_EVENTS) and `deployments` are the hour's records, `matches` its GPU_MATCHES, `series` its
    DCGM_SERIES, of which only the metric names are used.
    """
    found = sorted(
        _found(scene, events, deployments, matches, series),
        key=lambda finding: (finding.kind.code, finding.subject, finding.workload_id or "", finding.first),
    )
    start = scene.timeline.start
    return pa.Table.from_pylist(
        [
            {
                "cluster": cluster,
                "hour": start,
                "kind": finding.kind.code,
                "subject": finding.subject,
                "workload_id": finding.workload_id,
                "tenant_id": finding.tenant_id,
                "first_at": start + finding.first,
                "last_at": start + finding.last,
                "seconds": quantize(Fraction(finding.ms) / 1000, 3),
                "detail": finding.detail,
            }
            for finding in found
        ],
        schema=FINDINGS,
    )


def _found(
    scene: Scene, events: pa.Table, deployments: pa.Table, matches: pa.Table, series: pa.Table
) -> Iterator[Finding]:
    yield from held_but_idle(scene)
    yield from no_sign_of_life(scene)
    yield from node_failures(scene, events)
    yield from stale_labels(scene)
    yield from uninvited_pods(scene)
    yield from devices_gone(scene)
    yield from other_models(scene)
    yield from label_drops(scene)
    yield from busy_for_nobody(scene)
    yield from too_many_devices(scene)
    yield from unmatched(scene, matches)
    yield from unsold_parts(scene)
    yield from oversold(scene)
    yield from stranded_slices(scene)
    yield from two_pods(scene)
    yield from unknown_profiles(scene)
    yield from unknown_cards(scene)
    yield from foreign_tenants(scene, dedicated_owners(deployments))
    yield from frozen_series(scene, texts(series["metric"].unique()).tolist())
    yield from disagreeing_counters(scene)
