"""`finops doctor`: asks every system that the settings name, and says in plain words what is wrong and what to set.

It looks and changes nothing; under a lake in a bucket it writes a small object, and removes it. Whatever breaks is a
remark: one check that fails never stops the others.
What belongs here: the sequence. What does not: the checks, a module each, and the judgement of DCGM series
(`doctor.diagnosis`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from finops_pipeline.doctor.cluster import cluster_remarks
from finops_pipeline.doctor.database import database_remarks
from finops_pipeline.doctor.diagnosis import Remark
from finops_pipeline.doctor.files import bundle_remarks
from finops_pipeline.doctor.local import config_of, lake_remarks, needed, settings_of
from finops_pipeline.doctor.report import as_json, as_text, failed, guarded
from finops_pipeline.resources.source import wall_clock_ms

__all__ = ["as_json", "as_text", "diagnose", "failed"]


def diagnose(
    environ: Mapping[str, str], bundle: Path | None = None, now_ms: Callable[[], int] = wall_clock_ms
) -> list[Remark]:
    """All remarks, in the order of the flow: settings, each cluster (or the bundle), Postgres, the lake.

    `environ` is variable -> text, as for `load_settings`. Never raises for what a user can fix.
    """
    settings, remarks = settings_of(environ)
    bundle = bundle or settings.bundle
    now = now_ms()
    models: set[str] = set()
    if bundle is None:
        remarks += needed(settings, {remark.subject for remark in remarks})
        config = config_of(settings, remarks)
        for cluster in settings.prometheus_urls:
            remarks += cluster_remarks(settings, cluster, config, now, models)
    else:
        remarks += guarded("bundle", "files", lambda: bundle_remarks(bundle, now, priced=settings.pricing == "on"))
    remarks += database_remarks(settings, models, now_ms, platform=bundle is None)
    remarks += guarded("lake", "access", lambda: lake_remarks(settings, now))
    return remarks
