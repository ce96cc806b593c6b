"""A driver of the job of rides in a process of its own, which can be told to die at an exact point.

python driver.py FOLDER available_now|forgetful none|after_record EPOCHS

"forgetful" runs until something ends it, and never stops a second query, over FOLDER/forgotten.
"""

import importlib.util
import os
import signal
import sys
from pathlib import Path
from typing import Any

import statebed as sb
from statebed.checkpoint import Run


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dies_after(epochs: int) -> None:
    """Kill this process right after the record that follows `epochs` epochs."""
    commit = Run.commit
    done = 0

    def deadly(run: Run, draft: Any) -> Any:
        nonlocal done
        record = commit(run, draft)
        if done == epochs:
            die()
        done += 1
        return record

    Run.commit = deadly  # type: ignore[method-assign,assignment]


def main() -> None:
    folder, mode, point, epochs = sys.argv[1:]
    spec = importlib.util.spec_from_file_location("rides_world", Path(__file__).with_name("conftest.py"))
    assert spec is not None
    assert spec.loader is not None
    world = importlib.util.module_from_spec(spec)
    sys.modules["rides_world"] = world
    spec.loader.exec_module(world)
    if point == "after_record":
        dies_after(int(epochs))
    spark = sb.Job("none").spark
    job = world.Rides(spark, Path(folder)).job()
    with sb.exit_codes():
        if mode == "forgetful":
            forgotten = world.Rides(spark, Path(folder) / "forgotten").job().start(processing_time="1 hour")
            forgotten.await_epoch(2, timeout=200)
        trigger = {"available_now": True} if mode == "available_now" else {"processing_time": "100 milliseconds"}
        job.start(**trigger).await_termination(200)


if __name__ == "__main__":
    main()
