"""Output of benchmarks: a ratio above 1 means that ours is better, and a missed target is reported."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bench import __main__ as command
from bench import read_modify_write, result_files
from bench.epochs import State
from bench.report import Figure, Report, Result, faster, smaller
from bench.workload import Case, batch_of, batches

ROOT = Path(__file__).parents[3]
FIELDS = {"case", "baseline", "metric", "ours", "theirs", "ratio", "unit"}


def test_more_speed_and_less_cost_are_both_ratios_above_one() -> None:
    assert faster("c", "b", "m", ours=30, theirs=10, unit="rows/s").ratio == 3
    assert smaller("c", "b", "m", ours=10, theirs=30, unit="bytes").ratio == 3


def test_a_missed_target_is_said_and_fails_only_when_checked(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report(as_json=False)
    report.add(faster("good", "b", "m", ours=30, theirs=10, unit="rows/s", target=3.0))
    assert report.finish(check=True) == 0
    report.add(faster("bad", "b", "m", ours=20, theirs=10, unit="rows/s", target=3.0))
    assert report.finish(check=False) == 0
    assert report.finish(check=True) == 1
    printed = capsys.readouterr()
    assert "ok (>= 3.00)" in printed.out
    assert "MISSED (>= 3.00)" in printed.out
    assert "bad" in printed.err
    assert "good" not in printed.err


def test_json_is_one_object_per_line_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report(as_json=True)
    report.note("a remark")
    report.add(faster("c", "b", "m", ours=30, theirs=10, unit="rows/s", target=25.0))
    report.add(smaller("c", "b", "m", ours=30, theirs=10, unit="bytes"))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [set(line) for line in lines] == [FIELDS, FIELDS]
    assert [line["ratio"] for line in lines] == [3.0, 0.333]


@pytest.mark.parametrize("kind", ["int64", "string", "composite"])
@pytest.mark.parametrize("distribution", ["uniform", "zipf"])
def test_all_stores_agree_on_a_small_case(
    kind: str, distribution: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.workload.BATCH_ROWS", 2000)
    read_modify_write.measure(Case(kind, distribution, 0.2, 5000), Report(as_json=True), count=3)
    baselines = [json.loads(line)["baseline"] for line in capsys.readouterr().out.splitlines()]
    assert baselines == ["rocksdict", "lmdb", "dict", "duckdb"]


def test_a_store_that_forgets_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.workload.BATCH_ROWS", 2000)
    monkeypatch.setattr("bench.stores.Dict.checksum", lambda _: (1, 2))
    with pytest.raises(SystemExit, match="disagree"):
        read_modify_write.measure(Case("int64", "uniform", 0.0, 5000), Report(as_json=True), count=2)


def test_batches_hold_the_share_of_new_keys_that_they_say() -> None:
    case = Case("int64", "zipf", 0.2, 200_000)
    seen = set(range(case.keys))
    for batch in batches(case, 2, seed=1):
        fresh = set(batch.keys["id"].to_pylist()) - seen
        assert len(fresh) == len(batch.amounts) // 5
        seen |= fresh


def test_keys_of_all_kinds_say_the_same_to_every_store() -> None:
    batch = batch_of("composite", np.array([5, 1005]), np.array([1, 2]))
    assert batch.key_objects == [(5, "item-000000000005"), (5, "item-000000001005")]
    assert batch.key_bytes == [
        (5).to_bytes(8, "big") + b"item-000000000005",
        (5).to_bytes(8, "big") + b"item-000000001005",
    ]


def test_an_epoch_costs_by_what_it_touches_and_restores_to_the_same() -> None:
    state = State(50_000)
    try:
        few, many = state.epoch(100), state.epoch(10_000)
        assert 0 < 10 * few.changed_bytes < many.changed_bytes
        state.check()
    finally:
        state.close()


def test_an_unknown_case_is_an_error_that_lists_the_cases() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "bench", "memory", "--case", "nonsense"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 2
    assert "append-only 64 MiB" in ran.stderr


@pytest.mark.long
@pytest.mark.parametrize("work", ["append-only", "read-modify-write", "read-modify-write wide", "join-like"])
def test_p4_each_kind_of_work_finds_its_answers_with_a_tenth_of_the_memory(work: str, tmp_path: Path) -> None:
    budget = 8 << 20
    ran = subprocess.run(
        [sys.executable, "-m", "bench.memory_child", work, str(10 * budget), str(budget), str(tmp_path), "0"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    last = json.loads(ran.stdout.splitlines()[-1])
    assert last["events"]["spills"] > 0
    assert last["charged"] <= budget + 4 * last["batch"]


def test_a_run_that_is_ended_early_saves_what_it_has_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(report: Report, **_: object) -> None:
        report.add(faster("first", "other", "speed", ours=2.0, theirs=1.0, unit="rows/s"))
        raise KeyboardInterrupt

    saved: dict[str, list[str]] = {}

    def save(name: str, rounds: list[list[Result]], *, only: str) -> Path:
        assert not only
        saved[name] = [result.case for results in rounds for result in results]
        return tmp_path

    monkeypatch.setattr(result_files, "save", save)
    monkeypatch.setitem(command.BENCHMARKS, "engine", (interrupted, ""))
    monkeypatch.setattr(sys, "argv", ["bench", "engine", "--save"])
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(KeyboardInterrupt):
            command.main()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert saved == {"engine": ["first"]}
    assert "written" in capsys.readouterr().err


def test_a_case_that_is_measured_again_replaces_its_results_and_a_remark_names_the_others(tmp_path: Path) -> None:
    def rounds(**ratios: float) -> list[list[Result | Figure]]:
        return [[faster(case, "other", "speed", ours=ratio, theirs=1, unit="x") for case, ratio in ratios.items()]]

    def saved() -> tuple[list[tuple[str, float]], str]:
        (measured,) = result_files.read(tmp_path)
        return [(one["case"], one["ratio"]) for results in measured.rounds for one in results], measured.remark

    result_files.save("engine", rounds(a=1, b=2, c=3), only="a|b|c", folder=tmp_path)
    assert saved() == ([("a", 1), ("b", 2), ("c", 3)], "")
    result_files.save("engine", rounds(b=5, d=4), only="b|d", folder=tmp_path)
    assert saved() == ([("a", 1), ("b", 5), ("c", 3), ("d", 4)], "From earlier runs: a, c.")
    result_files.save("engine", rounds(a=7), folder=tmp_path)
    assert saved() == ([("a", 7)], ""), "a run of all cases replaces everything"
