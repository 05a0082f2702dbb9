"""The pages of tests/data/dcgm as a scraper would have stored them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from finops_pipeline.resources.bundle.openmetrics import read_series

START = 1_790_848_800_000
"""2026-10-01T10:00:00Z"""


def once(page: str, **replaced: str) -> tuple[str, list[int], Mapping[str, str]]:
    return page, [START], replaced


class Scrapes:
    """Pages as a scraper would have stored them, by way of the reader of files."""

    def __init__(self, pages: Path, folder: Path) -> None:
        self.pages = pages
        self._file = folder / "scraped.om"

    def series(self, *scrapes: tuple[str, list[int], Mapping[str, str]]) -> pa.Table:
        """(page, instants, texts to replace in its lines) -> DCGM_SERIES."""
        lines = []
        for page, instants, replaced in scrapes:
            for line in (self.pages / f"{page}.prom").read_text(encoding="utf-8").splitlines():
                if line and not line.startswith("#"):
                    changed = line
                    for before, after in replaced.items():
                        changed = changed.replace(before, after)
                    lines += [f"{changed} {instant / 1000:.3f}" for instant in instants]
        self._file.write_text("\n".join([*lines, "# EOF", ""]), encoding="utf-8")
        return read_series(self._file)
