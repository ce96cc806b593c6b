"""A real PostgreSQL server for the tests: on a socket of its own folder, as a user without rights, gone at the end."""

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

FOUND_WITHIN_SECONDS = 280.0
READY_WITHIN_SECONDS = 60.0
_FIND = Path(__file__).parents[2] / "scripts" / "find-postgres"
_FAST = ("fsync=off", "synchronous_commit=off", "full_page_writes=off", "shared_buffers=32MB", "max_connections=30")


@dataclass(frozen=True)
class PostgresServer:
    """Address and users of the server."""

    folder: Path
    password: str
    process: subprocess.Popen[bytes]
    user: str = "tester"

    @property
    def dsn(self) -> str:
        """A connection string without password."""
        return f"host={self.folder} user={self.user} dbname=postgres"


@dataclass(frozen=True)
class PostgresSchema:
    """An empty schema that no other test uses, and in which its connections work."""

    server: PostgresServer
    name: str

    @property
    def dsn(self) -> str:
        return f"{self.server.dsn} options='-c search_path={self.name}'"

    @property
    def password(self) -> str:
        return self.server.password

    def connect(self) -> "psycopg.Connection[Any]":
        return psycopg.connect(self.dsn, password=self.password, autocommit=True, connect_timeout=10)

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        with self.connect() as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """Make a cluster, start the server, and end it by its id."""
    programs = _programs()
    folder = Path(tempfile.mkdtemp(prefix="statebed-pg-"))
    who = _unprivileged(folder)
    server_password = secrets.token_hex(16)
    (folder / "password").write_text(server_password)
    (folder / "password").chmod(0o644)
    try:
        who_may = ("-U", "tester", "--auth=scram-sha-256", f"--pwfile={folder / 'password'}")
        made = subprocess.run(
            (str(programs / "initdb"), "-D", str(folder / "data"), *who_may, "-E", "UTF8", "--locale=C", "--no-sync"),
            capture_output=True,
            text=True,
            timeout=READY_WITHIN_SECONDS,
            check=False,
            cwd=folder,
            **who,
        )
        assert made.returncode == 0, made.stderr[-2000:]
        settings = [part for setting in _FAST for part in ("-c", setting)]
        place = ("-D", str(folder / "data"), "-k", str(folder), "-c", "listen_addresses=")
        # It ends with the tests, also when they are killed.
        command = ("setpriv", "--pdeathsig", "QUIT", str(programs / "postgres"), *place, *settings)
        with (folder / "server.log").open("wb") as log:
            process: subprocess.Popen[bytes] = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, cwd=folder, **who
            )
        server = PostgresServer(folder, server_password, process)
        try:
            _wait_until_ready(server)
            yield server
        finally:
            process.send_signal(signal.SIGQUIT)  # at once: nothing of it is kept
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def postgres(postgres_server: PostgresServer) -> PostgresSchema:
    """An empty schema: a database of its own would be a thousand files."""
    schema = PostgresSchema(postgres_server, f"t{uuid.uuid4().hex[:12]}")
    schema.run(f"create schema {schema.name}")
    return schema


def _programs() -> Path:
    done = subprocess.run([_FIND], capture_output=True, text=True, timeout=FOUND_WITHIN_SECONDS, check=False)
    if done.returncode != 0:
        pytest.fail(f"there is no PostgreSQL server for the tests: {done.stderr.strip()[-500:]}")
    return Path(done.stdout.strip())


def _unprivileged(folder: Path) -> dict[str, Any]:
    """Return the user to run as: PostgreSQL refuses root, so then a user without rights."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            continue
        os.chown(folder, user.pw_uid, user.pw_gid)
        folder.chmod(0o755)
        return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    pytest.fail("PostgreSQL refuses to run as root, and there is neither a user postgres nor nobody")


def _wait_until_ready(server: PostgresServer) -> None:
    deadline = time.monotonic() + READY_WITHIN_SECONDS
    while time.monotonic() < deadline and server.process.poll() is None:
        try:
            PostgresSchema(server, "public").connect().close()
        except psycopg.OperationalError:
            time.sleep(0.1)
        else:
            return
    pytest.fail(f"PostgreSQL was not ready; the end of its log:\n{(server.folder / 'server.log').read_text()[-2000:]}")
