"""A real S3 server for tests: moto's, in a process of its own, in front of which requests are counted and spoiled.

`python s3_server.py PORT` says its port on stdout and ends with its stdin. Buckets live in its memory.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import quote

import boto3  # type: ignore[import-untyped]
import pyarrow.fs as pafs
import requests

KEY, SECRET, REGION = "AKIDOFTESTS", "s3cret/of+tests", "eu-central-1"
HANG_SECONDS = 60


@dataclass(frozen=True)
class Seen:
    """A request: `PUT`, `/bucket/key` as it was sent, and its query."""

    method: str
    path: str
    query: str


class S3Server:
    """moto on loopback; a context manager."""

    def __init__(self) -> None:
        self._port = 0
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def environment(self, key: str = KEY, secret: str = SECRET, url: str | None = None) -> dict[str, str]:
        """The AWS variables of a client."""
        return {
            "AWS_ENDPOINT_URL": url or self.url,
            "AWS_REGION": REGION,
            "AWS_ACCESS_KEY_ID": key,
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def files(self) -> pafs.S3FileSystem:
        """A client of the server, to look at what is there."""
        return pafs.S3FileSystem(
            access_key=KEY,
            secret_key=SECRET,
            region=REGION,
            endpoint_override=self.url,
            allow_bucket_creation=True,
            background_writes=False,
        )

    def make_bucket(self, name: str) -> None:
        self.files().create_dir(name)

    def keys(self, bucket: str) -> list[str]:
        """The objects of a bucket."""
        found = self.files().get_file_info(pafs.FileSelector(bucket, recursive=True))
        return sorted(info.path.removeprefix(f"{bucket}/") for info in found if info.type == pafs.FileType.File)

    def user(self, name: str, policy: Mapping[str, Any] | None = None) -> dict[str, str]:
        """The AWS variables of a user with a policy of its own; users are made before `check_keys`."""
        iam = boto3.client(
            "iam", endpoint_url=self.url, region_name=REGION, aws_access_key_id=KEY, aws_secret_access_key=SECRET
        )
        iam.create_user(UserName=name)
        if policy is not None:
            iam.put_user_policy(UserName=name, PolicyName="lake", PolicyDocument=json.dumps(policy))
        key = iam.create_access_key(UserName=name)["AccessKey"]
        return self.environment(key["AccessKeyId"], key["SecretAccessKey"])

    def check_keys(self) -> None:
        """From now on, each request must be signed by a user whose policy allows it."""
        requests.post(f"{self.url}/moto-api/reset-auth", data=b"0", timeout=10).raise_for_status()

    def fault(self, method: str, text: str, fault: str, times: int = 1) -> None:
        """The next requests of a method with `text` in path or query get an HTTP status, `hang` or `drop`."""
        wanted = {"method": method, "in": text, "fault": fault, "times": times}
        requests.post(f"{self.url}/front/fault", json=wanted, timeout=10).raise_for_status()

    def left(self) -> int:
        """How many faults no request has met yet."""
        return int(requests.get(f"{self.url}/front/left", timeout=10).text)

    def wait_for_faults(self, seconds: float = 60) -> None:
        """Until every fault has been met."""
        until = time.monotonic() + seconds
        while self.left():
            assert time.monotonic() < until, "nothing ran into the fault"
            time.sleep(0.02)

    def seen(self) -> list[Seen]:
        """The requests since the last call."""
        found = requests.post(f"{self.url}/front/seen", timeout=10).json()
        return [Seen(*request) for request in found]

    def start(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(self._port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the S3 server did not start")
        self._port = int(line)
        return self

    def stop(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


class Front:
    """WSGI in front of `application`: remembers requests, spoils some."""

    def __init__(self, application: Callable[..., Iterable[bytes]]) -> None:
        self._application = application
        self._seen: list[tuple[str, str, str]] = []
        self._faults: list[dict[str, Any]] = []
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        method, query = environ["REQUEST_METHOD"], environ["QUERY_STRING"]
        path = quote(environ["PATH_INFO"].encode("latin-1"), safe="/=")
        with self._lock:
            if path.startswith("/front/"):
                body = self._control(path, environ)
                start_response("200 OK", [("Content-Length", str(len(body)))])
                return [body]
            self._seen.append((method, path, query))
            fault = self._fault(method, f"{path}?{query}")
        if fault is None:
            return self._application(environ, start_response)
        if fault == "hang":
            time.sleep(HANG_SECONDS)
        if fault in {"hang", "drop"}:
            environ["werkzeug.socket"].close()
            raise ConnectionError(fault)
        start_response(f"{fault} Fault", [("Content-Length", "0")])
        return [b""]

    def _control(self, path: str, environ: dict[str, Any]) -> bytes:
        if path == "/front/seen":
            seen, self._seen = self._seen, []
            return json.dumps(seen).encode()
        if path == "/front/fault":
            self._faults.append(json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))))
        return str(sum(fault["times"] for fault in self._faults)).encode()

    def _fault(self, method: str, target: str) -> str | None:
        for fault in self._faults:
            if fault["times"] and fault["method"] == method and fault["in"] in target:
                fault["times"] -= 1
                return str(fault["fault"])
        return None


def main() -> None:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    application = Front(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", int(sys.argv[1]), application, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    sys.stdin.read()
    server.shutdown()


if __name__ == "__main__":
    main()
