"""Check of one object, read once: its size, its checksum, the digest in its name, and each part of a data file.

Large objects are read in pieces, so memory does not grow with them. For a damaged data file, the damaged part is named
if its footer can be read.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import google_crc32c
import pyarrow as pa
import pyarrow.parquet as pq

from statebed.checkpoint.objects import fetch_range
from statebed.errors import ObjectMissingError
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.format.digest import RunningDigest, crc32c
from statebed.format.segment import chunk_ranges
from statebed.storage import ObjectStore

PIECE_BYTES = 8 << 20


@dataclass(frozen=True)
class Expectation:
    """Expected size and checksums of an object, from the metadata that refers to it."""

    path: str
    size: int
    crc32c: int
    entry: pb.FileEntry | None = None
    """Entry of a data file, whose parts have checksums too."""


@dataclass
class _Part:
    """A part of a data file with its own checksum."""

    start: int
    length: int
    expected: int
    name: str
    crc32c: int = field(default=0)


def problem_of_bytes(data: bytes, expected: Expectation) -> str | None:
    """Describe what is wrong with the bytes of an object, or return None."""
    if len(data) != expected.size:
        return f"it has {len(data)} bytes instead of {expected.size}"
    length = 0 if expected.entry is None else expected.entry.footer_size
    return _problem(expected, [(0, data)], footer=data[len(data) - length :])


def problem_of(store: ObjectStore, expected: Expectation) -> str | None:
    """Read an object, a large one in pieces, and describe what is wrong with it, or return None. Raise
    ObjectMissingError or MissingFileError if it does not exist.
    """
    if expected.size <= PIECE_BYTES:
        return problem_of_bytes(store.get(expected.path), expected)
    size = _size(store, expected.path)
    if size != expected.size:
        return f"it has {size} bytes instead of {expected.size}"
    length = 0 if expected.entry is None else expected.entry.footer_size
    footer = fetch_range(store, expected.path, size - length, length) if length else b""
    return _problem(expected, _pieces(store, expected), footer=footer)


def _problem(expected: Expectation, pieces: Iterable[tuple[int, bytes]], *, footer: bytes) -> str | None:
    parts: Sequence[_Part] = ()
    if expected.entry is not None and expected.entry.chunk_crc32c:
        parts_or_problem = _parts(footer, expected.entry)
        if isinstance(parts_or_problem, str):
            return parts_or_problem
        parts = parts_or_problem
    running = RunningDigest()
    for start, data in pieces:
        running.update(data)
        for part in parts:
            _extend(part, start, data)
    wrong = [part.name for part in parts if part.crc32c != part.expected]
    if wrong:
        return f"the checksum of {', '.join(wrong)} does not match its bytes"
    if running.crc32c() != expected.crc32c:
        return "its checksum does not match its bytes"
    named = names.digest_of(expected.path)
    if named is not None and named != running.digest():
        return "the digest of its bytes differs from the one in its name"
    return None


def _size(store: ObjectStore, path: str) -> int:
    info = store.head(path)
    if info is None:
        raise ObjectMissingError("an object does not exist", where=f"{store.url}/{path}")
    return info.size


def _pieces(store: ObjectStore, expected: Expectation) -> Iterator[tuple[int, bytes]]:
    for start in range(0, expected.size, PIECE_BYTES):
        yield start, fetch_range(store, expected.path, start, min(PIECE_BYTES, expected.size - start))


def _parts(footer: bytes, entry: pb.FileEntry) -> list[_Part] | str:
    """Return the column chunks of a data file, or a description of what is wrong with its footer."""
    if crc32c(footer) != entry.footer_crc32c:
        return "the checksum of its footer does not match its bytes"
    try:
        metadata = pq.read_metadata(pa.BufferReader(footer))
    except (pa.ArrowException, OSError) as error:
        return f"its footer does not parse: {error}"
    ranges = [
        (f"column {metadata.schema.column(index).path!r} of row group {group}", start, length)
        for group in range(metadata.num_row_groups)
        for index, (start, length) in enumerate(chunk_ranges(metadata, group))
    ]
    if len(ranges) != len(entry.chunk_crc32c) or metadata.num_rows != entry.rows:
        return f"it holds {metadata.num_rows} rows in {len(ranges)} column chunks, which differs from its entry"
    return [
        _Part(start, length, crc, name) for (name, start, length), crc in zip(ranges, entry.chunk_crc32c, strict=True)
    ]


def _extend(part: _Part, start: int, data: bytes) -> None:
    first, last = max(part.start, start), min(part.start + part.length, start + len(data))
    if first < last:
        part.crc32c = int(google_crc32c.extend(part.crc32c, data[first - start : last - start]))
