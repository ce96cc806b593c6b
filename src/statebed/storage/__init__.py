"""Where bytes live: the store protocol, its implementations, and the way from a URL to one of them."""

from statebed.storage.base import Listing, ObjectInfo, ObjectStore, PutOutcome
from statebed.storage.faults import Fault, FaultStore, Operation, SimulatedCrash, Verb, cut_to, flip_byte
from statebed.storage.local import LocalStore
from statebed.storage.memory import MemoryStore
from statebed.storage.probe import probe_put_if_absent
from statebed.storage.provider import get_storage_provider
from statebed.storage.scoped import ScopedStore
from statebed.storage.verified import put_verified

__all__ = [
    "Fault",
    "FaultStore",
    "Listing",
    "LocalStore",
    "MemoryStore",
    "ObjectInfo",
    "ObjectStore",
    "Operation",
    "PutOutcome",
    "ScopedStore",
    "SimulatedCrash",
    "Verb",
    "cut_to",
    "flip_byte",
    "get_storage_provider",
    "probe_put_if_absent",
    "put_verified",
]
