"""export: rows of state in files that other programs read."""

import csv
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import Call

from statebed.cli import export
from statebed.inspect import read_state

EARNED = ("--operator", "earned")


def test_a_parquet_file_holds_what_read_state_reads(statebed: Call, rides: Path, tmp_path: Path) -> None:
    target = tmp_path / "new" / "earned.parquet"
    done = statebed("export", rides, "rides", target, *EARNED)
    assert done.code == 0, done.err
    expected = read_state(rides, operator="earned").to_arrow()
    assert pq.read_table(target).equals(expected)
    assert f"{expected.num_rows} rows of earned.groups at epoch 9" in done.out
    assert [path.name for path in target.parent.iterdir()] == ["earned.parquet"], "nothing is left beside it"


def test_a_csv_file_holds_the_same_rows(statebed: Call, rides: Path, tmp_path: Path) -> None:
    target = tmp_path / "earned.csv"
    assert statebed("export", rides, "rides", target, *EARNED, "--where", "total > 100", "-c", "driver,total").code == 0
    with target.open(newline="") as opened:
        read = list(csv.DictReader(opened))
    expected = read_state(rides, operator="earned").filter("total > 100").to_arrow().to_pylist()
    assert [(row["driver"], float(row["total"])) for row in read] == [(row["driver"], row["total"]) for row in expected]


def test_a_folder_gets_a_file_for_each_table_all_of_one_epoch(statebed: Call, rides: Path, tmp_path: Path) -> None:
    target = tmp_path / "all"
    assert statebed("export", rides, "rides", target, "--epoch", "6").code == 0
    assert sorted(path.name for path in target.iterdir()) == [
        "busiest.kept.parquet",
        "earned.groups.parquet",
        "per_minute.partials.parquet",
    ]
    for path in target.iterdir():
        operator, table, _ = path.name.split(".")
        expected = read_state(rides, operator=operator, table=table, epoch=6).to_arrow()
        assert pq.read_table(path).equals(expected)
    few = tmp_path / "few"
    assert statebed("export", rides, "rides", few, *EARNED, "--format", "csv").code == 0
    assert [path.name for path in few.iterdir()] == ["earned.groups.csv"]


@pytest.mark.parametrize("name", ["there.parquet", "there"])
def test_nothing_that_exists_is_replaced(statebed: Call, rides: Path, tmp_path: Path, name: str) -> None:
    target = tmp_path / name
    if target.suffix:
        target.write_text("mine")
    else:
        target.mkdir()
        (target / "mine").write_text("mine")
    failed = statebed("export", rides, "rides", target, *EARNED)
    assert failed.code == 1
    assert "never replaced" in failed.err
    assert (target if target.suffix else target / "mine").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["s3://bucket/x.parquet", *EARNED], "a local file or folder"),
        (["/proc/nothing/x.parquet", *EARNED], "cannot be written"),
        (["NEW.csv", "--format", "parquet", *EARNED], "make the name and the format match"),
        (["NEW", "--where", "total > 1"], "there are several"),
        (["NEW", "--operator", "nope"], "per_minute.partials"),
        (["NEW.csv"], "--operator"),
    ],
)
def test_what_cannot_be_written_is_told_before_anything_is(
    statebed: Call, rides: Path, tmp_path: Path, arguments: list[str], words: str
) -> None:
    given = [argument.replace("NEW", str(tmp_path / "new")) for argument in arguments]
    failed = statebed("export", rides, "rides", *given)
    assert failed.code == 1
    assert words in failed.err
    assert not list(tmp_path.iterdir())


def test_rows_that_cannot_be_read_leave_no_file(statebed: Call, rides: Path, tmp_path: Path) -> None:
    copied = tmp_path / "copied"
    shutil.copytree(rides, copied)
    (copied / "rides" / read_state(copied, operator="earned").scan().files[-1].path).unlink()
    failed = statebed("export", copied, "rides", tmp_path / "new" / "x.parquet", *EARNED)
    assert failed.code == 1
    assert "[MISSING_FILE]" in failed.err
    assert not list((tmp_path / "new").iterdir())


def test_nested_columns_are_json_and_binary_ones_base64_in_csv(tmp_path: Path) -> None:
    rows = pa.table({"a": [[1, 2], None], "b": [b"\x00\xff", b""], "c": [{"x": 1}, {"x": None}]})
    export._write_csv(rows.to_batches(), rows.schema, tmp_path / "x.csv")
    with (tmp_path / "x.csv").open(newline="") as opened:
        read = list(csv.reader(opened))
    assert read[1] == ["[1,2]", "AP8=", '{"x":1}']
    assert read[2] == ["", "", '{"x":null}']
