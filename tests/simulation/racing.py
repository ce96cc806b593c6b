"""Twenty at once: contenders in threads that all meet right before their first conditional put."""

import copy
import threading
from collections.abc import Callable
from typing import TypeVar

from statebed.checkpoint import CheckpointLog, EpochDraft, Run
from statebed.errors import FencedError
from statebed.storage import ObjectStore
from statebed.testing.faults import FaultStore, Operation, Verb

CONTENDERS = 20
T = TypeVar("T")


def race(store: ObjectStore, action: Callable[[FaultStore], T]) -> tuple[list[T], list[FencedError]]:
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


def race_to_open(store: ObjectStore) -> tuple[list[Run], list[FencedError]]:
    """Twenty runs of one job, opened at once."""
    Run.open(store, "rides").commit(EpochDraft(operators=[]))
    return race(store, lambda contender: Run.open(contender, "rides"))


def race_to_commit(store: ObjectStore) -> tuple[int, list[int], list[FencedError]]:
    """Twenty commits of one epoch at once; the number at stake, who won it, who lost."""
    run = Run.open(store, "rides")

    def commit(contender: FaultStore) -> int:
        twin = copy.copy(run)
        twin._log = CheckpointLog(contender, "rides")
        return twin.commit(EpochDraft(operators=[])).epoch

    return run.next_epoch, *race(store, commit)
