"""A real `dagster dev` for tests: webserver, daemon and code server, in a session of its own; and its GraphQL API.

Also code servers that stand by themselves, each with an environment of its own.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import requests
from dagster._core.errors import DagsterUserCodeUnreachableError
from dagster._grpc.client import DagsterGrpcClient

from tests.services.prometheus_server import free_port

AS_FROM_A_TERMINAL = (
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
)
"""A process that a shell started in the background ignores SIGINT, and so would all its children."""


MODULE = ("-m", "finops_pipeline.definitions")
"""What is loaded unless a test says otherwise."""


@dataclass
class DagsterProcess(ABC):
    """A `dagster` command that serves on a loopback port; a context manager that leaves no process behind.

    It starts at once and takes its time: `wait` for it before the first question.
    """

    home: Path
    settings: Mapping[str, str]
    port: int = field(default_factory=free_port)
    _process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self.home / f"{type(self).__name__}-{self.port}.log"

    @abstractmethod
    def arguments(self) -> Sequence[str]:
        """What follows `dagster` on its command line."""

    def program(self) -> Sequence[str]:
        """The whole command line."""
        return [str(Path(sys.executable).with_name("dagster")), *self.arguments()]

    @abstractmethod
    def answers(self) -> bool:
        """Whether it is ready."""

    def __enter__(self) -> Self:
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", AS_FROM_A_TERMINAL, *self.program()],
                env={**os.environ, **self.settings, "DAGSTER_HOME": str(self.home), "DAGSTER_DISABLE_TELEMETRY": "1"},
                cwd=self.home,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self

    def wait(self, seconds: float = 150) -> None:
        """Until it is ready."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            assert self._process is not None
            if self._process.poll() is not None:
                break
            if self.answers():
                return
            time.sleep(0.2)
        raise RuntimeError(f"{type(self).__name__} does not get ready: {self.log.read_text()[-3000:]}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(timeout=10)
        if not self._gone(20):
            for pid in self.processes():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._gone(10)

    def _gone(self, seconds: float) -> bool:
        """Whether all of its processes end within this time: code servers outlive their parent a little."""
        deadline = time.monotonic() + seconds
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.1)
        return not self.processes()

    def processes(self) -> list[int]:
        """Everything that lives in the session that we started."""
        assert self._process is not None
        found = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                state, _, _, session = path.read_text().rpartition(")")[2].split()[:4]
            except OSError:
                continue
            if int(session) == self._process.pid and state != "Z":
                found.append(int(path.parent.name))
        return found


@dataclass
class DagsterServer(DagsterProcess):
    """`dagster dev` on loopback over the instance in `home`."""

    load: Sequence[str] = MODULE

    def arguments(self) -> Sequence[str]:
        return ["dev", *self.load, "-h", "127.0.0.1", "-p", str(self.port)]

    def answers(self) -> bool:
        """Whether the webserver answers; then it has loaded the definitions."""
        try:
            return requests.get(f"http://127.0.0.1:{self.port}/server_info", timeout=5).ok
        except requests.RequestException:
            return False

    def ask(self, query: str, **variables: object) -> Any:
        """The data of a GraphQL answer without errors."""
        answer = requests.post(
            f"http://127.0.0.1:{self.port}/graphql", json={"query": query, "variables": variables}, timeout=60
        ).json()
        if "errors" in answer:
            raise RuntimeError(f"GraphQL: {answer['errors']}")
        return answer["data"]


class CodeServer(DagsterProcess):
    """A code location of its own: it and the runs that it starts have the environment of this process."""

    def arguments(self) -> Sequence[str]:
        return ["api", "grpc", *MODULE, "-h", "127.0.0.1", "-p", str(self.port)]

    def answers(self) -> bool:
        """Whether it answers; it does once it has loaded the definitions."""
        try:
            return bool(DagsterGrpcClient(host="127.0.0.1", port=self.port).ping("ready"))
        except DagsterUserCodeUnreachableError:
            return False
