"""Many at once: exactly one run opens at a number, exactly one commit takes it. Threads, then processes."""

import subprocess
import sys
from pathlib import Path

from simulation.racing import CONTENDERS, race_to_commit, race_to_open

from statebed.checkpoint import EpochDraft, Run
from statebed.storage import LocalStore

PROCESSES = 3


def test_p3_of_20_runs_opened_at_once_one_wins(tmp_path: Path) -> None:
    won, lost = race_to_open(LocalStore(str(tmp_path)))
    assert (len(won), len(lost)) == (1, CONTENDERS - 1)
    assert won[0].commit(EpochDraft(operators=[])).run == won[0].number


def test_p3_of_20_concurrent_commits_of_one_epoch_one_wins(tmp_path: Path) -> None:
    number, won, lost = race_to_commit(LocalStore(str(tmp_path)))
    assert (won, len(lost)) == ([number], CONTENDERS - 1)


def test_p3_of_processes_that_open_and_commit_every_number_has_one_owner(tmp_path: Path) -> None:
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
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(PROCESSES)]
    acknowledged: dict[int, int] = {}
    for child in children:
        output, _ = child.communicate(timeout=120)
        assert child.returncode in {0, 86}
        for line in output.splitlines():
            epoch, run = map(int, line.split())
            assert epoch not in acknowledged, "two runs committed the same epoch"
            acknowledged[epoch] = run
    last = Run.open(LocalStore(str(tmp_path)), "rides")
    assert acknowledged
    for epoch, run in acknowledged.items():
        if epoch >= last.head.min_epoch:
            assert last.record(epoch).run == run
