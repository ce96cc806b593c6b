"""Read-modify-write of 100,000-row batches: this project's keyed view against rocksdict, lmdb, dict and duckdb.

All stores live in one process and take turns, batch by batch, so that a slow moment of the machine meets all of them.
What counts is the time of all batches together: stores that put work off do it in some of them, and a full run has as
many as it takes for ours to merge new keys into its largest run. Afterwards their answers are compared: number and sum
of all values, and the values of the last batch's keys.
"""

import gc
import time
from collections.abc import Iterator
from itertools import product

import numpy as np

from bench.report import Report, faster
from bench.stores import Dict, DuckDb, Lmdb, Rocks, Statebed, Store
from bench.workload import BATCH_ROWS, Batch, Case, batch_of, batches, key_table

_LOAD_ROWS = 500_000
_WARM_UP = 2
"""Batches that are not counted."""
_MILLION = 1_000_000
_AT_LEAST = {("int64", _MILLION): 25.0, ("string", _MILLION): 20.0}
"""Goal as a multiple of the speed of rocksdict, by kind of key and number of keys."""
_AT_LEAST_BEYOND = 15.0


def cases(*, quick: bool) -> list[Case]:
    sizes = [_MILLION] if quick else [_MILLION, 10 * _MILLION]
    return [
        Case(kind, distribution, new_share, keys)
        for keys, kind, distribution, new_share in product(
            sizes, ("int64", "string", "composite"), ("uniform", "zipf"), (0.0, 0.2)
        )
    ]


def measure(case: Case, report: Report, *, count: int) -> None:
    """Run a case in all stores, and report; stops the program if the stores disagree."""
    schema = key_table(case.kind, np.zeros(1, dtype=np.int64)).schema
    stores: list[Store] = [Statebed(schema), Rocks(), Lmdb(), Dict(), DuckDb(schema)]
    try:
        for batch in _first_values(case):
            for store in stores:
                store.apply(batch)
        seconds: dict[str, list[float]] = {store.name: [] for store in stores}
        # The collector would look at the millions of objects of one store while another one is being measured.
        gc.collect()
        gc.disable()
        for number, batch in enumerate(batches(case, _WARM_UP + count, seed=7)):
            turn = number % len(stores)
            for store in (*stores[turn:], *stores[:turn]):
                start = time.perf_counter()
                store.apply(batch)
                seconds[store.name].append(time.perf_counter() - start)
        _check(case, stores, batch)
    finally:
        gc.enable()
        for store in stores:
            store.close()
    speeds = {name: BATCH_ROWS * count / sum(each[_WARM_UP:]) for name, each in seconds.items()}
    ours = speeds.pop(Statebed.name)
    for baseline, theirs in speeds.items():
        target = _target(case) if baseline == Rocks.name else None
        report.add(
            faster(case.name, baseline, "read-modify-write", ours=ours, theirs=theirs, unit="rows/s", target=target)
        )


def _target(case: Case) -> float | None:
    return _AT_LEAST_BEYOND if case.keys > _MILLION else _AT_LEAST.get((case.kind, case.keys))


def _first_values(case: Case) -> Iterator[Batch]:
    order = np.random.default_rng(3).permutation(case.keys)
    for start in range(0, case.keys, _LOAD_ROWS):
        ids = order[start : start + _LOAD_ROWS]
        yield batch_of(case.kind, ids, ids % 1000)


def _check(case: Case, stores: list[Store], batch: Batch) -> None:
    sums = {store.name: store.checksum() for store in stores}
    if len(set(sums.values())) != 1:
        raise SystemExit(f"{case.name}: the stores disagree on number and sum of all values: {sums}")
    expected = stores[0].values(batch)
    for store in stores[1:]:
        if not np.array_equal(store.values(batch), expected):
            raise SystemExit(f"{case.name}: {store.name} has other values for the last batch")
