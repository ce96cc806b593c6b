"""Columns of JSON objects, read by Arrow's parser, are the same as one document after the other."""

import json
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

import statebed as sb
from statebed.expressions import bind
from statebed.expressions.functions import json_columns
from statebed.expressions.functions.json_columns import ReadingTally, counted_reading, is_read_in_bulk

SCHEMA = (
    "id BIGINT, n INT, s SMALLINT, b TINYINT, x DOUBLE, ok BOOLEAN, name STRING, at TIMESTAMP, day DATE, "
    "place STRUCT<a: BIGINT, b: STRING>, l ARRAY<INT>"
)
CORRUPT = "map('mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', 'bad')"
NAMES = ["id", "n", "s", "b", "x", "ok", "name", "at", "day", "place", "l", "other", "bad", "ID"]
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.integers(-300, 300)
    | st.floats(allow_nan=True)
    | st.text(max_size=4)
    | st.sampled_from(
        ["2024-02-29", "2024-02-29T12:00:00.5Z", "2024-02-30", "NaN", "Infinity", "\ud83d", "Inf", "a: NaN"]
    )
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "c"]), inner),
    max_leaves=5,
)
FITTING: dict[str, st.SearchStrategy[Any]] = {
    "id": st.integers(-(2**63), 2**63 - 1),
    "n": st.integers(-9, 9),
    "x": st.floats(allow_nan=False, allow_infinity=False),
    "ok": st.booleans(),
    "name": st.text('aé\n"\\\0{}[], Inf', max_size=5),
    "at": st.sampled_from(["2024-02-29T12:00:00.5Z", "2024-03-01 00:00:00", "2024-03-01T01:00:00+02:00"]),
    "day": st.just("2024-02-29"),
    "place": st.fixed_dictionaries({}, optional={"a": st.integers(0, 9), "b": st.text("ab{", max_size=2)}),
    "l": st.lists(st.none() | st.integers(-9, 9), max_size=3),
    "other": st.integers() | st.lists(st.dictionaries(st.text("ab", max_size=2), st.booleans()), max_size=2),
}
FIT = st.fixed_dictionaries({}, optional={name: st.none() | value for name, value in FITTING.items()})


def text_of(value: Any, spaces: bool, ascii_only: bool) -> str:
    return json.dumps(value, ensure_ascii=ascii_only, indent=1 if spaces else None)


OBJECTS = st.builds(text_of, FIT, st.booleans(), st.booleans())
ANYTHING = st.builds(
    text_of, st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4) | VALUES, st.booleans(), st.just(True)
)
PIECES = [
    "{",
    "}",
    '{"id": 1}',
    '"id": 1',
    ",",
    " ",
    "\n",
    '{"id": 1, "id": 2}',
    "tail",
    "[",
    "]",
    "'",
    '"',
    "\\",
    "null",
    "",
]
BROKEN = st.lists(st.sampled_from(PIECES), max_size=4).map("".join)


def read(documents: list[str | None], text: str) -> list[str]:
    """Return the values as text, because NaN is not equal to itself."""
    table = pa.table({"doc": pa.array(documents, pa.string())})
    return list(map(str, bind(text, table.schema).evaluate(table).to_pylist()))


def compare(documents: list[str | None]) -> ReadingTally:
    for schema in (f"from_json(doc, '{SCHEMA}')", f"from_json(doc, '{SCHEMA}, bad STRING', {CORRUPT})"):
        tally = ReadingTally()
        with counted_reading(tally):
            found = read(documents, schema)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(json_columns, "is_read_in_bulk", lambda _: False)
            assert found == read(documents, schema)
    return tally


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.none() | OBJECTS, max_size=8))
def test_objects_that_fit_are_read_at_once(documents: list[str | None]) -> None:
    tally = compare(documents)
    assert tally.documents == len(documents)
    assert not tally.one_by_one, documents


@settings(max_examples=examples(400), deadline=None)
@given(st.lists(st.none() | OBJECTS | ANYTHING | BROKEN, max_size=6))
def test_all_documents_are_as_if_read_one_by_one(documents: list[str | None]) -> None:
    compare([None if text is None else text.encode(errors="replace").decode() for text in documents])


def test_one_bad_document_leaves_the_others_to_arrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_columns, "_FEW", 4)
    documents: list[str | None] = [f'{{"id": {number}}}' for number in range(1_000)]
    documents[700] = "{broken"
    tally = compare(documents)
    assert 0 < tally.one_by_one <= 4


def test_two_objects_in_one_text_do_not_make_up_for_one_in_two() -> None:
    assert read(['{"name":"}', '{","id":2}', '{"id":3}{"id":4}'], "from_json(doc, 'id INT')") == [
        "{'id': None}",
        "{'id': None}",
        "{'id': 3}",
    ]


def test_nested_documents_are_read_as_deep_as_spark_reads() -> None:
    deep = partial('{{"id": 1, "z": {}}}'.format)
    shallow = deep("[" * 600 + "]" * 600)
    assert read([shallow], "from_json(doc, 'id INT')") == ["{'id': 1}"]
    assert read([deep("[" * 1_200 + "]" * 1_200)], "from_json(doc, 'id INT')") == ["{'id': None}"]


def test_seconds_are_times_unless_they_are_too_many() -> None:
    found = read(['{"at": 5}', '{"at": null}'], "cast(from_json(doc, 'at TIMESTAMP').at as string)")
    assert found == ["1970-01-01 00:00:05", "None"]


def test_types_that_arrow_does_not_read_alike_are_read_one_by_one() -> None:
    assert is_read_in_bulk(pa.struct([("a", pa.struct([("b", pa.list_(pa.int32()))]))]))
    for kind in (pa.float32(), pa.decimal128(9, 2), pa.binary(), pa.map_(pa.string(), pa.int32()), pa.timestamp("us")):
        assert not is_read_in_bulk(pa.struct([("a", kind)])), kind
    assert not is_read_in_bulk(pa.list_(pa.int32()))
    assert not is_read_in_bulk(pa.struct([]))


def test_bytes_that_are_no_text_are_named() -> None:
    table = pa.table({"doc": pa.array([b'{"id": 1}', b'{"id": "\xff"}'])})
    bound = bind("from_json(cast(doc as string), 'id INT')", table.schema)
    with pytest.raises(sb.StatebedError, match="bytes that are not UTF-8"):
        bound.evaluate(table)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("'id INT, bad INT', map('columnNameOfCorruptRecord', 'bad')", "the column bad must be a string"),
        ("'id INT', map('mode', 'FAILFAST')", "does not have the mode FAILFAST"),
        ("'id INT', map('allowComments', 'true')", "does not have allowComments"),
        ("'id INT', map('mode', doc)", "a map of texts that is a constant"),
        ("'id INT', 1", "a map of texts that is a constant"),
    ],
)
def test_other_options_are_refused(arguments: str, message: str) -> None:
    with pytest.raises(sb.StatebedError, match=message) as caught:
        bind(f"from_json(doc, {arguments})", pa.schema([("doc", pa.string())]))
    assert caught.value.fix


def test_an_error_is_not_lost_in_a_conversion() -> None:
    table = pa.table({"doc": ["a", "b"]})
    for text in ("cast(raise_error(doc) as string)", "coalesce(assert_true(doc = 'a'), 'x')", "raise_error(doc)"):
        with pytest.raises(sb.StatebedError):
            bind(text, table.schema).evaluate(table)
    harmless = bind("case when doc > 'c' then raise_error(concat('bad ', doc)) else 'fine' end", table.schema)
    assert harmless.evaluate(table).to_pylist() == ["fine", "fine"]
