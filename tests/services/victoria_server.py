"""A VictoriaMetrics for tests, loaded through its import API.

`TEST_VICTORIAMETRICS_PROGRAM` names the program where it is not on the PATH as `victoria-metrics`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa
import requests

from tests.services.prometheus_server import free_port


def program() -> str | None:
    """The program, if there is one."""
    return os.environ.get("TEST_VICTORIAMETRICS_PROGRAM") or shutil.which("victoria-metrics")


@dataclass
class VictoriaServer:
    """A single-node VictoriaMetrics on loopback over one data folder; a context manager."""

    data: Path
    program: str
    port: int = field(default_factory=free_port)
    _process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def load(self, series: pa.Table) -> None:
        """Makes the samples of a DCGM_SERIES table searchable."""
        body = "\n".join(sample_lines(series, per_second=1000))
        requests.post(f"{self.url}/api/v1/import/prometheus", data=body.encode(), timeout=60).raise_for_status()
        requests.get(f"{self.url}/internal/force_flush", timeout=60).raise_for_status()

    def __enter__(self) -> Self:
        log = self.data.parent / f"{self.data.name}.log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [
                    self.program,
                    f"-storageDataPath={self.data}",
                    f"-httpListenAddr=127.0.0.1:{self.port}",
                    "-retentionPeriod=100y",
                    "-search.latencyOffset=0s",
                ],
                stdout=output,
                stderr=output,
            )
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RuntimeError(f"victoria-metrics ended: {log.read_text()[-2000:]}")
            try:
                if requests.get(f"{self.url}/health", timeout=1).ok:
                    return self
            except requests.RequestException:
                pass
            time.sleep(0.05)
        self.__exit__(None, None, None)
        raise RuntimeError(f"victoria-metrics does not get ready: {log.read_text()[-2000:]}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(timeout=30)
            self._process = None


def sample_lines(series: pa.Table, *, per_second: int) -> Iterator[str]:
    """The samples as text, a line each; an instant in seconds (1) or milliseconds (1000)."""
    for row in series.to_pylist():
        labels = ",".join(f'{name}="{_escaped(value)}"' for name, value in row["labels"])
        for at, value in zip(row["timestamps"], row["values"], strict=True):
            instant = round(at.timestamp() * 1000)
            told = f"{instant}" if per_second == 1000 else f"{instant // 1000}.{instant % 1000:03d}"
            yield f"{row['metric']}{{{labels}}} {_number(value)} {told}"


def _number(value: float) -> str:
    return {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}.get(repr(value), repr(value))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
