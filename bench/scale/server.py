"""Latencies of a real S3 server, seaweedfs on loopback, through the store that jobs use."""

import tempfile
from pathlib import Path

from bench.s3_server import s3_store
from bench.scale.s3 import Latencies, measure


def measured_latencies() -> Latencies:
    """Start a server, measure it, and end it."""
    with tempfile.TemporaryDirectory(prefix="statebed-bench-") as folder, s3_store(Path(folder), "latency") as store:
        return measure(store, source="measured at seaweedfs on loopback")
