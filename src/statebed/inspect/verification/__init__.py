"""Verification of a job's objects: damaged and missing ones, what needs them, and unreferenced ones."""

from statebed.inspect.verification.findings import (
    Finding,
    ObjectKind,
    Orphan,
    OrphanKind,
    SinkTable,
    Trouble,
    Verification,
)
from statebed.inspect.verification.verify import Progress, verify, verify_log

__all__ = [
    "Finding",
    "ObjectKind",
    "Orphan",
    "OrphanKind",
    "Progress",
    "SinkTable",
    "Trouble",
    "Verification",
    "verify",
    "verify_log",
]
