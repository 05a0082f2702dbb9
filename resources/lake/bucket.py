"""The lake's files in a bucket of S3, or of a store that speaks its protocol.

What belongs here: publication, reading and listing by requests, and what a failed request means. What does not: what is
in a file.

An object appears when its upload is complete: one PUT, or a multipart upload once it is completed. What a killed writer
leaves behind is parts that nobody can read (docs/lake.md: let the store expire them).

Endpoint, region and keys are those of the AWS variables and of the AWS SDK's chain of credentials; none is kept here.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NoReturn
from urllib.parse import urlsplit

import duckdb
import pyarrow as pa
import pyarrow.fs as pafs

from finops_pipeline.errors import SourceError, UsageError
from finops_pipeline.resources.lake.layout import CLUSTER, FILE, HOUR, cluster_of, hour_of, viewed, write_parquet

SCHEME: Final = "s3://"
CONNECT_SECONDS: Final = 5
SILENT_SECONDS: Final = 20
"""A request that moves no byte for so long is lost."""
TRIES: Final = 3
MAGIC: Final = b"PAR1"
"""The end of every Parquet file."""
READS: Final = 10
"""So often an object is read that is replaced while it is read."""
LISTINGS: Final = 8
"""Tables whose objects are listed at the same time."""


class Bucket:
    """The objects under `s3://bucket/prefix`; paths are relative to it, as `resources.lake_layout` forms them.

    Every method raises SourceError if the store refuses or does not answer.
    """

    def __init__(self, url: str) -> None:
        self.where = url.rstrip("/")
        self._root = self.where.removeprefix(SCHEME)
        self._endpoint = _endpoint()
        self._files = pafs.S3FileSystem(  # type: ignore[call-arg] # pyarrow-stubs 20 lack two
            endpoint_override=self._endpoint,
            region=os.environ.get("AWS_REGION")
            or os.environ.get("AWS_DEFAULT_REGION")
            or ("us-east-1" if self._endpoint else None),
            tls_ca_file_path=os.environ.get("AWS_CA_BUNDLE"),
            connect_timeout=CONNECT_SECONDS,
            request_timeout=SILENT_SECONDS,
            retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=TRIES),
            allow_delayed_open=True,  # a small object is one PUT
            background_writes=True,  # without it pyarrow 26 publishes an empty object after a part that failed
        )

    def publish(self, path: str, rows: pa.Table, *, synced: bool) -> None:  # noqa: ARG002 - the store acknowledges
        """Replace an object: a reader sees the old one or the new one."""
        buffer = pa.BufferOutputStream()
        write_parquet(rows, buffer)
        self._put(path, buffer.getvalue())

    def open(self, path: str) -> pa.NativeFile:
        """An object's bytes, read at once; FileNotFoundError if it is not there.

        pyarrow asks for the size first, and does not notice if fewer bytes come then because the object was replaced:
        they are read over zeros, and must end as a Parquet file does.
        """
        try:
            for _ in range(READS):
                with self._files.open_input_file(self._key(path)) as source:
                    content = bytearray(source.size())
                    source.readinto(content)
                if content.endswith(MAGIC):
                    break
        except OSError as error:
            if self._is_missing(path, error):
                raise FileNotFoundError(path) from None
            self._fail(path, "read", error)
        return pa.BufferReader(content)

    def remove(self, path: str) -> None:
        """Remove an object, if it is there."""
        try:
            self._files.delete_file(self._key(path))
        except OSError as error:
            if not self._is_missing(path, error):
                self._fail(path, "removed", error)

    def clusters(self, table: str) -> list[str]:
        """The folders of a table's clusters; some may hold no object any more."""
        names = (info.base_name for info in self._listed(table, recursive=False))
        return [name for name in names if name.startswith(CLUSTER)]

    def hours(self, folder: str) -> list[str]:
        """The folders of the hours that have an object, under `<table>/<cluster>`."""
        return [hour for _, hour, _ in self._landed(folder)]

    def views(self, connection: duckdb.DuckDBPyConnection, schemas: Mapping[str, pa.Schema]) -> None:
        """Make a view of each table: a dataset of the objects that are there now, each with its cluster and hour."""
        import pyarrow.dataset as pads

        parquet = pads.ParquetFileFormat()
        with ThreadPoolExecutor(LISTINGS) as pool:
            listed = pool.map(self._landed, schemas)
            for (table, schema), landed in zip(schemas.items(), listed, strict=True):
                columns = viewed(schema)
                hour_type = columns.field("hour").type
                fragments = [
                    parquet.make_fragment(
                        info.path,
                        self._files,
                        (pads.field("cluster") == pa.scalar(cluster_of(cluster)))
                        & (pads.field("hour") == pa.scalar(hour_of(hour), hour_type)),
                        file_size=info.size,
                    )
                    for cluster, hour, info in landed
                ]
                connection.register(table, pads.FileSystemDataset(fragments, columns, parquet, self._files))

    def try_out(self) -> None:
        """Write, read and remove a small object directly under the prefix."""
        name, content = f".finops-{secrets.token_hex(8)}", pa.py_buffer(b"finops")
        self._put(name, content)
        try:
            with self._files.open_input_file(self._key(name)) as source:
                back = source.read_buffer()
        except OSError as error:
            self._fail(name, "read", error)
        if not back.equals(content):
            raise SourceError(
                f"lake: {self._shown(name)} came back changed: set AWS_REQUEST_CHECKSUM_CALCULATION=when_required",
                transient=False,
            )
        self.remove(name)

    def _put(self, path: str, content: pa.Buffer) -> None:
        try:
            with self._files.open_output_stream(self._key(path)) as stream:
                stream.write(content)
        except OSError as error:
            self._fail(path, "written", error)

    def _landed(self, folder: str) -> list[tuple[str, str, pafs.FileInfo]]:
        """Folder of the cluster, folder of the hour, and object, of all that is under `folder`."""
        found = []
        for info in self._listed(folder, recursive=True):
            cluster, hour, name = ["", "", *info.path.split("/")][-3:]
            if name == FILE and hour.startswith(HOUR) and cluster.startswith(CLUSTER):
                found.append((cluster, hour, info))
        return found

    def _listed(self, folder: str, *, recursive: bool) -> list[pafs.FileInfo]:
        """What is below a folder; nothing if there is none."""
        try:
            return list(self._files.get_file_info(pafs.FileSelector(self._key(folder), recursive=recursive)))
        except FileNotFoundError:
            return []
        except OSError as error:
            self._fail(folder, "listed", error)

    def _is_missing(self, path: str, error: OSError) -> bool:
        """Whether an object is not there.

        Only a listing distinguishes it from a bucket that is not there, and from an object that may not be read where the
        policy allows to list no more than the prefix.
        """
        if not isinstance(error, FileNotFoundError) and _name(str(error)) != "ACCESS_DENIED":
            return False
        folder, _, name = path.rpartition("/")
        return all(info.base_name != name for info in self._listed(folder, recursive=False))

    def _key(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def _shown(self, path: str) -> str:
        return f"{self.where}/{path}" if path else self.where

    def _fail(self, path: str, done: str, error: OSError) -> NoReturn:
        meaning, transient = _meaning(str(error), self._root.partition("/")[0], self._endpoint)
        raise SourceError(f"lake: {self._shown(path)} cannot be {done}: {meaning}", transient=transient) from error


def _endpoint() -> str | None:
    """The store's address, if it is not AWS; UsageError if it is none."""
    for variable in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"):
        text = os.environ.get(variable)
        if not text:
            continue
        url = urlsplit(text)
        if url.username or url.password:
            raise UsageError(f"{variable} holds a user or password: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
        if url.scheme not in {"http", "https"} or not url.hostname or url.path.strip("/") or url.query:
            raise UsageError(f"{variable} is {text!r}: expected an address like https://minio.example:9000")
        return f"{url.scheme}://{url.netloc}"
    return None


def _name(message: str) -> str:
    """The AWS SDK's name of an error, or its HTTP status."""
    found = re.search(r"AWS Error (?:UNKNOWN \(HTTP status (\d+)\)|(\w+))", message)
    return (found[1] or found[2]) if found else ""


def _meaning(message: str, bucket: str, endpoint: str | None) -> tuple[str, bool]:
    """What a failure means and what to do, and whether it is worth another try. `message` is pyarrow's."""
    name = _name(message)
    store = endpoint or "AWS"
    if name == "NETWORK_CONNECTION":
        detail = message.rpartition("Details: ")[2] if "Details: " in message else "no answer"
        return f"{store} does not answer ({detail}): check AWS_ENDPOINT_URL, AWS_REGION and the network", True
    if name == "NO_SUCH_BUCKET":
        return f"{store} has no bucket {bucket}: make it, or correct FINOPS_LAKE_URL", False
    if name == "ACCESS_DENIED":
        keys, actions = "check the AWS variables of this process", "s3:GetObject, PutObject, DeleteObject, ListBucket"
        return f"{store} denies access to bucket {bucket}: {keys}, and allow {actions} (docs/lake.md)", False
    if name in _KEYS:
        keys = "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN"
        return f"{store} refuses the keys for bucket {bucket} ({name.lower()}): correct {keys}", False
    if name.startswith("3"):
        return f"bucket {bucket} is in another region of {store} (HTTP {name}): set AWS_REGION to its", False
    if name in _TRANSIENT or (name.isdigit() and int(name) >= 500):
        return f"{store} is not able to now ({name}): try again later", True
    return f"{store} says {message.partition('AWS Error ')[2] or message}", False


_KEYS: Final = frozenset(
    {
        "EXPIRED_TOKEN",
        "INCOMPLETE_SIGNATURE",
        "INVALID_ACCESS_KEY_ID",
        "INVALID_CLIENT_TOKEN_ID",
        "INVALID_SIGNATURE",
        "MISSING_AUTHENTICATION_TOKEN",
        "REQUEST_EXPIRED",
        "SIGNATURE_DOES_NOT_MATCH",
        "UNRECOGNIZED_CLIENT",
    }
)
_TRANSIENT: Final = frozenset(
    {
        "408",
        "429",
        "INTERNAL_FAILURE",
        "NO_SUCH_KEY",  # removed or replaced between two requests
        "NO_SUCH_UPLOAD",
        "REQUEST_TIMEOUT",
        "SERVICE_UNAVAILABLE",
        "SLOW_DOWN",
        "THROTTLING",
    }
)
