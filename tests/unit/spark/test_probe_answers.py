"""Answers of an executor, and how the driver judges them; real executors are probed in tests/spark."""

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

import statebed
from statebed.errors import ExecutorError
from statebed.spark.probe import probe_task
from statebed.spark.probe.probe import problem_of, refuse, skew_of
from statebed.storage import LocalStore

HERE = {"statebed": "1.2", "code": "abc", "pyarrow": "26", "pandas": "2.3", "numpy": "2.4"}
GOOD: dict[str, Any] = {
    **HERE,
    "executor_id": "3",
    "host": "far",
    "user": "spark",
    "executable": "/bin/python",
    "problems": {},
}


def test_an_executor_like_the_driver_is_welcome() -> None:
    assert problem_of(GOOD, HERE, state="s3://b") is None
    refuse([GOOD, GOOD], here=HERE, state="s3://b", job_id="rides")


WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "no statebed": (
        {"problems": {"import": "ModuleNotFoundError: No module named 'statebed'"}},
        "cannot be imported by /bin/python",
        "statebed pack",
    ),
    "another version": ({"statebed": "1.1"}, "it has statebed 1.1, the driver has 1.2", "statebed pack"),
    "other code of the same version": ({"code": "xyz"}, "its statebed 1.2 has different code", "statebed pack"),
    "another pyarrow, other bytes": ({"pyarrow": "25"}, "it has pyarrow 25, the driver has 26", "same versions"),
    "no pandas": ({"pandas": ""}, "no pandas", "pip install 'pandas>=2.2,<3'"),
    "a state it cannot see": ({"problems": {"state": "not seen"}}, "the state at /state: not seen", "s3://"),
    "a cache it cannot write": ({"problems": {"cache": "read-only"}}, "user spark cannot use", "cache_folder"),
}


@pytest.mark.parametrize("case", WRONG, ids=str)
def test_an_executor_that_cannot_work_is_named_with_what_differs_and_what_to_do(case: str) -> None:
    differs, what, fix = WRONG[case]
    with pytest.raises(ExecutorError) as caught:
        refuse([GOOD, {**GOOD, **differs}], here=HERE, state="/state", job_id="rides")
    assert "1 of 2 executors cannot run the job: executor 3 on far: " in caught.value.what
    assert what in caught.value.what
    assert fix in caught.value.fix


def test_a_clock_is_off_only_as_far_as_the_answer_proves() -> None:
    assert skew_of(105.0, began=100.0, ended=110.0) == 0
    assert skew_of(90.0, began=100.0, ended=110.0) == -10
    assert skew_of(130.0, began=100.0, ended=110.0) == 20


def wanted(state: Path, marker: str, cache: Path) -> dict[str, Any]:
    return {
        "state_url": str(state),
        "marker": marker,
        "cache_folder": str(cache),
        "cache_folder_is_firm": True,
        "linger_seconds": 0.0,
    }


def test_an_answer_says_that_all_is_well(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "state")
    store.put("probe/mark", b"")
    [found] = probe_task.answers((), wanted=wanted(tmp_path / "state", "probe/mark", tmp_path / "cache"))
    assert found["problems"] == {}
    assert found["statebed"]
    assert found["memory"] > 0
    assert store.head(found["written"]) is not None
    assert list((tmp_path / "cache").iterdir()) == []


def test_another_machines_folder_of_the_same_name_is_found_out_and_left_alone(tmp_path: Path) -> None:
    found = probe_task.answer(wanted(tmp_path / "state", "probe/mark", tmp_path / "cache"))
    assert found["problems"] == {"state": "what the driver wrote there cannot be seen from here"}
    assert not (tmp_path / "state").exists()


def test_a_cache_folder_that_cannot_be_made_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    LocalStore(tmp_path / "state").put("probe/mark", b"")
    found = probe_task.answer(wanted(tmp_path / "state", "probe/mark", tmp_path / "file" / "cache"))
    assert "NotADirectoryError" in found["problems"]["cache"]


def test_the_digest_of_the_code_is_the_same_in_a_folder_and_in_an_archive(tmp_path: Path) -> None:
    package = Path(statebed.__file__).parent
    archive = tmp_path / "code.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in package.rglob("*.py"):
            file.write(path, Path("statebed", path.relative_to(package)))
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import importlib.util as u;"
        "s = u.spec_from_file_location('task', sys.argv[2]); task = u.module_from_spec(s); s.loader.exec_module(task);"
        "import statebed; assert sys.argv[1] in statebed.__file__; print(task.code_digest(statebed))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(archive), probe_task.__file__],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.strip() == probe_task.code_digest(statebed)


def test_the_task_needs_nothing_but_python() -> None:
    # With -I -S it is a Python without any package: what an executor may be.
    code = (
        "import runpy, sys; task = runpy.run_path(sys.argv[1]);"
        "found = task['answer']({}); print(found['problems']['import'], found['python'])"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, probe_task.__file__],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "ModuleNotFoundError: No module named 'statebed'" in done.stdout
