"""The settings and the lake: what is on this machine.

What belongs here: judging them. What does not: reading settings (`finops_pipeline.settings`), and what the lake holds.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from finops_pipeline.accounting.config import AccountingConfig
from finops_pipeline.accounting.exact import HOUR_MS, hour_text
from finops_pipeline.doctor.diagnosis import Level, Remark
from finops_pipeline.doctor.report import age_text
from finops_pipeline.errors import FinopsError, UsageError
from finops_pipeline.resources.lake.bucket import Bucket
from finops_pipeline.resources.lake.store import Lake
from finops_pipeline.settings import Settings, accounting_tables, load_settings, read_toml

ROOM_BYTES: Final = 1 << 30


def settings_of(environ: Mapping[str, str]) -> tuple[Settings, list[Remark]]:
    """The settings as far as they are right: each wrong variable is a remark and then left out."""
    left, remarks = dict(environ), []
    while True:
        try:
            settings = load_settings(left)
        except UsageError as error:
            message = str(error)
            wrong = next((name for name in re.findall(r"[A-Z][A-Z_]+", message) if name in left), None)
            remarks.append(Remark(Level.FAIL, wrong or "environment", message, where="settings"))
            if wrong is None:
                return Settings.model_validate({}), remarks
            del left[wrong]
        else:
            return settings, remarks


def needed(settings: Settings, wrong: set[str]) -> list[Remark]:
    """What a live run cannot do without; `wrong` are variables that have a remark of their own."""
    remarks = []
    if settings.prometheus_urls:
        seen = ", ".join(f"{cluster} ({url})" for cluster, url in settings.prometheus_urls.items())
        remarks.append(Remark(Level.OK, "clusters", f"{seen}; rows without a cluster belong to the first"))
    elif "FINOPS_PROMETHEUS_URLS" not in wrong:
        remarks.append(
            Remark(
                Level.FAIL,
                "clusters",
                "no Prometheus is named",
                "FINOPS_PROMETHEUS_URLS=prod=http://prometheus:9090, or a bundle of files: --bundle DIR",
            )
        )
    if settings.platform_tenant is None and "FINOPS_PLATFORM_TENANT" not in wrong:
        remarks.append(
            Remark(
                Level.FAIL,
                "platform tenant",
                "nobody is named to whom idle capacity is booked (A27)",
                "FINOPS_PLATFORM_TENANT=<uuid of your own tenant>",
            )
        )
    return [replace(remark, where="settings") for remark in remarks]


def config_of(settings: Settings, remarks: list[Remark]) -> AccountingConfig:
    """The accounting's tables, or the defaults where the file is wrong."""
    tables: dict[str, Any] = {}
    try:
        tables = accounting_tables(read_toml(settings.config), str(settings.config)) if settings.config else {}
    except FinopsError as error:
        remarks.append(Remark(Level.FAIL, "FINOPS_CONFIG", str(error), where="settings"))
    return AccountingConfig(
        platform_tenant=str(settings.platform_tenant or ""), window_seconds=settings.window_seconds, **tables
    )


def lake_remarks(settings: Settings, now: int) -> Iterable[Remark]:
    place = settings.lake_folder
    if isinstance(place, str):
        Bucket(place).try_out()
        yield Remark(Level.OK, "bucket", f"an object was written, read and removed under {place}")
        yield from _landed(Lake(place), now)
        return
    folder = place.absolute()
    ground = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not ground.is_dir() or not os.access(ground, os.W_OK | os.X_OK):
        yield Remark(
            Level.FAIL, "folder", f"{ground} is not a folder that we may write to", "FINOPS_LAKE_URL or FINOPS_HOME"
        )
        return
    try:
        with tempfile.TemporaryFile(dir=ground) as file:
            file.write(b"finops")
    except OSError as error:
        yield Remark(
            Level.FAIL, "folder", f"{ground} cannot be written: {error.strerror}", "FINOPS_LAKE_URL or FINOPS_HOME"
        )
        return
    free = shutil.disk_usage(ground).free
    yield Remark(
        Level.WARN if free < ROOM_BYTES else Level.OK,
        "folder",
        f"{folder} can be written{'' if folder.exists() else ' (the first run makes it)'}, {free / (1 << 30):.1f} GB free",
        "make room, or FINOPS_LAKE_URL on another disk" if free < ROOM_BYTES else "",
    )
    if folder.exists():
        yield from _landed(Lake(folder), now)


def _landed(lake: Lake, now: int) -> Iterable[Remark]:
    for cluster in lake.clusters("dcgm_series"):
        hours = lake.hours("dcgm_series", cluster)
        age = timedelta(milliseconds=now - hours[-1] - HOUR_MS)
        yield Remark(
            Level.OK,
            "hours",
            f"{len(hours)} of cluster {cluster} have landed, {hour_text(hours[0])} to {hour_text(hours[-1])}"
            f" (which ended {age_text(age)} ago)",
        )
