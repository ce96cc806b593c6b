"""Memory that the allocators of a process keep: enough that the next batch need not request all pages again."""

import subprocess
import sys

import pytest

BATCHES = """
import resource
import numpy as np
import pyarrow as pa
from statebed.format.ranges import WHOLE_SPACE
from statebed.state import KeyedView, Merge, keyed_table_config, merge_columns
from statebed.storage import MemoryStore

config = keyed_table_config("t", "", ["id"], pa.schema([("id", pa.string()), ("value", pa.int64())]))
view = KeyedView(config, owned=WHOLE_SPACE, store=MemoryStore("t"))
random = np.random.default_rng(1)
add = merge_columns(value=Merge.SUM)

def apply(ids):
    keys = pa.table({"id": pa.array(ids).cast(pa.string())})
    view.merge(keys, pa.table({"value": pa.array(ids % 100).cast(pa.int64())}), add)

for first in (0, 500_000):
    apply(np.arange(first, first + 500_000, dtype=np.uint64) + np.uint64(10**19))
batches = [random.integers(0, 1_000_000, 100_000, dtype=np.uint64) + np.uint64(10**19) for _ in range(8)]
for number, ids in enumerate(batches):
    if number == 3:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    apply(ids)
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 5)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other C libraries have no such settings")
def test_batches_of_one_size_take_the_pages_of_the_one_before() -> None:
    done = subprocess.run([sys.executable, "-c", BATCHES], capture_output=True, text=True, check=True, timeout=120)
    # All arrays of a batch are some 5,000 pages.
    assert int(done.stdout) < 500
