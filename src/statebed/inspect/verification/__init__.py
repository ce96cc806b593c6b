"""Verification of a job's objects: damaged and missing ones, what needs them, and unreferenced ones."""

from statebed.inspect.verification.findings import (
    DamageKind,
    Finding,
    ObjectKind,
    Orphan,
    OrphanKind,
    SinkTable,
    Verification,
)
from statebed.inspect.verification.verify import Progress, verify, verify_log

__all__ = [
    "DamageKind",
    "Finding",
    "ObjectKind",
    "Orphan",
    "OrphanKind",
    "Progress",
    "SinkTable",
    "Verification",
    "verify",
    "verify_log",
]
