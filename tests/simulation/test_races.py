"""Many at once: exactly one run opens at a number, exactly one commit takes it. Threads, then processes."""

import copy
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from statebed.checkpoint import CheckpointLog, EpochDraft, Run
from statebed.errors import FencedError
from statebed.storage import FaultStore, LocalStore, Operation, Verb

CONTENDERS = 20
T = TypeVar("T")


def race(store: LocalStore, action: Callable[[FaultStore], T]) -> tuple[list[T], list[FencedError]]:
    """Run `action` in twenty threads, which all meet before their first conditional put."""
    barrier = threading.Barrier(CONTENDERS)
    won: list[T] = []
    lost: list[FencedError] = []

    def contend() -> None:
        met: list[Operation] = []

        def meet(operation: Operation) -> None:
            if operation.verb is Verb.PUT_IF_ABSENT and not met:
                met.append(operation)
                barrier.wait(timeout=60)

        try:
            won.append(action(FaultStore(store, before=meet)))
        except FencedError as error:
            lost.append(error)

    threads = [threading.Thread(target=contend) for _ in range(CONTENDERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=90)
    return won, lost


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path))


def test_p3_of_20_runs_opened_at_once_one_wins(store: LocalStore) -> None:
    Run.open(store, "rides").commit(EpochDraft(operators=[]))
    won, lost = race(store, lambda contender: Run.open(contender, "rides"))
    assert (len(won), len(lost)) == (1, CONTENDERS - 1)
    assert won[0].commit(EpochDraft(operators=[])).run == won[0].number


def test_p3_of_20_concurrent_commits_of_one_epoch_one_wins(store: LocalStore) -> None:
    run = Run.open(store, "rides")

    def commit(contender: FaultStore) -> int:
        twin = copy.copy(run)
        twin._log = CheckpointLog(contender, "rides")
        return twin.commit(EpochDraft(operators=[])).epoch

    won, lost = race(store, commit)
    assert (won, len(lost)) == ([run.next_epoch], CONTENDERS - 1)


def test_p3_of_20_processes_that_open_and_commit_every_number_has_one_owner(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from statebed.checkpoint import EpochDraft, Run\n"
        "from statebed.errors import FencedError\n"
        "from statebed.storage import LocalStore\n"
        "try:\n"
        "    run = Run.open(LocalStore(sys.argv[1]), 'rides')\n"
        "    for _ in range(3):\n"
        "        print(run.commit(EpochDraft(operators=[])).epoch, run.number, flush=True)\n"
        "except FencedError as error:\n"
        "    sys.exit(error.exit_code)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(CONTENDERS)]
    acknowledged: dict[int, int] = {}
    for child in children:
        output, _ = child.communicate(timeout=120)
        assert child.returncode in {0, 86}
        for line in output.splitlines():
            epoch, run = map(int, line.split())
            assert epoch not in acknowledged, "two runs were told that they committed the same epoch"
            acknowledged[epoch] = run
    last = Run.open(LocalStore(str(tmp_path)), "rides")
    assert acknowledged
    for epoch, run in acknowledged.items():
        if epoch >= last.head.min_epoch:
            assert last.record(epoch).run == run
