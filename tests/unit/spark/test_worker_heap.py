"""Long-lived objects of a worker are exempt from the garbage collection that PySpark does after each task."""

import subprocess
import sys

PROGRAM = """
import gc

from statebed.spark.plan.worker_resources import _MAX_FREEZES, _OLD_OBJECTS, freeze_heap


class Node:
    pass


def old_objects(count):
    objects = [[] for _ in range(count)]
    gc.collect()  # now they are of the oldest generation
    return objects


kept = old_objects(_OLD_OBJECTS)
cycle = Node()
cycle.itself = cycle
del cycle
freeze_heap()
assert not [item for item in gc.get_objects() if isinstance(item, Node)], "garbage is not frozen"
frozen = [gc.get_freeze_count()]
assert frozen[0] > _OLD_OBJECTS

freeze_heap()
assert gc.get_freeze_count() == frozen[0], "few objects are left as they are"

for _ in range(2 * _MAX_FREEZES):
    kept += old_objects(_OLD_OBJECTS + 1)
    freeze_heap()
    frozen.append(gc.get_freeze_count())
assert len(set(frozen)) == _MAX_FREEZES, frozen
"""


def test_long_lived_objects_are_frozen_a_few_times_and_garbage_never() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        check=False,
        capture_output=True,
        text=True,
        timeout=250,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
