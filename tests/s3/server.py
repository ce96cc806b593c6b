"""A real S3 server for the tests: seaweedfs on loopback, free ports, a folder of its own, gone at the end."""

import contextlib
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from loopback import free_ports, without_proxy

from statebed.storage import ObjectStore, get_storage_provider

READY_WITHIN_SECONDS = 60.0
_NO_FEATURES = ("-s3.iam=false", "-s3.autoCreateBucket=false", "-s3.port.iceberg=0", "-s3.port.lance=0")
_SMALL = ("-master.telemetry=false", "-volume.max=20")


@dataclass(frozen=True)
class S3Server:
    """Address and users of the server, and the bucket made for the tests."""

    endpoint: str
    access_key: str = "test-key"
    secret_key: str = "test-secret"
    bucket: str = "statebed"

    @property
    def options(self) -> dict[str, str]:
        return {
            "aws_endpoint_url": self.endpoint,
            "aws_region": "us-east-1",
            "aws_access_key_id": self.access_key,
            "aws_secret_access_key": self.secret_key,
            "allow_http": "true",
        }

    @property
    def environment(self) -> dict[str, str]:
        """The same as variables, for child processes."""
        return {name.upper(): value for name, value in self.options.items() if name != "allow_http"} | {
            "AWS_ALLOW_HTTP": "true"
        }


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A server for all tests of the session."""
    with running_server(tmp_path_factory.mktemp("seaweedfs")) as server:
        yield server


@contextlib.contextmanager
def running_server(folder: Path, *, volume_mb: int = 64) -> Iterator[S3Server]:
    """Start the server in an empty folder, make the bucket, and end the server by its id."""
    ports = free_ports(8)
    server = S3Server(endpoint=f"http://127.0.0.1:{ports[6]}")
    with (
        without_proxy(),
        (folder / "server.log").open("wb") as log,
        subprocess.Popen(_command(folder, server, ports, volume_mb), stdout=log, stderr=subprocess.STDOUT) as process,
    ):
        try:
            _wait_until_ready(process, server, folder / "server.log")
            _make_bucket(server, master=f"127.0.0.1:{ports[0]}.{ports[1]}")
            yield server
        finally:
            process.kill()  # it takes its time to stop in order, and nothing of it is kept


@pytest.fixture
def s3_url(s3_server: S3Server) -> str:
    """A folder in the bucket that no other test uses."""
    return f"s3://{s3_server.bucket}/{uuid.uuid4().hex}"


@pytest.fixture
def s3_store(s3_server: S3Server, s3_url: str) -> ObjectStore:
    """An empty store on the S3 server."""
    return get_storage_provider(s3_url, s3_server.options)


def _weed() -> str:
    return str(Path(sys.executable).parent / "weed")


def _command(folder: Path, server: S3Server, ports: tuple[int, ...], volume_mb: int) -> tuple[str, ...]:
    data = folder / "data"
    data.mkdir()
    identity = {
        "name": "tests",
        "credentials": [{"accessKey": server.access_key, "secretKey": server.secret_key}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    config = folder / "s3.json"
    config.write_text(json.dumps({"identities": [identity]}))
    services = ("master", "volume", "filer", "s3")
    numbered = (
        f"-{service}.port{kind}={ports[2 * index + offset]}"
        for index, service in enumerate(services)
        for offset, kind in enumerate(("", ".grpc"))
    )
    place = (f"-dir={data}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3", f"-s3.config={config}")
    return (
        _weed(),
        "server",
        *place,
        *numbered,
        *_NO_FEATURES,
        *_SMALL,
        f"-master.volumeSizeLimitMB={volume_mb}",
    )


def _wait_until_ready(process: subprocess.Popen[bytes], server: S3Server, log: Path) -> None:
    deadline = time.monotonic() + READY_WITHIN_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with (
            contextlib.suppress(urllib.error.URLError, OSError),
            urllib.request.urlopen(f"{server.endpoint}/healthz", timeout=2),  # noqa: S310 - our own http://
        ):
            return
        time.sleep(0.1)
    pytest.fail(f"the S3 server was not ready; the end of its log:\n{log.read_text()[-2000:]}")


def _make_bucket(server: S3Server, *, master: str) -> None:
    done = subprocess.run(
        (_weed(), "shell", f"-master={master}"),
        input=f"s3.bucket.create -name {server.bucket}\n",
        capture_output=True,
        text=True,
        timeout=READY_WITHIN_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
