"""Storage: the store protocol, its implementations, and the mapping from URLs to them."""

from statebed.storage.local import LocalStore
from statebed.storage.memory_store import MemoryStore
from statebed.storage.object_store import Listing, ObjectInfo, ObjectStore, PutOutcome
from statebed.storage.probe import probe_put_if_absent
from statebed.storage.provider import get_storage_provider
from statebed.storage.scoped import ScopedStore
from statebed.storage.verified import create_verified, different_piece, put_verified

__all__ = [
    "Listing",
    "LocalStore",
    "MemoryStore",
    "ObjectInfo",
    "ObjectStore",
    "PutOutcome",
    "ScopedStore",
    "create_verified",
    "different_piece",
    "get_storage_provider",
    "probe_put_if_absent",
    "put_verified",
]
