"""A mutation of a table's files gives the same rows or an error that names a file, in bounded time."""

import contextlib
import itertools
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from types import FrameType

import pytest
from unit.sinks.tables import new_path, publication, rows, sink

from statebed.errors import StatebedError
from statebed.storage import ObjectStore, get_storage_provider

SECONDS = 5
"""Time in which each reading must end."""

Mutate = Callable[[bytes], Iterator[bytes]]


@contextlib.contextmanager
def deadline() -> Iterator[None]:
    def late(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def table() -> tuple[str, ObjectStore]:
    """A table of two runs, with a rollback."""
    path = new_path()
    first = sink(path)
    first.open(1)
    for epoch in (2, 3, 4):
        first.publish(publication(1, epoch, epoch * 10))
    second = sink(path)
    second.open(5)
    second.roll_back(5, 3)
    second.publish(publication(5, 6, 60))
    assert rows(path) == [20, 30, 60]
    return path, get_storage_provider(path)


def outcome(path: str) -> str:
    """Return the outcome of reading a table with mutated files; only 'same' and 'named' are right."""
    try:
        with deadline():
            found = rows(path)
    except TimeoutError:
        return "hung"
    except StatebedError as error:
        return "named" if error.where and error.fix else f"an error that does not say where: {error!r}"
    except (ValueError, LookupError, TypeError, OSError, ArithmeticError) as error:
        return f"raw {type(error).__name__}"
    return "same" if found == [20, 30, 60] else f"wrong rows {found}"


def flipped(data: bytes) -> Iterator[bytes]:
    """Change the byte at every position: one bit flipped, or a character that may still be JSON."""
    chance = random.Random(len(data))
    for place, byte in enumerate(data):
        other = chance.choice([byte ^ (1 << chance.randrange(8)), chance.choice(b'0123456789ae",{}]')])
        yield data[:place] + bytes([other]) + data[place + 1 :]


def cut(data: bytes) -> Iterator[bytes]:
    """Cut short, and with a byte taken out or put in, at some positions."""
    for place in range(0, len(data), 7):
        yield data[:place]
        yield data[:place] + data[place + 1 :]
        yield data[:place] + b"7" + data[place:]
    yield data + b" "
    yield data + data


def sampled(mutations: Iterator[bytes], most: int) -> list[bytes]:
    found = list(mutations)
    return found if len(found) <= most else random.Random(7).sample(found, most)


@pytest.mark.parametrize("mutate", [flipped, cut])
def test_p7_every_mutated_byte_of_a_manifest_is_named_or_harmless(mutate: Mutate) -> None:
    path, store = table()
    tried: Counter[str] = Counter()
    for name in [info.path for info in store.list("_statebed")]:
        good = store.get(name)
        for bad in mutate(good):
            store.put(name, bad)
            tried["same" if bad == good else outcome(path)] += 1
        store.put(name, good)
    assert tried.total() >= 700
    assert set(tried) <= {"same", "named"}, tried


def test_p7_mutated_data_files_are_named() -> None:
    path, store = table()
    tried: Counter[str] = Counter()
    for name in [info.path for info in store.list("") if info.path.endswith(".parquet")]:
        good = store.get(name)
        for bad in sampled(itertools.chain(flipped(good), cut(good)), 100):
            store.put(name, bad)
            tried["same" if bad == good else outcome(path)] += 1
        store.delete(name)
        tried[outcome(path)] += 1
        store.put(name, good)
    assert set(tried) <= {"same", "named"}, tried


def test_p7_files_of_a_table_that_changed_places_are_named() -> None:
    """Each pair of files swapped, and each file in place of each other one."""
    path, store = table()
    tried: Counter[str] = Counter()
    names = [info.path for info in store.list("")]
    for one, other in itertools.permutations(names, 2):
        good, bad = store.get(one), store.get(other)
        store.put(one, bad)
        tried["same" if bad == good else outcome(path)] += 1
        store.put(other, good)
        tried["same" if bad == good else outcome(path)] += 1
        store.put(one, good)
        store.put(other, bad)
    assert set(tried) <= {"same", "named"}, tried


def test_p7_a_lost_entry_that_others_rest_on_is_named() -> None:
    path, store = table()
    entries = [info.path for info in store.list_level("_statebed").objects]
    for name in entries[:-1]:
        good = store.get(name)
        store.delete(name)
        assert outcome(path) in {"same", "named"}
        store.put(name, good)
