"""A process that keeps ten times its memory budget as state, and prints what it did: run by `python -m bench memory`.

Arguments: the kind of work, how many bytes of state there will be, the budget of the engine, a folder, and by how many
bytes the process may grow after it has warmed up (0: by any).
"""

import gc
import json
import resource
import sys
import time
from pathlib import Path

from bench.memory_work import WORKS
from statebed.state import MemoryController, Tiers
from statebed.storage import LocalStore, MemoryStore

_WARM_BUDGET = 4 << 20
_WARM_BYTES = 8 << 20


def main() -> None:
    work, folder = sys.argv[1], Path(sys.argv[4])
    state_bytes, budget, growth = int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[5])
    _warm_up(work, folder)
    base = _status("RssAnon") + _status("RssShmem")
    print(json.dumps({"base": base}), flush=True)
    if growth:
        limit = _status("VmData") + growth
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    memory = MemoryController(budget)
    tiers = Tiers(memory, folder=folder / "spill")
    doing = WORKS[work](tiers, LocalStore(folder / "store"))
    rows = 0
    seconds = 0.0
    start = time.perf_counter()
    for count in doing.steps(state_bytes):
        seconds += time.perf_counter() - start
        rows += count
        print(json.dumps({"rows": rows}), flush=True)
        start = time.perf_counter()
    doing.checkpoint()
    doing.check()
    snapshot = memory.snapshot()
    batch = doing.batch_rows * doing.row_bytes
    print(json.dumps({"seconds": seconds, "batch": batch, "charged": snapshot.peak, "events": dict(snapshot.events)}))
    tiers.close()


def _warm_up(work: str, folder: Path) -> None:
    """Load once what is not the engine's state: numpy, pyarrow and the Parquet writer."""
    tiers = Tiers(MemoryController(_WARM_BUDGET), folder=folder / "warm")
    doing = WORKS[work](tiers, MemoryStore())
    for _ in doing.steps(_WARM_BYTES):
        pass
    doing.checkpoint()
    doing.check()
    tiers.close()
    gc.collect()


def _status(name: str) -> int:
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(lines[name].split()[0])


if __name__ == "__main__":
    main()
