"""P7: a flipped, cut or added byte in any stored object is detected, and the object is named."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from statebed.errors import CorruptObjectError, CorruptRecordError, InputError, NewerFormatError
from statebed.format import checkpoint_pb2 as pb
from statebed.format import segment_writer
from statebed.format.digest import crc32c
from statebed.format.ranges import WHOLE_SPACE
from statebed.format.schema import BIN, KEY_HASH
from statebed.format.sealed import TRAILER_TAG, open_sealed, seal
from statebed.format.segment import EncodedSegment, chunk_ranges, decode_segment, encode_segment
from statebed.format.segment_reader import SegmentReader

PATH = "checkpoints/000000000042/data/per_minute-windows-3.parquet"


def flips(data: bytes, positions: list[int]) -> list[bytes]:
    return [data[:at] + bytes([data[at] ^ (1 << (at % 8))]) + data[at + 1 :] for at in positions]


def ranged(data: bytes) -> Callable[[str, int, int], bytes]:
    return lambda _path, start, length: data[start : start + length]


@pytest.fixture(scope="module")
def encoded(segments: Any) -> EncodedSegment:
    result: EncodedSegment = encode_segment(segments.table(60), spec=segments.spec())
    return result


@pytest.fixture(scope="module")
def entry(encoded: EncodedSegment) -> pb.FileEntry:
    return encoded.file_entry(PATH, owned=WHOLE_SPACE)


def test_p7_every_flipped_byte_of_a_data_file_is_detected_and_named(
    encoded: EncodedSegment, entry: pb.FileEntry
) -> None:
    for damaged in flips(encoded.data, list(range(encoded.size))):
        with pytest.raises(CorruptObjectError) as caught:
            decode_segment(damaged, entry)
        assert caught.value.where == PATH


def test_p7_every_flipped_byte_that_a_partial_read_touches_is_detected_and_named(
    encoded: EncodedSegment, entry: pb.FileEntry
) -> None:
    # The opening magic is the only part that a reader of ranges never asks for.
    for damaged in flips(encoded.data, list(range(4, encoded.size))):
        with pytest.raises(CorruptObjectError) as caught:
            SegmentReader(entry, ranged(damaged)).read()
        assert caught.value.where == PATH


def test_p7_any_single_bad_transfer_of_a_partial_read_is_repeated(encoded: EncodedSegment, entry: pb.FileEntry) -> None:
    expected = str(SegmentReader(entry, ranged(encoded.data)).read().to_pylist())
    for bad in range(10):
        reads: list[int] = []

        def get_range(_: str, start: int, length: int, reads: list[int] = reads, bad: int = bad) -> bytes:
            reads.append(start)
            data = encoded.data[start : start + length]
            return flips(data, [length // 2])[0] if len(reads) - 1 == bad else data

        assert str(SegmentReader(entry, get_range).read().to_pylist()) == expected  # as text: NaN is not itself
        if len(reads) <= bad:
            break
    assert bad > 1, "footer and at least one row group were transferred badly once"


def test_p7_footer_and_column_chunks_cover_the_file_without_a_gap(encoded: EncodedSegment, entry: pb.FileEntry) -> None:
    reader = SegmentReader(entry, ranged(encoded.data))
    position = 4
    for group in range(reader.row_group_count):
        for start, length in chunk_ranges(reader.metadata, group):
            assert start == position
            position += length
    assert position == encoded.size - encoded.footer_size


def test_p7_sampled_flips_in_a_file_of_many_row_groups_are_detected(segments: Any) -> None:
    large = encode_segment(segments.table(20_000, bins=5), spec=segments.spec())
    entry = large.file_entry(PATH, owned=WHOLE_SPACE)
    assert SegmentReader(entry, ranged(large.data)).row_group_count > 3
    positions = np.random.default_rng(1).integers(4, large.size, 100).tolist()
    for damaged in flips(large.data, positions):
        with pytest.raises(CorruptObjectError):
            decode_segment(damaged, entry)
        with pytest.raises(CorruptObjectError):
            SegmentReader(entry, ranged(damaged)).read()


@pytest.mark.parametrize("length", [0, 1, 4, 12, -9, -1])
def test_p7_a_data_file_that_is_cut_short_is_detected_and_named(
    encoded: EncodedSegment, entry: pb.FileEntry, length: int
) -> None:
    cut = encoded.data[:length]
    with pytest.raises(CorruptObjectError, match=PATH):
        decode_segment(cut, entry)
    with pytest.raises(CorruptObjectError, match=PATH):
        SegmentReader(entry, ranged(cut)).read()


def test_p7_another_intact_file_under_the_name_is_detected(segments: Any, entry: pb.FileEntry) -> None:
    other = encode_segment(segments.table(60, seed=9), spec=segments.spec())
    with pytest.raises(CorruptObjectError):
        decode_segment(other.data, entry)
    with pytest.raises(CorruptObjectError):
        SegmentReader(entry, ranged(other.data))


def test_p7_a_page_checksum_guards_even_where_the_entrys_checksums_are_made_to_agree(
    encoded: EncodedSegment, entry: pb.FileEntry
) -> None:
    reader = SegmentReader(entry, ranged(encoded.data))
    start, length = chunk_ranges(reader.metadata, 0)[1]
    [damaged] = flips(encoded.data, [start + length - 3])
    forged = pb.FileEntry()
    forged.CopyFrom(entry)
    forged.crc32c = crc32c(damaged)
    forged.chunk_crc32c[1] = crc32c(damaged[start : start + length])
    with pytest.raises(CorruptObjectError, match="does not decode"):
        decode_segment(damaged, forged)
    with pytest.raises(CorruptObjectError, match="does not decode"):
        SegmentReader(forged, ranged(damaged)).read()


def test_an_entry_that_counts_other_rows_is_detected(encoded: EncodedSegment, entry: pb.FileEntry) -> None:
    wrong = pb.FileEntry()
    wrong.CopyFrom(entry)
    wrong.rows += 1
    with pytest.raises(CorruptObjectError, match="rows"):
        decode_segment(encoded.data, wrong)
    with pytest.raises(CorruptObjectError, match="rows"):
        SegmentReader(wrong, ranged(encoded.data))


# ---- reading parts ------------------------------------------------------------------------------------------------


def test_a_partial_read_fetches_only_what_it_needs(segments: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_writer, "PACKED_ROWS", 10)
    table = segments.table(2000, bins=10)
    encoded = encode_segment(table, spec=segments.spec())
    fetched: list[tuple[int, int]] = []

    def get_range(path: str, start: int, length: int) -> bytes:
        assert path == PATH
        fetched.append((start, length))
        return encoded.data[start : start + length]

    reader = SegmentReader(encoded.file_entry(PATH, owned=WHOLE_SPACE), get_range)
    assert fetched == [(encoded.size - encoded.footer_size, encoded.footer_size)]
    groups = reader.select_row_groups(start_us=60_000_000, end_us=180_000_000)
    assert len(groups) == 2
    rows = reader.read(row_groups=groups, columns=[BIN, "trips"])
    bins = table[BIN].cast("int64").to_pylist()
    expected = [
        trips
        for number, trips in zip(bins, table["trips"].to_pylist(), strict=True)
        if 60_000_000 <= number < 180_000_000
    ]
    assert rows["trips"].to_pylist() == expected
    assert rows.column_names == [BIN, "trips"]
    assert sum(length for _, length in fetched[1:]) < encoded.size / 20


def test_row_groups_outside_the_owned_range_are_left_out(segments: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_writer, "ROW_GROUP_ROWS", 100)
    table = segments.table(1000, sort_order=pb.HASH_FIRST)
    encoded = encode_segment(table, spec=segments.spec(pb.HASH_FIRST))
    reader = SegmentReader(encoded.file_entry(PATH, owned=WHOLE_SPACE), ranged(encoded.data))
    upper = pb.HashRange(first=1 << 63, last=(1 << 64) - 1)
    lower = pb.HashRange(first=0, last=(1 << 63) - 1)
    for owned in (upper, lower):
        rows = reader.read(row_groups=reader.select_row_groups(owned=owned), columns=[KEY_HASH])
        kept = [number for number in rows[KEY_HASH].to_pylist() if owned.first <= number <= owned.last]
        assert kept == [number for number in table[KEY_HASH].to_pylist() if owned.first <= number <= owned.last]
    halves = len(reader.select_row_groups(owned=upper)) + len(reader.select_row_groups(owned=lower))
    assert halves <= reader.row_group_count + 1
    assert reader.select_row_groups() == tuple(range(10))


def test_an_unknown_column_is_refused_by_name(encoded: EncodedSegment, entry: pb.FileEntry) -> None:
    with pytest.raises(InputError, match="nothing_like_it"):
        SegmentReader(entry, ranged(encoded.data)).read(columns=["nothing_like_it"])


# ---- sealed messages ------------------------------------------------------------------------------------------------


def some_record() -> pb.CheckpointMetadata:
    return pb.CheckpointMetadata(
        job_id="rides",
        epoch=42,
        kind=pb.EPOCH,
        previous=41,
        base=40,
        lineage="000000000001",
        operators=[
            pb.OperatorEntry(operator_id="per_minute", parallelism=2, subtasks=[pb.SubtaskReference(path="p", size=7)])
        ],
    )


def some_metadata() -> pb.OperatorCheckpointMetadata:
    table = pb.TableCheckpointMetadata(config=pb.TableConfig(name="windows"))
    table.subtasks[3].files.add(path="f", size=1, crc32c=7)
    table.subtasks[1].files.add(path="g", size=1, crc32c=7)
    return pb.OperatorCheckpointMetadata(operator_id="per_minute", tables={"windows": table, "a": table})


SEALED = {
    "record": (some_record, CorruptRecordError),
    "subtask metadata": (some_metadata, CorruptObjectError),
    "marker": (lambda: pb.PublishedMarker(sink_id="s", epoch=4), CorruptObjectError),
    "request": (lambda: pb.Request(request_id="r", stop=pb.StopRequest(drain=True)), CorruptObjectError),
}


@pytest.mark.parametrize("kind", SEALED)
def test_p7_every_flipped_or_missing_byte_of_a_sealed_message_is_detected_and_named(kind: str) -> None:
    make, damaged_error = SEALED[kind]
    message: Any = make()
    data = seal(message)
    cuts = [data[:length] for length in range(len(data))]
    for damaged in [*flips(data, list(range(len(data)))), *cuts, data + b"\0"]:
        with pytest.raises(damaged_error, match="some/where"):
            open_sealed(type(message), damaged, where="some/where", damaged=damaged_error)


@pytest.mark.parametrize("kind", SEALED)
def test_a_sealed_message_comes_back_and_any_protobuf_parser_reads_it(kind: str) -> None:
    message: Any = SEALED[kind][0]()
    data = seal(message)
    opened = open_sealed(type(message), data, where="w")
    plain = type(message).FromString(data)
    assert opened == plain
    assert opened.format_version == 1
    assert data[-5] == TRAILER_TAG
    assert opened.crc32c == crc32c(data[:-5])
    assert seal(opened) == data, "sealing again gives the same bytes"


def test_p6_the_order_in_which_a_map_was_filled_does_not_show() -> None:
    one, other = pb.TableCheckpointMetadata(), pb.TableCheckpointMetadata()
    for index in range(20):
        one.subtasks[index].rows = index
    for index in reversed(range(20)):
        other.subtasks[index].rows = index
    sealed = {seal(pb.OperatorCheckpointMetadata(tables={"t": table})) for table in (one, other)}
    assert len(sealed) == 1


def test_a_newer_format_is_told_apart_from_damage() -> None:
    body = pb.CheckpointMetadata(format_version=2, job_id="rides").SerializeToString()
    data = body + bytes([TRAILER_TAG]) + crc32c(body).to_bytes(4, "little")
    with pytest.raises(NewerFormatError, match="upgrade"):
        open_sealed(pb.CheckpointMetadata, data, where="w")


def test_a_message_without_a_format_version_is_damaged() -> None:
    body = pb.CheckpointMetadata(job_id="rides").SerializeToString()
    data = body + bytes([TRAILER_TAG]) + crc32c(body).to_bytes(4, "little")
    with pytest.raises(CorruptObjectError, match="without a format version"):
        open_sealed(pb.CheckpointMetadata, data, where="w")
