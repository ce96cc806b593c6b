"""Pieces on their way: in rows of a DataFrame, in frames of an exchange, and past a level that is not theirs."""

import io
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.serializers import SpecialLengths

from statebed.errors import SubtaskError
from statebed.format.schema import KEY_HASH
from statebed.spark.epoch.exchange import PieceFiles, PieceFrames
from statebed.spark.epoch.level_task import _arrivals
from statebed.spark.plan.pieces import BRANCH, HEARTBEAT, PAYLOAD, REPORT, SUBTASK, Piece, pieces, pieces_of, routed

ROWS = pa.table({"k": ["a", "b"]})


def sent() -> list[Piece]:
    (rows,) = pieces(ROWS, 4, 1)
    return [rows, Piece(1, 5, b"later"), Piece(1, REPORT, b"report")]


def plain(some: list[Piece]) -> list[tuple[int, int, bytes]]:
    return [(one.subtask, one.branch, bytes(one.payload)) for one in some]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_rows_of_a_frame_are_the_pieces_without_heartbeats(kind: pa.DataType) -> None:
    rows = [one.row() for one in (*sent(), Piece(1, HEARTBEAT, b""))]
    schema = pa.schema([(SUBTASK, pa.int32()), (BRANCH, pa.int32()), (PAYLOAD, kind)])
    (arrived,) = pa.Table.from_batches(rows).cast(schema).combine_chunks().to_batches()
    assert plain(list(pieces_of(iter([arrived])))) == plain(sent())


def test_frames_of_an_exchange_are_the_pieces() -> None:
    stream = io.BytesIO()
    PieceFrames().dump_stream(sent(), stream)
    stream.write(struct.pack(">i", SpecialLengths.END_OF_DATA_SECTION))
    stream.write(b"not a piece")
    stream.seek(0)
    assert plain(list(PieceFrames().load_stream(stream))) == plain(sent())


def test_frames_with_keys_have_the_subtask_before_each_piece() -> None:
    plain_stream, keyed = io.BytesIO(), io.BytesIO()
    PieceFrames().dump_stream([Piece(7, 0, b"rows")], plain_stream)
    PieceFrames(with_keys=True).dump_stream([Piece(7, 0, b"rows")], keyed)
    assert keyed.getvalue() == struct.pack(">iq", 8, 7) + plain_stream.getvalue()


def test_a_frame_that_is_cut_short_is_an_error() -> None:
    stream = io.BytesIO()
    PieceFrames().dump_stream(sent()[1:2], stream)
    with pytest.raises(EOFError, match="a piece of 13 bytes ends after 12"):
        list(PieceFrames().load_stream(io.BytesIO(stream.getvalue()[:-1])))


def test_a_length_that_is_cut_short_is_an_error() -> None:
    with pytest.raises(EOFError, match="the length of a piece is incomplete"):
        list(PieceFrames().load_stream(io.BytesIO(b"\0\0")))


def test_a_level_takes_the_rows_of_its_branches_and_passes_on_the_rest() -> None:
    passing: list[Piece] = []
    taken = list(_arrivals(1, iter(sent()), {4}, passing))
    assert [(branch, one.to_pydict()) for branch, one in taken] == [(4, ROWS.to_pydict())]
    assert passing == sent()[1:]


def test_a_piece_of_another_subtask_is_refused() -> None:
    with pytest.raises(SubtaskError, match="rows of another subtask arrived at subtask 0"):
        list(_arrivals(0, iter(sent()), {4}, []))


def test_pieces_that_wait_in_files_come_back_and_only_references_are_moved(tmp_path: Path) -> None:
    files = PieceFiles(str(tmp_path))
    moved = [list(files.written(sent(), name)) for name in ("0-7", "0-8")]
    assert all(len(one.payload) < 20 for some in moved for one in some)
    assert moved[0][2] == sent()[2]  # a report is no piece, and moves itself
    for references in moved:
        assert plain(list(files.read(references))) == plain(sent())
    rows = next(iter(files.read(moved[1])))
    assert [batch.to_pydict() for batch in rows.batches()] == [ROWS.to_pydict()]


def test_rows_in_files_are_aligned(tmp_path: Path) -> None:
    files = PieceFiles(str(tmp_path))
    references = list(files.written([Piece(0, 0, b"x" * 65), Piece(1, 0, b"y")], "0-1"))
    assert [bytes(one.payload) for one in references] == [b"0 65 0-1", b"128 1 0-1"]


@pytest.mark.parametrize(("parallelism", "broadcast"), [(3, False), (3, True), (1, False)])
def test_a_subtask_that_reads_its_own_rows_gets_those_that_would_be_sent_to_it(
    parallelism: int, broadcast: bool
) -> None:
    hashes = np.random.default_rng(1).integers(-(1 << 63), 1 << 63, 1000)
    rows = pa.table({KEY_HASH: hashes, "v": np.arange(1000)})
    sent_rows: dict[int, list[pa.RecordBatch]] = {index: [] for index in range(parallelism)}
    for piece in routed(rows, 4, parallelism, broadcast=broadcast):
        sent_rows[piece.subtask] += piece.batches()
    assert sum(map(len, sent_rows.values()))
    for index, expected in sent_rows.items():
        (own,) = routed(rows, 4, parallelism, broadcast=broadcast, only=index)
        assert (own.subtask, own.branch, own.is_table) == (index, 4, True)
        assert pa.Table.from_batches(own.batches()).equals(pa.Table.from_batches(expected))


def test_rows_of_the_same_process_are_encoded_when_they_only_pass_a_level() -> None:
    passing: list[Piece] = []
    own = [Piece(1, 4, ROWS), Piece(1, 5, ROWS)]
    taken = list(_arrivals(1, iter(own), {4}, passing))
    assert [(branch, rows.to_pydict()) for branch, rows in taken] == [(4, ROWS.to_pydict())]
    assert plain(passing) == plain(list(pieces(ROWS, 5, 1)))
