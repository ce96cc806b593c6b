"""A driver in a process of its own that dies in a round of compaction, after its files are written.

python compaction_driver.py FOLDER
"""

import importlib.util
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import statebed as sb
from statebed.spark.compaction.round_job import SparkRounds
from statebed.subtasks import CompactionTask

HERE = Path(__file__).parent


def loaded(name: str) -> ModuleType:
    """A module of this folder, which is no package."""
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def main() -> None:
    sys.path.insert(0, str(HERE.parent))
    run = SparkRounds._run

    def deadly(rounds: SparkRounds, tasks: Sequence[CompactionTask]) -> Any:
        results = run(rounds, tasks)
        if any(not isinstance(one, str) and one.edits for one in results):
            os.kill(os.getpid(), signal.SIGKILL)
        return results

    # Rounds are in a pool of their own then.
    os.environ["PYSPARK_SUBMIT_ARGS"] = "--conf spark.scheduler.mode=FAIR pyspark-shell"
    SparkRounds._run = deadly  # type: ignore[method-assign,assignment]
    rides = loaded("conftest").Rides(sb.Job("none").spark, Path(sys.argv[1]))
    loaded("trips").per_driver(rides).start(available_now=True).await_termination(200)


if __name__ == "__main__":
    main()
