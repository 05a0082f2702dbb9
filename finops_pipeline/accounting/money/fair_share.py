"""Fair share as Slurm's classic algorithm defines it: who used less than its share comes first.

Accounts and tenants form a tree. For each node:

    shares           what its parent gives it, against its siblings
    norm_shares S    its part of the whole: shares / shares of all siblings, times the parent's S
    raw_usage        GPU-seconds, each hour's weighted by 2^(-age / half-life); an account's are its children's
    norm_usage  U    raw_usage / raw_usage of all
    effective_usage  UE = U right under the root, else U + (parent's UE - U) x shares / shares of all siblings
    factor      F    2^(-(UE / S) / dampening): 1 without usage, 0.5 with exactly its share, 0 without shares

`docs/fairshare.md` works through an example by hand. These are priorities, not money: floats.

What belongs here: the formulas. What does not: where usage and shares are kept.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

HALF_LIFE_DAYS = 7.0
"""Slurm's PriorityDecayHalfLife."""
HOUR_SECONDS = 3600


class FairShareError(ValueError):
    """The tree of shares is none."""


@dataclass(frozen=True)
class Node:
    """An account or a tenant; a `parent` of None is the root."""

    name: str
    parent: str | None
    shares: float


@dataclass(frozen=True)
class FairShare:
    """One node's line, with Slurm's `sshare` columns."""

    name: str
    parent: str | None
    shares: float
    norm_shares: float
    raw_usage: float
    norm_usage: float
    effective_usage: float
    factor: float


def decayed(seconds: float, age_seconds: float, half_life_days: float = HALF_LIFE_DAYS) -> float:
    """GPU-seconds that count for `age_seconds` of age; usage of the future counts in full."""
    return seconds * math.pow(2.0, -max(age_seconds, 0.0) / (half_life_days * 24 * HOUR_SECONDS))


def fair_shares(nodes: Iterable[Node], usage: Mapping[str, float], dampening: float = 1.0) -> list[FairShare]:
    """All nodes, parents before children, siblings by name.

    `usage` is the decayed GPU-seconds by node; a name that is no node has one share right under the root. Raises
    `FairShareError` on a parent that is not there, a circle, or negative shares.
    """
    tree = {node.name: node for node in nodes}
    tree |= {name: Node(name, None, 1.0) for name in usage if name not in tree}
    children: dict[str | None, list[Node]] = defaultdict(list)
    for node in sorted(tree.values(), key=lambda node: node.name):
        if node.parent is not None and node.parent not in tree:
            raise FairShareError(f"{node.name} belongs to {node.parent}, which has no shares itself")
        if node.shares < 0:
            raise FairShareError(f"{node.name} has {node.shares} shares")
        children[node.parent].append(node)
    order = _parents_first(children)
    if len(order) < len(tree):
        circle = sorted(set(tree) - {node.name for node in order})
        raise FairShareError(f"{', '.join(circle)} belong to each other in a circle")
    raw = {node.name: usage.get(node.name, 0.0) for node in order}
    for node in reversed(order):
        if node.parent is not None:
            raw[node.parent] += raw[node.name]
    whole = sum(raw[node.name] for node in children[None])
    found: dict[str, FairShare] = {}
    for node in order:
        siblings = sum(sibling.shares for sibling in children[node.parent])
        part = node.shares / siblings if siblings else 0.0
        used = raw[node.name] / whole if whole else 0.0
        above = found[node.parent] if node.parent is not None else None
        norm_shares = part * (above.norm_shares if above else 1.0)
        effective = used if above is None else used + (above.effective_usage - used) * part
        found[node.name] = FairShare(
            name=node.name,
            parent=node.parent,
            shares=node.shares,
            norm_shares=norm_shares,
            raw_usage=raw[node.name],
            norm_usage=used,
            effective_usage=effective,
            factor=math.pow(2.0, -effective / norm_shares / dampening) if norm_shares else 0.0,
        )
    return list(found.values())


def _parents_first(children: Mapping[str | None, list[Node]]) -> list[Node]:
    order: list[Node] = []
    waiting = list(children.get(None, ()))
    while waiting:
        node = waiting.pop(0)
        order.append(node)
        waiting.extend(children.get(node.name, ()))
    return order
