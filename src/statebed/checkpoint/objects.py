"""Objects that metadata refers to: fetched with a check of size and checksum, stored under a digest of their bytes."""

from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from statebed.errors import CorruptObjectError, MissingFileError, ObjectMissingError
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.format.digest import RunningDigest, crc32c, digest
from statebed.format.repeated_reads import read_checked
from statebed.format.sealed import open_sealed, seal
from statebed.storage import ObjectStore, put_verified

_FIX = "restore it from a backup, or fork to an older intact epoch: `statebed repair`"
_LOOKUPS_AT_ONCE = 64
MANY_IN_FOLDER = 100
"""Number of objects of a folder from which on the folder is listed, instead of looking them up one by one."""
_READS_AT_ONCE = 4
_PIECE_BYTES = 8 << 20


def fetch(store: ObjectStore, path: str, *, size: int, crc: int) -> bytes:
    """Return the bytes of an object after checking size and checksum. If a check fails, the read is repeated once."""
    return read_checked(lambda: _fetch_once(store, path, size=size, crc=crc))


def _fetch_once(store: ObjectStore, path: str, *, size: int, crc: int) -> bytes:
    where = f"{store.url}/{path}"
    try:
        data = store.get(path)
    except ObjectMissingError as error:
        raise MissingFileError("metadata refers to an object that does not exist", where=where, fix=_FIX) from error
    if len(data) != size:
        raise CorruptObjectError(
            f"an object has {len(data)} bytes, but its metadata says {size}", where=where, fix=_FIX
        )
    if crc32c(data) != crc:
        raise CorruptObjectError(
            "the checksum of an object differs from the one in its metadata", where=where, fix=_FIX
        )
    return data


def fetch_range(store: ObjectStore, path: str, start: int, length: int) -> bytes:
    """Return a range of a data file; the reader verifies its checksums."""
    try:
        return store.get_range(path, start, length)
    except ObjectMissingError as error:
        raise MissingFileError(
            "metadata refers to a data file that does not exist", where=f"{store.url}/{path}", fix=_FIX
        ) from error


def check_present(store: ObjectStore, sizes: Sequence[tuple[str, int]]) -> None:
    """Raise an error for the first object that is missing or has another size.

    A page of a listing has the sizes of a thousand objects, so a folder of which many objects are wanted is listed. An
    object that no listing has is looked up by itself.
    """
    folders = Counter(path.rpartition("/")[0] for path, _ in sizes)
    listed: dict[str, int] = {}

    def look_up(named: tuple[str, int]) -> None:
        path, size = named
        where = f"{store.url}/{path}"
        stored = listed.get(path)
        if stored is None:
            info = store.head(path)
            if info is None:
                raise MissingFileError("metadata refers to a file that does not exist", where=where, fix=_FIX)
            stored = info.size
        if stored != size:
            raise CorruptObjectError(f"a file has {stored} bytes, but its metadata says {size}", where=where, fix=_FIX)

    with ThreadPoolExecutor(_LOOKUPS_AT_ONCE, thread_name_prefix="statebed-head") as pool:
        many = [folder for folder, wanted in folders.items() if folder and wanted >= MANY_IN_FOLDER]
        for infos in pool.map(lambda folder: list(store.list(folder)), many):
            listed.update((info.path, info.size) for info in infos)
        list(pool.map(look_up, sizes))


def check_bytes(store: ObjectStore, named: Iterable[tuple[str, int, int]]) -> None:
    """Read every object (path, size, CRC-32C) in pieces, and raise an error for the first that is not intact."""

    def read(wanted_object: tuple[str, int, int]) -> None:
        path, size, crc = wanted_object
        running = RunningDigest()
        for start in range(0, size, _PIECE_BYTES):
            running.update(fetch_range(store, path, start, min(_PIECE_BYTES, size - start)))
        if running.crc32c() != crc:
            raise CorruptObjectError(
                "the checksum of a file differs from the one in its metadata", where=f"{store.url}/{path}", fix=_FIX
            )

    with ThreadPoolExecutor(_READS_AT_ONCE, thread_name_prefix="statebed-check") as pool:
        list(pool.map(lambda reference: read_checked(partial(read, reference)), named))


def fetch_subtask(store: ObjectStore, reference: pb.SubtaskReference) -> pb.OperatorCheckpointMetadata:
    """Return the metadata of one subtask that a record refers to."""
    data = fetch(store, reference.path, size=reference.size, crc=reference.crc32c)
    return open_sealed(pb.OperatorCheckpointMetadata, data, where=f"{store.url}/{reference.path}")


def encode_subtask(metadata: pb.OperatorCheckpointMetadata) -> tuple[pb.SubtaskReference, bytes]:
    """Return the encoded metadata of a subtask and the reference to it for a record."""
    data = seal(metadata)
    path = names.operator_metadata(metadata.epoch, metadata.operator_id, metadata.subtask_index, digest(data))
    reference = pb.SubtaskReference(
        subtask_index=metadata.subtask_index,
        path=path,
        size=len(data),
        crc32c=crc32c(data),
        owned=metadata.owned,
    )
    return reference, data


def store_subtask(store: ObjectStore, metadata: pb.OperatorCheckpointMetadata) -> pb.SubtaskReference:
    """Write a subtask's metadata under its digest, verify it, and return the reference to it."""
    reference, data = encode_subtask(metadata)
    put_verified(store, reference.path, data)
    return reference
