"""A real S3 server: seaweedfs on loopback, as the S3 tests start it."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from statebed.storage import ObjectStore, get_storage_provider

_TESTS = Path(__file__).parents[1] / "tests"


@contextlib.contextmanager
def s3_store(folder: Path, prefix: str, *, volume_mb: int = 64) -> Iterator[ObjectStore]:
    """Start the server in an empty folder, yield a store in its bucket, and end the server; it holds 20 volumes."""
    if str(_TESTS) not in sys.path:
        sys.path.insert(0, str(_TESTS))
    from s3.server import running_server  # noqa: PLC0415 - a helper of the tests, which are no package

    with running_server(folder, volume_mb=volume_mb) as server:
        yield get_storage_provider(f"s3://{server.bucket}/{prefix}", server.options)
