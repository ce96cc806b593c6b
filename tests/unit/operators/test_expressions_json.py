"""JSON, format and time zone functions: what they refuse, and texts that random rows do not contain."""

import pyarrow as pa
import pytest

import statebed as sb
from statebed.expressions import bind

ROWS = pa.table(
    {
        "doc": pa.array(['{"a": 1}', None]),
        "n": pa.array([1, 2], pa.int32()),
        "d": pa.array([1.5, None]),
        "day": pa.array([0, 1], pa.date32()),
        "ts": pa.array([0, 1], pa.timestamp("us", "UTC")),
        "z": pa.array(["Europe/Berlin", "Mars/Base"]),
    }
)
REFUSED = {
    "from_json(doc, doc)": "a text that is a constant",
    "from_json(doc, 'a INTERVAL')": "INTERVAL",
    "from_json(doc, 'map<int, string>')": "from_json does not read map<int,string>",
    "to_json(doc)": "to_json does not accept string",
    "schema_of_json('{')": "schema_of_json",
    "schema_of_json(doc)": "a text that is a constant",
    "format_string('%d', d)": "format_string does not write double as %d",
    "format_string('%s', day)": "format_string does not write date as %s",
    "format_string('%s %s', n)": "%s has no argument",
    "format_string('100%', n)": "has a % that begins no format",
    "to_char(n, '999')": "to_char does not accept int",
    "to_number('7', '9')": "to_number",
    "json_tuple(doc, 'a')": "json_tuple",
}


@pytest.mark.parametrize("text", REFUSED)
def test_a_call_that_cannot_be_exact_is_refused(text: str) -> None:
    with pytest.raises(sb.StatebedError) as caught:
        bind(text, ROWS.schema)
    assert REFUSED[text].lower() in str(caught.value).lower()
    assert caught.value.fix


def test_an_unknown_zone_fails_with_its_name() -> None:
    with pytest.raises(sb.StatebedError, match="'Mars/Base' is not a time zone"):
        bind("from_utc_timestamp(ts, z)", ROWS.schema).evaluate(ROWS)


def test_a_document_that_is_nested_too_deeply_is_malformed() -> None:
    rows = pa.table({"doc": ["[" * 100_000, "[" * 100_000 + "]" * 100_000]})
    assert bind("get_json_object(doc, '$')", rows.schema).evaluate(rows).to_pylist() == [None, None]
    assert bind("from_json(doc, 'array<string>')", rows.schema).evaluate(rows).to_pylist() == [None, None]


def test_half_a_character_becomes_a_question_mark() -> None:
    rows = pa.table({"doc": ['{"a": "x\\ud800y"}', '{"a": "\\ud83d\\ude00"}']})
    for text in ("get_json_object(doc, '$.a')", "from_json(doc, 'a STRING').a"):
        assert bind(text, rows.schema).evaluate(rows).to_pylist() == ["x?y", "😀"], text
