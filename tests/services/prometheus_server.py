"""A real Prometheus for tests, loaded from an OpenMetrics file, and a proxy that fails on purpose in front of it.

`TEST_PROMETHEUS_PROGRAMS` may name more `prometheus` programs (other versions, separated by `:`); the one on the PATH is
always tested.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import requests

PORTS = range(20_000, 32_768)
INSTALL = "install Prometheus (Debian: apt-get install prometheus)"


def programs() -> list[str]:
    """Every `prometheus` to test, the one on the PATH first."""
    more = os.environ.get("TEST_PROMETHEUS_PROGRAMS", "")
    return [_program("prometheus"), *filter(None, more.split(":"))]


def free_port() -> int:
    """A loopback port below the ephemeral range that nobody listens on."""
    for port in PORTS:
        offset = PORTS.start + (port - PORTS.start + os.getpid() * 97 + time.monotonic_ns() // 1000) % len(PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", offset))
            except OSError:
                continue
            return offset
    raise RuntimeError("no free port")


def load_blocks(openmetrics: Path, data: Path) -> None:
    """Makes the file's samples blocks of a Prometheus data folder. A `.gz` file is unpacked beside it first."""
    data.mkdir(parents=True, exist_ok=True)
    source = openmetrics
    if openmetrics.name.endswith(".gz"):
        source = data.parent / f"{data.name}.om"
        with gzip.open(openmetrics, "rb") as packed, source.open("wb") as plain:
            shutil.copyfileobj(packed, plain)
    made = subprocess.run(
        [_program("promtool"), "tsdb", "create-blocks-from", "openmetrics", str(source), str(data)],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        raise RuntimeError(f"promtool: {made.stdout}{made.stderr}")


@dataclass
class PrometheusServer:
    """A Prometheus on loopback over one data folder; a context manager. `stop` ends it, `kill` crashes it."""

    data: Path
    program: str = "prometheus"
    config: str = ""
    options: tuple[str, ...] = ()
    port: int = field(default_factory=free_port)
    _process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> Self:
        self.data.mkdir(parents=True, exist_ok=True)
        config = self.data.parent / f"{self.data.name}.yml"
        config.write_text(self.config or "scrape_configs: []\n")
        log = self.data.parent / f"{self.data.name}.log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [
                    _program(self.program),
                    f"--config.file={config}",
                    f"--storage.tsdb.path={self.data}",
                    f"--web.listen-address=127.0.0.1:{self.port}",
                    "--storage.tsdb.retention.time=100y",
                    *self.options,
                ],
                stdout=output,
                stderr=output,
            )
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RuntimeError(f"prometheus ended: {log.read_text()[-2000:]}")
            try:
                if requests.get(f"{self.url}/-/ready", timeout=1).ok:
                    return self
            except requests.RequestException:
                pass
            time.sleep(0.05)
        self.kill()
        raise RuntimeError(f"prometheus does not get ready: {log.read_text()[-2000:]}")

    def stop(self) -> None:
        self._end(kill=False)

    def kill(self) -> None:
        self._end(kill=True)

    def _end(self, *, kill: bool) -> None:
        if self._process is not None:
            if kill:
                self._process.kill()
            else:
                self._process.terminate()
            self._process.wait(timeout=30)
            self._process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


@dataclass
class Request:
    """A request as the proxy saw it."""

    path: str
    headers: dict[str, str]
    number: int
    """how many queries (`/api/v1/query`) came before it"""


@dataclass
class Answer:
    """What the proxy sends. `cut_at` closes the connection after that many bytes, with the full length announced."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=lambda: {"Content-Type": "application/json"})
    cut_at: int | None = None


Fault = Callable[[Request, Callable[[], Answer]], Answer]


class FaultProxy:
    """Stands before a real server and lets `fault` answer instead, with the real answer at hand; a context manager.

    `certificate` (certificate and key files) makes it speak TLS.
    """

    def __init__(self, target: str, fault: Fault, certificate: tuple[Path, Path] | None = None) -> None:
        self.requests: list[Request] = []
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                proxy._serve(self)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

        self._target = target
        self._fault = fault
        self._lock = threading.Lock()
        self._queries = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", free_port()), Handler)
        self._server.daemon_threads = True
        self._scheme = "http"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            self._scheme = "https"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self._server.server_port}"

    @property
    def queries(self) -> int:
        return self._queries

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        with self._lock:
            request = Request(handler.path, dict(handler.headers), self._queries)
            self.requests.append(request)
            self._queries += handler.path.startswith("/api/v1/query?")

        def real() -> Answer:
            got = requests.get(self._target + handler.path, timeout=60)
            return Answer(got.status_code, got.content, {"Content-Type": got.headers["Content-Type"]})

        answer = self._fault(request, real)
        try:
            handler.send_response(answer.status)
            for name, value in answer.headers.items():
                handler.send_header(name, value)
            handler.send_header("Content-Length", str(len(answer.body)))
            handler.end_headers()
            handler.wfile.write(answer.body[: answer.cut_at])
        except (BrokenPipeError, ConnectionResetError):
            pass
        if answer.cut_at is not None:
            handler.close_connection = True

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def failure(status: int, kind: str, text: str) -> Answer:
    """An error answer as Prometheus gives it."""
    return Answer(status, json.dumps({"status": "error", "errorType": kind, "error": text}).encode())


def own_certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that signs itself, and its key."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    return certificate, key


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise RuntimeError(f"no `{name}` here: {INSTALL}")
    return found
