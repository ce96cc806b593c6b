"""Compiled loops give the same bits as numpy, and are optional."""

import contextlib
import ctypes
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from effort import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st

from statebed.arrays import compiled
from statebed.arrays.grouping import group_rows
from statebed.arrays.key_hash import hash_columns
from statebed.arrays.mutable.column import Places, equal_words, taken
from statebed.arrays.packed_text import PackedText
from statebed.errors import InputError
from statebed.format.ranges import WHOLE_SPACE
from statebed.state import KeyedView, Merge, keyed_table_config, merge_columns
from statebed.state.keyed.batch import KeyBatch
from statebed.state.keyed.sorted_run import DIRTY, SortedRun
from statebed.state.tiers.hash_index import _HashDirectory, _searched, ends_of
from statebed.storage import MemoryStore

Hashes = npt.NDArray[np.uint64]


@contextlib.contextmanager
def min_rows(rows: int | None) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "_min_rows", lambda: rows)
        yield


def both(function: Callable[[], Any]) -> tuple[Any, Any]:
    """Return the results of a function with compiled loops, and without."""
    with min_rows(0):
        assert compiled.loops_for(0) is not None
        ours = function()
    with min_rows(None):
        return ours, function()


def hashes_of(seed: int, count: int, *, bits: int, distinct: int) -> Hashes:
    random = np.random.default_rng(seed)
    few = random.integers(0, 1 << bits, distinct, dtype=np.uint64) << np.uint64(random.integers(0, 65 - bits))
    return few[random.integers(0, distinct, count)]


some_hashes = st.builds(
    hashes_of, st.integers(0, 999), st.integers(1, 3000), bits=st.sampled_from([1, 8, 20, 40, 63]),
    distinct=st.sampled_from([1, 5, 300, 5000]),
)  # fmt: skip
text = st.one_of(st.none(), st.binary(max_size=9), st.binary(max_size=31), st.binary(max_size=39))


KINDS = (
    pa.int64(), pa.uint64(), pa.int32(), pa.int16(), pa.float64(), pa.float32(), pa.date32(), pa.bool_(),
    pa.timestamp("us", "UTC"), pa.decimal128(20, 0), pa.string(),
)  # fmt: skip


@settings(max_examples=examples(40))
@given(
    st.sampled_from(KINDS), st.lists(st.one_of(st.none(), st.integers(-128, 127)), max_size=40), st.integers(0, 11),
    st.lists(st.tuples(st.integers(0, 1000), st.booleans()), max_size=40), st.booleans(),
)  # fmt: skip
def test_rows_are_taken_as_arrow_takes_them_and_null_where_none_is_wanted(
    kind: pa.DataType, values: list[int | None], offset: int, places: list[tuple[int, bool]], all_wanted: bool
) -> None:
    if pa.types.is_unsigned_integer(kind):
        values = [None if value is None else abs(value) for value in values]
    numbers = pa.array(values, pa.int64())
    array = (numbers.cast(pa.int32()).cast(kind) if kind == pa.date32() else numbers.cast(kind))[offset:]
    places = places if len(array) else [(0, False) for _ in places if not all_wanted]
    wanted = np.array([chosen for _, chosen in places], dtype=np.bool_)
    rows = np.array([place % max(len(array), 1) if chosen or all_wanted else -1 for place, chosen in places], np.int64)
    indices = pa.array(rows, pa.int64(), mask=None if all_wanted else ~wanted)
    for result in both(partial(taken, array, rows, None if all_wanted else wanted)):
        result.validate(full=True)
        assert result.equals(array.take(indices))


@given(st.lists(text, min_size=1, max_size=50), st.integers(0, 3))
def test_text_has_the_same_hash(values: list[bytes | None], offset: int) -> None:
    array = pa.array([None, b"xyz", b"", *values], pa.binary())[offset:]
    packed = PackedText.of(array)
    assert packed is not None
    numbers = pa.array(range(len(array)), pa.int64())
    for columns in ([packed], [array], [numbers, packed], [packed, numbers], [packed, packed]):
        ours, theirs = both(partial(hash_columns, columns))
        assert ours.tolist() == theirs.tolist()


@given(st.lists(text, max_size=50), st.integers(0, 3), st.integers(0, 9))
def test_text_is_packed_into_the_same_words(values: list[bytes | None], offset: int, unaligned: int) -> None:
    array = pa.array([None, b"xyz", b"", *values], pa.large_binary())[offset:]
    # Bytes of a file may begin anywhere, and a null may have some.
    validity, offsets, data = array.buffers()
    data = pa.py_buffer(bytes(unaligned) + (b"" if data is None else data.to_pybytes())).slice(unaligned)
    moved = pa.Array.from_buffers(array.type, len(array), [validity, offsets, data], offset=array.offset)

    def words() -> list[list[int]]:
        packed = PackedText.of(moved)
        assert packed is not None
        return [word.tolist() for word in packed.words]

    ours, theirs = both(words)
    assert ours == theirs
    assert moved.equals(array)


@given(st.lists(st.one_of(st.none(), st.binary(max_size=100)), min_size=1, max_size=50), st.integers(0, 100))
def test_long_text_has_the_same_hash(values: list[bytes | None], length: int) -> None:
    array = pa.array([b"abc", *values], pa.binary())[1:]
    even = pa.array([bytes([place % 251]) * length for place in range(len(array))], pa.binary())
    for columns in ([array], [even], [array, even], [even, array]):
        ours, theirs = both(partial(hash_columns, columns))
        assert ours.tolist() == theirs.tolist()


@pytest.mark.parametrize("kind", [pa.int64(), pa.float64(), pa.timestamp("us"), pa.decimal128(18, 2), pa.int32()])
def test_numbers_have_the_same_hash(kind: pa.DataType) -> None:
    numbers = [0, 1, None, -1, 77, 2**31 - 1]
    array = pa.array([Decimal(one) if one is not None and pa.types.is_decimal(kind) else one for one in numbers], kind)
    ours, theirs = both(lambda: hash_columns([array, array[::-1]]))
    assert ours.tolist() == theirs.tolist()


@given(some_hashes, some_hashes)
@settings(max_examples=examples(100))
def test_ranges_of_hashes_have_the_same_ends(hashes: Hashes, lasts: Hashes) -> None:
    hashes, lasts = np.sort(hashes), np.sort(lasts)
    starts = np.searchsorted(hashes, lasts & ~np.uint64(0xFFFF_FFFF))
    ours, theirs = both(lambda: ends_of(hashes, starts, lasts))
    assert ours.tolist() == theirs.tolist()


@given(some_hashes, some_hashes, st.sampled_from([0.5, 1.0]))
@example(np.array([0, 2**64 - 1], dtype=np.uint64), np.array([5, 2**63, 2**64 - 2], dtype=np.uint64), 0.5)
@settings(max_examples=examples(200))
def test_hashes_are_found_in_the_same_rows(held: Hashes, wanted: Hashes, places_per_row: float) -> None:
    held, wanted = np.unique(held), np.sort(np.concatenate([wanted, held[::3]]))
    held.setflags(write=False)
    directory, expected_directory = both(lambda: _HashDirectory.of(held, places_per_row=places_per_row))
    assert directory.starts.tolist() == expected_directory.starts.tolist()
    assert directory.crowded == expected_directory.crowded
    shuffled = np.random.default_rng(1).permutation(wanted)
    for find, some in ((directory.find, wanted), (_searched, wanted), (_searched, shuffled)):
        (at, equal), (expected, same) = both(partial(find, held, some))
        assert at.tolist() == expected.tolist() == np.searchsorted(held, some).tolist()
        assert equal.tolist() == same.tolist() == np.isin(some, held).tolist()


def test_nothing_is_found_in_an_empty_run() -> None:
    nothing, wanted = np.empty(0, dtype=np.uint64), np.array([0, 7], dtype=np.uint64)
    (at, equal), (expected, same) = both(lambda: _searched(nothing, wanted))
    assert at.tolist() == expected.tolist() == [0, 0]
    assert equal.tolist() == same.tolist() == [False, False]


def test_a_damaged_directory_leads_nowhere_outside() -> None:
    held = np.sort(np.random.default_rng(1).integers(0, 1 << 63, 5000, dtype=np.uint64))
    directory = _HashDirectory.of(held)
    loops = compiled.loops_for(1 << 20)
    assert loops is not None
    for starts in (directory.starts[:1], directory.starts + np.int32(1 << 30), -directory.starts):
        at, equal = loops.find(starts, directory.lowest, directory.shift, held, held)
        assert ((at >= 0) & (at < len(held))).all()
        assert (held[at] == held)[equal].all()


def test_a_directory_of_a_run_that_is_not_sorted_is_written_inside() -> None:
    held = np.random.default_rng(1).integers(0, 1 << 63, 5000, dtype=np.uint64)
    loops = compiled.loops_for(1 << 20)
    assert loops is not None
    around = np.zeros(300, dtype=np.int32)
    loops.fill_directory(held, held[0], np.uint64(40), around[100:200])
    assert not around[:100].any()
    assert not around[200:].any()
    assert around[199] == len(held)


@given(st.integers(0, 99), st.sampled_from([np.uint8, np.uint16, np.uint32, np.uint64]), st.integers(1, 5))
def test_rows_are_compared_alike(seed: int, kind: Any, count: int) -> None:
    random = np.random.default_rng(seed)
    ours, theirs = (tuple(random.integers(0, 2, 50).astype(kind) for _ in range(count)) for _ in range(2))
    rows, others, maybe = random.integers(0, 50, 200), random.integers(0, 50, 200), random.random(200) < 0.8
    equal, expected = both(lambda: equal_words(ours, rows, theirs, others, maybe))
    pairs = zip(maybe, rows, others, strict=True)
    by_row = [may and all(one[a] == other[b] for one, other in zip(ours, theirs, strict=True)) for may, a, b in pairs]
    assert equal.tolist() == expected.tolist() == by_row


@given(st.lists(some_hashes, min_size=1, max_size=5))
def test_runs_become_one_in_the_same_order(runs: list[Hashes]) -> None:
    runs = [np.sort(run) for run in runs]
    numbers = [np.arange(len(run)) + 10_000 * index for index, run in enumerate(runs)]
    ours, theirs = both(lambda: Places(runs).merge(numbers).tolist())
    assert ours == theirs == np.concatenate(numbers)[np.argsort(np.concatenate(runs), kind="stable")].tolist()


@given(
    st.integers(0, 99),
    st.sampled_from([(0,), (4,), (0, 4), (0, 1, 4, 5), range(8)]),
    st.integers(0, 400),
    st.booleans(),
)
def test_rows_are_marked_alike(seed: int, before: Sequence[int], count: int, deleted: bool) -> None:
    random = np.random.default_rng(seed)
    marks = random.choice(np.array(before, dtype=np.uint8), 400)
    rows = np.sort(random.permutation(400)[:count])

    def marked() -> tuple[list[int], int, list[int]]:
        hashes = np.arange(400, dtype=np.uint64)
        run = SortedRun(hashes, (), (), None, marks.copy(), dirty_rows=int(np.count_nonzero(marks & DIRTY)))
        change = run.delete if deleted else partial(run.put, values=(), times=None)
        change(rows)
        remembered = run.held_bytes
        change(rows)
        assert run.held_bytes == remembered  # nothing has changed any more
        return run.marks.tolist(), run.dirty_rows, run.dirty_between(0, 400).tolist()

    ours, theirs = both(marked)
    assert ours == theirs
    assert ours[1] == len(ours[2]) == len(set(ours[2]) | set(rows.tolist()))


@given(st.integers(0, 99), st.sampled_from([np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint64]))
def test_sums_of_groups_are_the_same(seed: int, kind: Any) -> None:
    random = np.random.default_rng(seed)
    values, order = random.integers(0, 3, 40).astype(kind), random.permutation(40)
    starts = np.unique(np.append(0, random.integers(0, 40, 15)))
    merge, table = merge_columns(value=Merge.SUM), pa.table({"value": pa.array(values)})
    ours, theirs = both(lambda: merge.fold(table, order, starts))
    assert ours.equals(theirs)
    assert ours["value"].to_pylist() == [int(part.sum()) for part in np.split(values[order], starts[1:])]


@given(st.integers(0, 99), st.integers(0, 60), st.integers(1, 20), st.sampled_from([np.int64, np.uint64]))
def test_groups_are_reduced_alike(seed: int, count: int, distinct: int, kind: Any) -> None:
    random = np.random.default_rng(seed)
    values = random.integers(0, 1 << 63, count, dtype=np.uint64).astype(kind)
    numbers, flags = random.integers(-9, 9, count), random.random(count) < 0.3
    grouping = group_rows(None, random.integers(0, distinct, count).astype(np.uint64), [])
    groups = np.split(grouping.order, grouping.starts[1:]) if count else []

    def reduced() -> list[list[int]]:
        results = (grouping.greatest(values), grouping.add(numbers), grouping.any(flags))
        return [result.tolist() for result in results]

    ours, theirs = both(reduced)
    assert ours == theirs
    assert ours == [
        [int(values[rows].max()) for rows in groups],
        [int(numbers[rows].sum()) for rows in groups],
        [bool(flags[rows].any()) for rows in groups],
    ]


KEYS = pa.schema([("group", pa.int32()), ("name", pa.string())])


def batch_of(seed: int, rows: int) -> tuple[pa.Table, pa.Table]:
    ids = np.random.default_rng(seed).zipf(1.2, rows) % 7000
    names = [None if one % 97 == 0 else f"n{one:05d}" * (1 + one % 3) for one in ids.tolist()]
    keys = pa.table([pa.array(ids % 11, pa.int32()), pa.array(names)], schema=KEYS)
    return keys, pa.table({"value": pa.array(ids)})


def state_after_batches() -> tuple[Any, ...]:
    config = keyed_table_config("t", "", KEYS.names, pa.schema([*KEYS, ("value", pa.int64())]))
    view = KeyedView(config, owned=WHOLE_SPACE, store=MemoryStore("m"))
    for seed in range(6):
        keys, values = batch_of(seed, 6000)
        view.merge(keys, values, merge_columns(value=Merge.SUM))
    deleted = view.delete(batch_of(7, 500)[0])
    found = view.get(batch_of(8, 6000)[0])
    checkpoint = view.checkpoint(lambda digest: f"file-{digest}")
    files = [upload.content() for upload in checkpoint.uploads]
    return deleted.tolist(), found[0].to_pylist(), found[1].tolist(), pa.concat_tables(view.scan()).to_pylist(), files


def test_state_and_its_files_are_the_same() -> None:
    ours, theirs = both(state_after_batches)
    assert ours == theirs
    assert len(ours[3]) > 3000


def test_keys_that_share_a_hash_are_told_apart() -> None:
    keys, _ = batch_of(1, 5000)
    schema = KEYS

    def few(columns: Any) -> Hashes:
        return hash_columns(columns) % np.uint64(50)

    def groups() -> list[tuple[Any, int]]:
        batch = KeyBatch.of(keys, schema, few, where="test")
        starts = batch.starts()
        names = [tuple(row.values()) for row in keys.take(pa.array(batch.order[starts])).to_pylist()]
        return list(zip(names, np.diff(starts, append=len(batch)).tolist(), strict=True))

    ours, theirs = both(groups)
    assert ours == theirs
    assert len(ours) == keys.group_by(KEYS.names).aggregate([]).num_rows


def run(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False, env=environment
    )
    assert not done.returncode, done.stderr
    return done.stdout.strip()


def test_without_numba_everything_works() -> None:
    code = """
import sys
sys.modules["numba"] = None
import pyarrow as pa
from statebed.arrays.compiled import loops_for
from statebed.format.ranges import WHOLE_SPACE
from statebed.state import KeyedView, Merge, keyed_table_config, merge_columns
from statebed.storage import MemoryStore

config = keyed_table_config("t", "", ["id"], pa.schema([("id", pa.int64()), ("value", pa.int64())]))
view = KeyedView(config, owned=WHOLE_SPACE, store=MemoryStore("m"))
ids = pa.array([one % 5000 for one in range(10_000)])
view.merge(pa.table({"id": ids}), pa.table({"value": ids}), merge_columns(value=Merge.SUM))
print(loops_for(10**6), sum(sum(part["value"].to_pylist()) for part in view.scan()))
"""
    assert run(code) == f"None {2 * sum(range(5000))}"


def test_memory_is_copied_and_c_functions_are_called_by_address() -> None:
    loops = compiled.loops_for(1 << 12)
    assert loops is not None
    texts = [b"", b"a", b"xyz" * 100, b"", b"last"]
    buffers = [ctypes.create_string_buffer(text) for text in texts]
    starts = np.array([ctypes.addressof(buffer) for buffer in buffers], np.uint64)
    lengths = np.array([len(text) for text in texts], np.uint64)
    result = np.empty(int(lengths.sum()), np.uint8)
    loops.copy_memory(starts, lengths, result)
    assert result.tobytes() == b"".join(texts)
    libc = ctypes.CDLL(None)
    limits = np.array([5, 5, 5, 5, 3], np.uint64)
    strnlen = np.uint64(ctypes.cast(libc.strnlen, ctypes.c_void_p).value or 0)
    assert loops.call_each(strnlen, starts, limits).tolist() == [0, 1, 5, 0, 3]


def test_small_batches_do_not_load_the_compiler() -> None:
    code = "import sys\nfrom statebed.arrays.key_hash import hash_key\nhash_key(5)\nprint('numba' in sys.modules)"
    assert run(code) == "False"
    assert run(code, **{compiled.VARIABLE: "always"}) == "True"


def test_a_process_that_has_loaded_it_uses_it_for_smaller_batches() -> None:
    asked = "print(*(loops_for(rows) is None for rows in (1000, 5000, 1000, 9)))"
    code = f"from statebed.arrays.compiled import loops_for\n{asked}"
    assert run(code) == "True False False True"


def test_it_can_be_switched_off_and_a_wrong_word_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "from statebed.arrays.compiled import loops_for\nprint(loops_for(10**6))"
    assert run(code, **{compiled.VARIABLE: "off"}) == "None"
    assert run(code, NUMBA_DISABLE_JIT="1") == "None"
    monkeypatch.setenv(compiled.VARIABLE, "perhaps")
    with pytest.raises(InputError, match=r"(?s)STATEBED_COMPILED is 'perhaps'.*auto, always, off"):
        compiled._min_rows.__wrapped__()


def test_it_is_compiled_in_each_process_where_nothing_can_be_kept() -> None:
    code = """
import numba
njit = numba.njit
def refuse(**options):
    if options.pop("cache", False):
        raise RuntimeError("cannot cache function: no locator available")
    return njit(**options)
numba.njit = refuse
import numpy as np
from statebed.arrays.compiled import loops
numba.njit = njit
at = np.arange(2), np.arange(2)
loops.make_room(np.array([1, 3], dtype=np.uint64), np.array([2, 4], dtype=np.uint64), *at)
print(*at)
"""
    assert run(code) == "[0 2] [1 3]"
