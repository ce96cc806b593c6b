"""Read-modify-write of 100,000-row batches: this project's keyed view against rocksdict, lmdb, dict and duckdb.

All stores live in one process and take turns, batch by batch, so that a slow moment of the machine meets all of them.
Afterwards their answers are compared: number and sum of all values, and the values of the last batch's keys.
"""

import json
import statistics
import sys
import time
from collections.abc import Iterator
from itertools import product

import numpy as np

from bench.stores import Dict, DuckDb, Lmdb, Rocks, Statebed, Store
from bench.workload import BATCH_ROWS, Batch, Case, batch_of, batches, key_table

_LOAD_ROWS = 500_000
_MILLION = 1_000_000


def run(*, quick: bool, as_json: bool, only: str = "") -> int:
    """Measure every case and print the ratios; fails if the stores disagree."""
    sizes = [_MILLION] if quick else [_MILLION, 10 * _MILLION]
    cases = [
        Case(kind, distribution, new_share, keys)
        for keys, kind, distribution, new_share in product(
            sizes, ("int64", "string", "composite"), ("uniform", "zipf"), (0.0, 0.2)
        )
    ]
    chosen = [case for case in cases if only in case.name]
    if not chosen:
        print("no such case; there are:", *(case.name for case in cases), sep="\n  ", file=sys.stderr)
        return 2
    if not as_json:
        print(f"{'case':<38} {'baseline':<10} {'ours':>10} {'theirs':>10} {'ratio':>7}   (rows/s, median batch)")
    for case in chosen:
        speeds = _measure(case, count=10 if quick else 16)
        ours = speeds.pop(Statebed.name)
        for baseline, theirs in speeds.items():
            _print(case, baseline, ours, theirs, as_json=as_json)
    return 0


def _measure(case: Case, *, count: int) -> dict[str, float]:
    """Rows per second of each store."""
    schema = key_table(case.kind, np.zeros(1, dtype=np.int64)).schema
    stores: list[Store] = [Statebed(schema), Rocks(), Lmdb(), Dict(), DuckDb(schema)]
    try:
        for batch in _first_values(case):
            for store in stores:
                store.apply(batch)
        seconds: dict[str, list[float]] = {store.name: [] for store in stores}
        for number, batch in enumerate(batches(case, count, seed=7)):
            turn = number % len(stores)
            for store in (*stores[turn:], *stores[:turn]):
                start = time.perf_counter()
                store.apply(batch)
                seconds[store.name].append(time.perf_counter() - start)
        _check(case, stores, batch)
    finally:
        for store in stores:
            store.close()
    # The first batch warms up.
    return {name: BATCH_ROWS / statistics.median(each[1:]) for name, each in seconds.items()}


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


def _print(case: Case, baseline: str, ours: float, theirs: float, *, as_json: bool) -> None:
    ratio = ours / theirs
    if as_json:
        line = {
            "case": case.name,
            "baseline": baseline,
            "metric": "read-modify-write",
            "ours": round(ours),
            "theirs": round(theirs),
            "ratio": round(ratio, 2),
            "unit": "rows/s",
        }
        print(json.dumps(line), flush=True)
    else:
        print(f"{case.name:<38} {baseline:<10} {ours:>10,.0f} {theirs:>10,.0f} {ratio:>6.1f}x", flush=True)
