"""What minutes of DCGM series show of the exporters, scrapes and labels behind them: the judgements of `finops doctor`.

Each check looks at one thing that has been seen to go wrong on real clusters (A7-A11, A19) and says what it saw and what
to set. What belongs here: judging. What does not: asking servers and printing (`finops_pipeline.doctor`), and the rules
themselves, which are used as they are (`readings`, `around`), so that the doctor sees what the accounting sees.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import pyarrow as pa

from finops_pipeline.accounting.config import AccountingConfig
from finops_pipeline.doctor.diagnosis.labels import (
    check_conventions,
    check_devices,
    check_nodes,
    check_slurm_jobs,
    check_unlabelled,
    check_without_uuid,
    check_workload_labels,
)
from finops_pipeline.doctor.diagnosis.metrics import (
    check_limits,
    check_quantities,
    check_rejected,
    check_unused,
    likely_quantity,
    nothing_configured,
)
from finops_pipeline.doctor.diagnosis.remarks import Level, Remark
from finops_pipeline.doctor.diagnosis.scrapes import check_duplicates, check_scrapes, check_silent
from finops_pipeline.doctor.diagnosis.seen import Seen
from finops_pipeline.doctor.diagnosis.sharing import check_instances, check_sharing

__all__ = ["Level", "Remark", "SeriesDiagnosis", "diagnose_series", "likely_quantity"]


@dataclass(frozen=True)
class SeriesDiagnosis:
    remarks: list[Remark]
    models: frozenset[str]
    """the platform's names of the models that were seen"""


def diagnose_series(
    series: pa.Table, start: int, end: int, names: Collection[str], config: AccountingConfig
) -> SeriesDiagnosis:
    """Judge the series (DCGM_SERIES) of `[start, end)`, at most an hour, epoch ms.

    `names` are the names of all DCGM metrics that are there, configured or not; `series` has the samples of those that
    are configured and may have those of others.
    """
    known = [name for name in names if name in config.metrics]
    if not known:
        return SeriesDiagnosis([nothing_configured(names, start, end)], frozenset())
    seen = Seen.of(series, start, end, config)
    remarks = [check_without_uuid(seen)]
    if len(seen.hour.devices):
        checks = (
            check_devices,
            check_quantities,
            check_conventions,
            check_nodes,
            check_workload_labels,
            check_unlabelled,
            check_slurm_jobs,
            check_scrapes,
            check_silent,
            check_duplicates,
            check_instances,
            check_sharing,
            check_limits,
            check_rejected,
        )
        remarks += [remark for check in checks for remark in check(seen)]
        remarks.append(check_unused(seen, names))
    return SeriesDiagnosis(
        [remark for remark in remarks if remark is not None], frozenset(seen.hour.devices.model.tolist())
    )
