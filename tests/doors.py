"""A door to readings that are at hand, asked as a Prometheus is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from finops_pipeline.resources.series import window


@dataclass(frozen=True)
class FileDoor:
    """Readings (DCGM_SERIES) as the door of a live source."""

    table: pa.Table = field(repr=False)

    def series(self, start_ms: int, end_ms: int, metrics: Sequence[str], *, may_be_gone: bool = False) -> pa.Table:  # noqa: ARG002
        return window(self.table, start_ms, end_ms)
