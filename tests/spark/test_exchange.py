"""Pieces reach their subtasks through Spark's shuffle, as bytes or as references to files, level by level."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from statebed.spark.epoch import exchange as module
from statebed.spark.epoch.exchange import exchange
from statebed.spark.plan.pieces import REPORT, Piece

pytestmark = pytest.mark.usefixtures("by_value")
SUBTASKS = 3
LARGE = 300_000


@pytest.fixture(params=["files", "bytes"])
def one_host(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    files = bool(request.param == "files")
    monkeypatch.setattr(module, "_is_one_host", lambda _: files)
    return files


def read(number: int) -> Iterator[Piece]:
    """Yield a small and a large piece for each subtask but the last."""
    for subtask in range(SUBTASKS - 1):
        yield Piece(subtask, 0, bytes([number]))
        yield Piece(subtask, 0, bytes([number]) * LARGE)


class Passing:
    """Passes every piece to the next subtask, and reports what has arrived."""

    def of_pieces(self, index: int, arrivals: Iterator[Piece]) -> Iterator[Piece]:
        seen = []
        for piece in arrivals:
            assert piece.subtask == index
            if piece.branch < 0:
                yield piece
                continue
            seen.append((piece.branch, len(piece.payload), set(bytes(piece.payload))))
            yield Piece((index + 1) % SUBTASKS, piece.branch + 1, piece.payload)
        yield Piece(index, REPORT, repr(sorted(seen, key=repr)).encode())


class Failing(Passing):
    """Fails after its first piece."""

    def of_pieces(self, index: int, arrivals: Iterator[Piece]) -> Iterator[Piece]:
        next(arrivals, None)
        raise RuntimeError(f"subtask {index} failed")
        yield


def left_behind(spark: SparkSession) -> list[Path]:
    return list(Path(spark.sparkContext._temp_dir).glob("pieces-*"))


def reports(action: Any) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for piece in action():
        if piece.branch == REPORT:
            found.setdefault(piece.subtask, []).append(bytes(piece.payload).decode())
    return found


def test_every_piece_arrives_once_at_its_subtask_in_each_level(spark: SparkSession, one_host: bool) -> None:
    levels: Any = [Passing(), Passing()]
    action = exchange(spark.sparkContext, levels, parallelism=SUBTASKS, read=read, readers=2)
    assert bool(left_behind(spark)) == one_host
    seen = repr(sorted([(0, size, {number}) for number in range(2) for size in (1, LARGE)], key=repr))
    later = seen.replace("(0, ", "(1, ")
    found = reports(action)
    assert {index: sorted(texts) for index, texts in found.items()} == {
        0: sorted([seen, "[]"]),
        1: sorted([seen, later]),
        2: sorted(["[]", later]),
    }
    assert left_behind(spark) == []


def read_own(index: int) -> Iterator[Piece]:
    return (piece for number in range(2) for piece in read(number) if piece.subtask == index)


def test_subtasks_that_read_in_place_have_the_same_pieces(spark: SparkSession, one_host: bool) -> None:
    levels: Any = [Passing(), Passing()]
    moved = reports(exchange(spark.sparkContext, levels, parallelism=SUBTASKS, read=read, readers=2))
    in_place = exchange(spark.sparkContext, levels, parallelism=SUBTASKS, read_in_place=read_own)
    assert bool(left_behind(spark)) == one_host
    found = reports(in_place)
    assert {index: sorted(texts) for index, texts in found.items()} == {
        index: sorted(texts) for index, texts in moved.items()
    }
    assert left_behind(spark) == []
    only = exchange(spark.sparkContext, levels[:1], parallelism=SUBTASKS, read_in_place=read_own)
    assert left_behind(spark) == [], "one level needs no files"
    assert len(reports(only)) == SUBTASKS


def test_every_subtask_runs_though_nothing_arrives(spark: SparkSession, one_host: bool) -> None:
    del one_host
    levels: Any = [Passing()]
    found = reports(exchange(spark.sparkContext, levels, parallelism=SUBTASKS))
    assert found == {index: ["[]"] for index in range(SUBTASKS)}


def test_an_error_of_a_task_is_raised_and_no_file_is_left(spark: SparkSession, one_host: bool) -> None:
    del one_host
    levels: Any = [Failing()]
    with pytest.raises(PySparkException, match=r"subtask \d failed"):
        exchange(spark.sparkContext, levels, parallelism=SUBTASKS, read=read, readers=2)()
    assert left_behind(spark) == []
