"""Azure's emulator for the tests: npm's azurite on loopback, installed into artifacts/ when it is not there yet."""

import base64
import contextlib
import hashlib
import hmac
import shutil
import socket
import subprocess
import time
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
from loopback import free_ports, without_proxy

from statebed.storage import ObjectStore, get_storage_provider

INSTALLED_WITHIN_SECONDS = 280.0
READY_WITHIN_SECONDS = 60.0
_FOLDER = Path(__file__).parents[2] / "artifacts" / "azurite"
_VERSION = "2021-12-02"


@dataclass(frozen=True)
class AzureServer:
    """Address of the emulator. Account and key are the ones that Microsoft publishes for emulators."""

    port: int
    account: str = "devstoreaccount1"
    key: str = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
    container: str = "statebed"

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}/{self.account}"

    @property
    def options(self) -> dict[str, str]:
        return {
            "azure_storage_account_name": self.account,
            "azure_storage_account_key": self.key,
            "azure_endpoint": self.endpoint,
            "allow_http": "true",
        }


@pytest.fixture(scope="session")
def azure_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzureServer]:
    """Start the emulator, make the container, and end the emulator by its id."""
    program = _installed()
    folder = tmp_path_factory.mktemp("azurite")
    server = AzureServer(port=free_ports(1)[0])
    place = ("--blobHost", "127.0.0.1", "--blobPort", str(server.port), "--location", str(folder))
    command = ("node", str(program), *place, "--skipApiVersionCheck", "--disableTelemetry", "--silent")
    with (
        without_proxy(),
        (folder / "server.log").open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT) as process,
    ):
        try:
            _wait_until_ready(process, server, folder / "server.log")
            _make_container(server)
            yield server
        finally:
            process.kill()


@pytest.fixture
def azure_url(azure_server: AzureServer) -> str:
    """A folder in the container that no other test uses."""
    return f"az://{azure_server.container}/{uuid.uuid4().hex}"


@pytest.fixture
def azure_store(azure_server: AzureServer, azure_url: str) -> ObjectStore:
    """An empty store on the emulator."""
    return get_storage_provider(azure_url, azure_server.options)


def _installed() -> Path:
    program = _FOLDER / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    if program.exists():
        return program
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.fail("npm and node are not installed, and azurite comes from npm")
    _FOLDER.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        ("npm", "install", "--prefix", str(_FOLDER), "--no-audit", "--no-fund", "--loglevel=error", "azurite@3"),
        capture_output=True,
        text=True,
        timeout=INSTALLED_WITHIN_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        pytest.fail(f"npm could not install azurite: {done.stderr.strip()[-300:]}")
    return program


def _wait_until_ready(process: subprocess.Popen[bytes], server: AzureServer, log: Path) -> None:
    deadline = time.monotonic() + READY_WITHIN_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", server.port), timeout=2),
        ):
            return
        time.sleep(0.1)
    pytest.fail(f"azurite was not ready; the end of its log:\n{log.read_text()[-2000:]}")


def _make_container(server: AzureServer) -> None:
    """Create the container by a request signed with the account's key; obstore has no verb for it."""
    headers = {"x-ms-date": f"{datetime.now(UTC):%a, %d %b %Y %H:%M:%S GMT}", "x-ms-version": _VERSION}
    canonical = "".join(f"{name}:{value}\n" for name, value in sorted(headers.items()))
    # The emulator's path begins with the account, which then stands in the resource twice.
    resource = f"/{server.account}/{server.account}/{server.container}\nrestype:container"
    text = "PUT" + "\n" * 12 + canonical + resource
    digest = hmac.new(base64.b64decode(server.key), text.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {server.account}:{base64.b64encode(digest).decode()}"
    request = urllib.request.Request(  # noqa: S310 - our own http:// address
        f"{server.endpoint}/{server.container}?restype=container", method="PUT", headers=headers
    )
    with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - our own http:// address
        assert answer.status == 201
