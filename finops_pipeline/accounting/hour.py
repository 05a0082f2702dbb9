"""One hour of one cluster, the rules in their order (A3-A21).

`sample_hour` turns readings and records into windows and holdings, `account_hour` goes on to usage.
What belongs here: the sequence. What does not: any rule, and any reading or writing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from finops_pipeline.accounting.arrays import ints, texts
from finops_pipeline.accounting.config import REACH_HOURS, AccountingConfig
from finops_pipeline.accounting.exact import HOUR_MS
from finops_pipeline.accounting.findings.context import Scene
from finops_pipeline.accounting.findings.search import findings_table
from finops_pipeline.accounting.holding.deployments import pod_owners
from finops_pipeline.accounting.holding.holders import hold
from finops_pipeline.accounting.holding.lifecycle import Intervals, running_intervals
from finops_pipeline.accounting.holding.view import Instants, gap_windows
from finops_pipeline.accounting.telemetry.cards import slices_in_windows
from finops_pipeline.accounting.telemetry.readings import like_exporters, read_hour
from finops_pipeline.accounting.telemetry.summaries import lay_together, summarise
from finops_pipeline.accounting.telemetry.visibility import presence, seen_windows
from finops_pipeline.accounting.usage.pieces import hour_pieces, places
from finops_pipeline.accounting.usage.samples import samples_table
from finops_pipeline.accounting.usage.shares import fleet_states, holdings_table, matches_table
from finops_pipeline.accounting.usage.workload_hours import HourUsage, hour_usage, pods_of
from finops_pipeline.contracts.lake import HOUR_FACTS


@dataclass(frozen=True)
class HourHoldings:
    """What was held in an hour; schemas in contracts.lake."""

    holdings: pa.Table
    matches: pa.Table
    states: pa.Table


@dataclass(frozen=True)
class HourSamples(HourHoldings):
    """What was read and held in an hour; schemas in contracts.lake."""

    samples: pa.Table
    rejected: pa.Table
    """QUARANTINE: readings set aside (A10)"""
    facts: pa.Table
    """HOUR_FACTS, one row"""
    findings: pa.Table


def event_pods(events: pa.Table, now_ms: int, config: AccountingConfig) -> frozenset[str]:
    """Pods (`namespace/pod`) that lifecycle events name and that are called like the exporter's own (A8)."""
    return like_exporters(running_intervals(events, now_ms, config).known_labels, config)


def sample_hour(
    cluster: str,
    start: int,
    series: pa.Table,
    summaries: Mapping[int, pa.Table],
    records: Mapping[str, pa.Table],
    now_ms: int,
    config: AccountingConfig,
) -> HourSamples:
    """`series` (DCGM_SERIES) of the hour; `summaries` (DCGM_SUMMARY, by start) of the hours up to 24 h around it,
    made with the same configuration and the same `event_pods`; the hour's own may be among them.

    `records` are the platform's tables by name: workload_events, deployments, gpu_inventory.
    """
    intervals = running_intervals(records["workload_events"], now_ms, config)
    hour = read_hour(series, start, config, like_exporters(intervals.known_labels, config))
    inventory = records["gpu_inventory"]
    listed = dict(zip(texts(inventory["gpu_uuid"]), texts(inventory["model"]), strict=True))
    around = summaries if start in summaries else {**summaries, start: summarise(hour, config)}
    timeline = lay_together(hour, around, listed, _spellings(intervals, inventory, start, config), config)
    device = places(hour.devices.key, timeline.devices.key)[hour.instant_device]
    instants = Instants(device, hour.instant_at, hour.instant_set)
    seen = presence(device, hour.instant_at, timeline, config)
    sight = seen_windows(seen, gap_windows(timeline, config.windows), timeline, inventory, config)
    slices = slices_in_windows(
        timeline.profile, timeline.card, timeline.board, timeline.devices.instance == "", sight.visible
    )
    holding = hold(timeline, instants, intervals, seen.replaced, slices, config)
    found = hour_pieces(hour, timeline, sight.visible, holding, config)
    owners = pod_owners(holding.pods, records["deployments"])
    matches = matches_table(holding, timeline)
    scene = Scene(hour, timeline, holding, found, slices, intervals, owners, sight.gone, config)
    unread = not len(hour.instant_at) and len(holding.intervals) > 0
    return HourSamples(
        samples=samples_table(cluster, timeline, holding, found, owners, config),
        holdings=holdings_table(hour, timeline, holding, found, slices, config),
        matches=matches,
        states=fleet_states(hour, timeline, holding, found, owners, slices, inventory, config),
        rejected=hour.rejected,
        facts=pa.table(
            {
                "provisional": [(found.provisional or unread) and now_ms < start + HOUR_MS + REACH_HOURS * HOUR_MS],
                "devices": [len(timeline.devices)],
                "readings": [sum(len(readings.at) for readings in hour.values.values())],
                "rejected": [hour.rejections],
            },
            schema=HOUR_FACTS,
        ),
        findings=findings_table(cluster, scene, records["workload_events"], records["deployments"], matches, series),
    )


def _spellings(intervals: Intervals, inventory: pa.Table, start: int, config: AccountingConfig) -> frozenset[str]:
    """What events that run in the hour, and inventory rows in force at the start of a window, call models (section 2)."""
    running = intervals.running_in(start, start + HOUR_MS)
    begin, end = ints(inventory["valid_from"]), ints(inventory["valid_to"], default=1 << 60)
    window = -(-np.maximum(begin, start) // config.window_ms) * config.window_ms
    listed = texts(inventory["model"])[window < np.minimum(end, start + HOUR_MS)]
    return frozenset(name for name in (*running.placed_class.tolist(), *listed.tolist()) if name)


def account_hour(
    cluster: str,
    start: int,
    held: HourHoldings,
    records: Mapping[str, pa.Table],
    now_ms: int,
    config: AccountingConfig,
) -> HourUsage:
    """The holdings of an hour and the platform's records -> usage, nobody's part and the fleet identity."""
    owners = pod_owners(pods_of(held.holdings), records["deployments"])
    intervals = running_intervals(records["workload_events"], now_ms, config)
    return hour_usage(cluster, start, intervals, held.holdings, held.matches, held.states, owners, config)
