"""Latencies of a real S3 server, seaweedfs on loopback, through the store that jobs use."""

import sys
import tempfile
from pathlib import Path

from bench.scale.s3 import Latencies, measure
from statebed.storage import get_storage_provider

_TESTS = Path(__file__).parents[2] / "tests"


def measured_latencies() -> Latencies:
    """Start the server of the S3 tests, measure it, and end it."""
    if str(_TESTS) not in sys.path:
        sys.path.insert(0, str(_TESTS))
    from s3.server import running_server  # noqa: PLC0415 - a helper of the tests, which are no package

    with tempfile.TemporaryDirectory(prefix="statebed-bench-") as folder, running_server(Path(folder)) as server:
        store = get_storage_provider(f"s3://{server.bucket}/latency", server.options)
        return measure(store, source="measured at seaweedfs on loopback")
