"""ClickHouse's HTTP protocol in front of chDB, so that the real HTTP client can be tested without a server.

`ClickHouseFront` runs this file as a program. As on a server, settings and the database come with each request, errors
have their code in a header, and the answer may be compressed. Faults are taken by the next requests that contain
their text; what was asked is kept.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import ssl
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qsl, quote, urlsplit

import chdb
import requests

USER = "finops"

# What the protocol itself takes; every other parameter is a setting of the query.
TRANSPORT = {
    *("query", "database", "session_id", "query_id", "compress", "decompress", "wait_end_of_query", "quota_key"),
    *("client_protocol_version", "send_progress_in_http_headers", "http_headers_progress_interval_ms"),
    *("enable_http_compression", "cancel_http_readonly_queries_on_client_close", "default_format", "user", "password"),
}
STATUS = {516: 403, 497: 403, 60: 404, 81: 404}


class Front(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    folder = ""
    authorization = ""
    faults: list[dict[str, Any]] = []  # noqa: RUF012 - one server a process
    seen: list[dict[str, Any]] = []  # noqa: RUF012
    lock = threading.Lock()

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if path == "/ping":
            self._answer(200, b"Ok.\n")
        elif path == "/front/seen":
            self._answer(200, json.dumps(self.seen).encode())
        elif path == "/front/faults":
            self._answer(200, json.dumps(self.faults).encode())
        else:
            self._serve(b"")

    def do_POST(self) -> None:
        body = self._body()
        if urlsplit(self.path).path == "/front/faults":
            type(self).faults[:] = json.loads(body)
            self._answer(200, b"")
        else:
            self._serve(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nothing: stdout is for the port."""

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            body = b"".join(parts)
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body

    def _serve(self, body: bytes) -> None:
        parameters = dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))
        request = (parameters.get("query", "") + "\n").encode() + body if "query" in parameters else body
        self.seen.append(
            {
                "path": self.path,
                "start": request[:200].decode(errors="replace"),
                "settings": {name: value for name, value in parameters.items() if name not in TRANSPORT},
            }
        )
        if self.headers.get("Authorization") != self.authorization:
            self._fail("Code: 516. DB::Exception: default: Authentication failed: password is incorrect. (AUTH)")
            return
        fault = self._fault(request)
        if fault == "drop":
            self._hang_up()
        elif fault and fault.isdecimal():
            self._answer(int(fault), b"<html>proxy</html>")
        elif fault and fault.startswith("Code"):
            self._fail(fault)
        else:
            self._run(request, parameters, fault)

    def _fault(self, request: bytes) -> str | None:
        with self.lock:
            for index, fault in enumerate(self.faults):
                if fault["in"].encode() in request:
                    return str(self.faults.pop(index)["fault"])
        return None

    def _run(self, request: bytes, parameters: dict[str, str], fault: str | None) -> None:
        try:
            form, result = run(self.folder, request, parameters)
        except RuntimeError as error:
            self._fail(str(error))
            return
        if fault == "drop after":
            self._hang_up()
            return
        headers = {"X-ClickHouse-Format": form, "X-ClickHouse-Timezone": os.environ["TZ"], "X-ClickHouse-Summary": "{}"}
        if "gzip" in self.headers.get("Accept-Encoding", "") and parameters.get("enable_http_compression") == "1":
            result, headers["Content-Encoding"] = gzip.compress(result, 1), "gzip"
        if fault == "cut":
            self.send_response(200)
            for name, value in {**headers, "Content-Length": str(len(result))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(result[: len(result) // 2])
            self._hang_up()
            return
        self._answer(200, result, headers)

    def _fail(self, message: str) -> None:
        found = re.search(r"Code: (\d+)", message)
        code = int(found[1]) if found else 1002
        text = f"{message} (version 26.5.1.1 (official build))\n"
        self._answer(STATUS.get(code, 500), text.encode(), {"X-ClickHouse-Exception-Code": str(code)})

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.close()


def run(folder: str, request: bytes, parameters: dict[str, str]) -> tuple[str, bytes]:
    """Run one request on a handle of its own, whose database and settings nobody else has; format and result."""
    connection = chdb.connect(folder)
    try:
        if parameters.get("database"):
            connection.query(f"USE `{parameters['database']}`")
        bound = {name[6:]: value for name, value in parameters.items() if name.startswith("param_")}
        for name, value in parameters.items():
            if name not in TRANSPORT and not name.startswith("param_"):
                connection.query(f"SET {name} = '{value}'")
        insert = re.match(rb"\s*(INSERT INTO .*?)\s+FORMAT (\w+)\s*\n", request, re.DOTALL)
        if insert:
            with tempfile.NamedTemporaryFile() as file:
                Path(file.name).write_bytes(request[insert.end() :])
                into, form = insert[1].decode(), insert[2].decode()
                connection.query(f"{into} FROM INFILE '{file.name}' FORMAT {form}")
            return form, b""
        text = request.decode()
        asked = re.search(r"\sFORMAT\s+(\w+)\s*;?\s*$", text)
        form = asked[1] if asked else "TabSeparated"
        sql = text[: asked.start()] if asked else text
        return form, bytes(connection.query(sql, form, params=bound).bytes() or b"")
    finally:
        connection.close()


class ClickHouseFront:
    """A server of databases in `folder`; a context manager. `kill` crashes it, `start` starts it again at its port."""

    def __init__(
        self, folder: Path, password: str, certificate: tuple[Path, Path] | None = None, timezone: str = "UTC"
    ) -> None:
        self._arguments = [str(folder), USER, password]
        self._certificate = certificate
        self._timezone = timezone
        self._port = 0
        self._process: subprocess.Popen[str] | None = None
        self._password = password

    def url(self, database: str, password: str | None = None) -> str:
        """EAI_CLICKHOUSE_URL of a database, with the right password unless another is given."""
        secret = quote(self._password if password is None else password, safe="")
        return f"{self._base().replace('://', f'://{USER}:{secret}@')}/{database}"

    def faults(self, *faults: tuple[str, str]) -> None:
        """Each (text, fault): the next request with this text gets an HTTP status, `Code: ...`, `drop`, `drop after`
        (it was executed) or `cut`."""
        wanted = [{"in": text, "fault": fault} for text, fault in faults]
        requests.post(f"{self._base()}/front/faults", json=wanted, timeout=10).raise_for_status()

    def left(self) -> int:
        """How many faults no request has met yet."""
        return len(requests.get(f"{self._base()}/front/faults", timeout=10).json())

    def seen(self) -> list[dict[str, Any]]:
        """The requests so far."""
        found: list[dict[str, Any]] = requests.get(f"{self._base()}/front/seen", timeout=10).json()
        return found

    def start(self) -> Self:
        files = [str(path) for path in self._certificate or ()]
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(self._port), *self._arguments, *files],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"TZ": self._timezone},
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the ClickHouse front did not start")
        self._port = int(line)
        return self

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.communicate()

    def _base(self) -> str:
        return f"{'https' if self._certificate else 'http'}://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.communicate("", timeout=30)


def main() -> None:
    port, folder, user, password, *certificate = sys.argv[1:]
    engine = chdb.connect(folder)  # one handle that stays keeps the engine open
    Front.folder = folder
    Front.authorization = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
    server = ThreadingHTTPServer(("127.0.0.1", int(port)), Front)
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    sys.stdin.read()
    server.shutdown()
    engine.close()


if __name__ == "__main__":
    main()
