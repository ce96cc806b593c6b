"""Start-up probe: checks that the store creates an object only if it is absent.

Every commit relies on that. Some S3-compatible stores accept the condition and ignore it, some file systems have no
hard links; there, two runs could both win the same epoch. The store is therefore probed before anything else, and
refused with an explanation.
"""

import contextlib
import secrets
import threading
from concurrent.futures import ThreadPoolExecutor

from statebed.errors import OutcomeUnknownError, PutIfAbsentError, StatebedError
from statebed.storage.object_store import ObjectStore, PutOutcome

PROBE_FOLDER = ".statebed-probe"
_CONTENDERS = 4
_TRIES = 3
_START_TIMEOUT_SECONDS = 30.0


def probe_put_if_absent(store: ObjectStore) -> None:
    """Raise PutIfAbsentError if the store ignores the condition. Leaves nothing behind.

    A store that cannot be reached or written raises its own error: CredentialsError, StoreNotWritableError,
    BucketMissingError, StoreUnavailableError.

    >>> from statebed.storage.memory_store import MemoryStore
    >>> probe_put_if_absent(MemoryStore())
    """
    store.list_level(PROBE_FOLDER)  # a read first: checks credentials and bucket before anything is written
    token = secrets.token_hex(8)
    paths = (f"{PROBE_FOLDER}/{token}-twice", f"{PROBE_FOLDER}/{token}-at-once")
    try:
        _two_in_a_row(store, paths[0])
        _several_at_once(store, paths[1])
    finally:
        for path in paths:
            with contextlib.suppress(StatebedError):
                store.delete(path)


def _two_in_a_row(store: ObjectStore, path: str) -> None:
    _create(store, path, b"first")
    second = _create(store, path, b"second")
    if second is PutOutcome.CREATED:
        raise _ignored(store, "a second create of the same object was accepted")
    if store.get(path) != b"first":
        raise _ignored(store, "a second create said 'exists' and yet replaced the bytes")


def _several_at_once(store: ObjectStore, path: str) -> None:
    barrier = threading.Barrier(_CONTENDERS, timeout=_START_TIMEOUT_SECONDS)

    def contend(number: int) -> PutOutcome:
        barrier.wait()
        return _create(store, path, b"contender %d" % number)

    with ThreadPoolExecutor(_CONTENDERS, thread_name_prefix="statebed-probe") as pool:
        outcomes = list(pool.map(contend, range(_CONTENDERS)))
    winners = [number for number, outcome in enumerate(outcomes) if outcome is PutOutcome.CREATED]
    stored = store.get(path)
    if len(winners) > 1:
        raise _ignored(store, f"{len(winners)} of {_CONTENDERS} creates of one object at once were accepted")
    if winners and stored != b"contender %d" % winners[0]:
        raise _ignored(store, "the bytes of a create that won were replaced by one that lost")


def _create(store: ObjectStore, path: str, data: bytes) -> PutOutcome:
    for _ in range(_TRIES - 1):
        with contextlib.suppress(OutcomeUnknownError):
            return store.put_if_absent(path, data)
    return store.put_if_absent(path, data)


def _ignored(store: ObjectStore, seen: str) -> PutIfAbsentError:
    return PutIfAbsentError(
        f"this store ignores 'create only if absent': {seen}; two runs could both commit the same epoch",
        where=store.url,
        fix="use a store that honours it: a local disk, Amazon S3, Google Cloud Storage, Azure Blob Storage, "
        "or an S3-like with conditional writes (If-None-Match)",
    )
