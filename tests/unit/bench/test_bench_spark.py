"""The benchmark on Spark, without Spark: its input, its gate, its watch, and the check of answers."""

import json
import subprocess
import sys
import time
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.report import Report
from bench.spark import answers, race
from bench.spark.cases import Case, Files, Kind, Side, cases
from bench.spark.inputs import write_inputs
from bench.spark.racer import Batch, Racer
from bench.spark.watch import Memory, MemoryWatch, ProcessorClock, memory_of, tree_of

ROOT = Path(__file__).parents[3]
FILES = Files(warm=1, warm_rows=3000, measured=2, rows=2000)


def small(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> Case:
    monkeypatch.setattr("bench.spark.cases._MILLION", 1000)
    monkeypatch.setattr("bench.spark.cases.FILE_ROWS", 500)
    monkeypatch.setattr("bench.spark.answers._DELAY_US", 1000)
    monkeypatch.setattr("bench.spark.inputs._JITTER_US", 1000)
    return Case(kind, 1000)


def right_answer(case: Case, folder: Path, side: Side) -> pa.Table:
    """Return the answer that the check expects, in the columns of the side's files."""
    with duckdb.connect() as db:
        db.execute("set timezone = 'UTC'")
        for source in case.sources:
            db.execute(f"create view {source} as from read_parquet('{folder / source}/*.parquet')")
        closed = answers._closed_us(case, FILES, folder, side)
        table = db.sql(answers._expected(case, closed)).to_arrow_table()
    for edge in {"window_start", "window_end"} & set(table.column_names):
        place = table.column_names.index(edge)
        table = table.set_column(place, edge, table[edge].cast(pa.timestamp("us", tz="UTC")))
    return table


def put_output(table: pa.Table, folder: Path, side: Side) -> None:
    out = folder / "run" / "out" if side is Side.OURS else folder / "run" / "out" / "000000"
    out.mkdir(parents=True)
    pq.write_table(table, out / "000001-0.parquet")


@pytest.mark.parametrize("kind", list(Kind))
def test_the_right_rows_are_accepted_and_wrong_ones_are_found_out(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = small(kind, monkeypatch)
    write_inputs(case, FILES, tmp_path / "input")
    side = Side.ROCKSDB
    right = right_answer(case, tmp_path / "input", side)
    assert right.num_rows > 100
    put_output(right, tmp_path / "right", side)
    answers.check(case, FILES, tmp_path / "input", tmp_path / "right", side)
    put_output(right.slice(1), tmp_path / "wrong", side)
    with pytest.raises(SystemExit, match="lacks 1, and has 0"):
        answers.check(case, FILES, tmp_path / "input", tmp_path / "wrong", side)


def test_of_a_changelog_what_was_taken_back_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = small(Kind.AGGREGATE, monkeypatch)
    write_inputs(case, FILES, tmp_path / "input")
    right = right_answer(case, tmp_path / "input", Side.OURS)
    before = pa.table({"k": right["k"], "n": pa.array([0] * right.num_rows), "total": right["total"]})
    weighted = [
        table.append_column("_weight", pa.array([weight] * table.num_rows, pa.int64()))
        for table, weight in ((before, 1), (before, -1), (right, 1))
    ]
    put_output(pa.concat_tables(weighted), tmp_path / "ours", Side.OURS)
    answers.check(case, FILES, tmp_path / "input", tmp_path / "ours", Side.OURS)


def test_a_file_has_two_row_groups_and_time_goes_on_from_file_to_file(tmp_path: Path) -> None:
    case = Case(Kind.JOIN, 10_000)
    write_inputs(case, FILES, tmp_path)
    for source in ("a", "b"):
        paths = sorted((tmp_path / source).iterdir())
        found = [pq.ParquetFile(path).metadata for path in paths]
        assert [(one.num_row_groups, one.num_rows) for one in found] == [(2, 1500), (2, 1000), (2, 1000)]
        ages = [path.stat().st_mtime for path in paths]
        assert ages == sorted(ages)


def test_keys_of_sessions_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = small(Kind.SESSION, monkeypatch)
    write_inputs(case, Files(warm=0, warm_rows=0, measured=4, rows=500), tmp_path)
    quarters = [
        {key // 250 for key in pq.read_table(path)["k"].to_pylist()} for path in sorted((tmp_path / "a").iterdir())
    ]
    assert quarters == [{0, 1}, {1, 2}, {2, 3}, {3, 0}]


def test_there_are_cases_of_each_operator_and_size_with_their_goals() -> None:
    goals = {case.name: case.target for case in cases(quick=False)}
    assert len(goals) == 3 * len(Kind)
    assert goals["keyed count+sum 10k keys"] == 1.5
    assert goals["keyed count+sum 1M keys"] == goals["keyed count+sum, text, 1M keys"] == 4
    assert goals["keyed count+sum 5M keys"] == goals["interval join 1M keys"] == 6
    assert goals["sliding window 1M keys"] == goals["deduplication 5M keys"] == 4
    assert (goals["user function 10k keys"], goals["user function 1M keys"]) == (30, 100)


def test_the_watch_sees_the_memory_and_the_time_of_children() -> None:
    program = "x = bytearray(64 << 20)\nfor _ in range(3_000_000): pass\nprint('there', flush=True)\ninput()"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {program!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        watch = MemoryWatch()
        watch.start()
        watch.look_at(process.pid)
        deadline = time.monotonic() + 60
        while process.pid not in watch.peaks and time.monotonic() < deadline:
            time.sleep(0.05)
        watch.stop()
        assert len(tree_of(process.pid)) == 2
        assert memory_of(process.pid).anonymous > 64 << 20
        assert watch.peaks[process.pid].total >= watch.peaks[process.pid].anonymous > 64 << 20
        clock = ProcessorClock(process.pid)
        used = clock.seconds()
        assert used > 0.02
        process.communicate("\n", timeout=60)
        assert clock.seconds() >= used  # what has ended stays counted


def test_a_side_stops_at_the_gate_after_each_batch_and_ends_when_the_benchmark_is_gone() -> None:
    program = (
        "from bench.spark.gate import Gate; gate = Gate(); print('noise'); gate.stop_here(); gate.close(2)\n"
        "for _ in range(3): gate.stop_here()\ngate.say(done=len(gate.waited))"
    )

    def start() -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-c", program],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    with start() as process:
        out, _ = process.communicate("go\ngo\ngo\n", timeout=60)
    assert out.splitlines() == ['{"ready": true}', '{"batch": 0}', '{"batch": 1}', '{"done": 2}']
    with start() as process:
        out, _ = process.communicate("go\n", timeout=60)
    assert out.splitlines() == ['{"ready": true}', '{"batch": 0}']
    assert process.returncode == 1


def test_a_side_that_waits_long_is_called_now_and_then() -> None:
    program = (
        "from bench.spark import gate; gate.IDLE_SECONDS = 0.01; one = gate.Gate(); calls = []\n"
        "one.when_idle = lambda: calls.append(1) or (len(calls) == 3 and one.say(idle=3)); one.close(0)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ['{"ready": true}\n', '{"idle": 3}\n']
        process.communicate("go\n", timeout=60)
    assert process.returncode == 0


def racer(side: Side, seconds: float, phases: dict[str, float], process: "subprocess.Popen[str]") -> Racer[Side]:
    return Racer(
        side,
        Path(),
        process,
        sys.stderr,
        ProcessorClock(process.pid),
        batches=[Batch(100.0, 100.0), Batch(seconds, 2 * seconds), Batch(seconds, 2 * seconds)],
        phases=[phases] * 3,
        waited=[1.0] * 3,
    )


def test_the_promise_is_held_against_the_better_store_and_time_at_the_gate_is_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    processes = [subprocess.Popen([sys.executable, "-c", ""], text=True) for _ in range(3)]
    for process in processes:
        process.wait(60)
    racers = [
        racer(Side.OURS, 1.0, {"action": 0.5, "publish": 1.25}, processes[0]),
        racer(Side.ROCKSDB, 4.0, {"addBatch": 4.0, "walCommit": 0.5}, processes[1]),
        racer(Side.HDFS, 2.0, {"addBatch": 2.0}, processes[2]),
    ]
    peaks = {process.pid: Memory(mib << 20, mib << 20) for process, mib in zip(processes, (100, 300, 50), strict=True)}
    report = Report(as_json=False)
    race._tell(Case(Kind.AGGREGATE, 1_000_000), report, dict.fromkeys(Side, FILES), racers, peaks)
    printed = capsys.readouterr().out
    assert [(one.baseline, one.metric, one.ratio) for one in report.missed] == [
        ("Spark HDFS-backed", "throughput", 2.0),
        ("Spark HDFS-backed", "peak memory", 0.5),
    ]
    assert "of a batch, ms: action 500, publish 250" in printed
    assert "of a batch, ms: addBatch 3000, walCommit 500" in printed


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize("kind", list(Kind))
def test_every_kind_runs_on_both_sides_and_its_answers_are_right(
    kind: Kind, capsys: pytest.CaptureFixture[str]
) -> None:
    # Sides are other processes: sizes that they compute themselves stay as they are, so windows need many rows.
    case = Case(kind, 10_000)
    rows = 800_000 if kind in {Kind.TUMBLING, Kind.SESSION} else 4000
    files = Files(warm=1, warm_rows=rows, measured=4, rows=rows)
    race.measure(case, Report(as_json=True), dict.fromkeys((Side.OURS, case.baselines[0]), files))
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["metric"] for line in found] == ["throughput", "processor time", "peak memory"]
    assert all(line["ours"] > 0 and line["theirs"] > 0 for line in found)
