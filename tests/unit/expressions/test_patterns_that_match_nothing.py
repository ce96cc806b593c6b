"""Patterns that can match nothing give what Java gives, and end; numbers are rounded at any place."""

import pyarrow as pa
import pytest

from statebed.expressions import bind


def of_text(expression: str, text: str | None) -> object:
    rows = pa.table({"t": pa.array([text], pa.string())})
    return bind(expression, rows.schema).evaluate(rows).to_pylist()[0]


@pytest.mark.parametrize(
    ("expression", "text", "expected"),
    [
        ("split(t, 'x*')", "aaaa", ["a", "a", "a", "a", ""]),
        ("split(t, 'b*')", "abca", ["a", "", "c", "a", ""]),
        ("split(t, 'b*', 2)", "abca", ["a", "ca"]),
        ("split(t, 'a*')", "", [""]),
        ("split(t, 'x*')", None, None),
        ("split(t, '')", "aéz", ["a", "é", "z"]),
        ("split(t, '', 2)", "aéz", ["a", "éz"]),
        ("split(t, '', 9)", "ab", ["a", "b"]),
        ("split(t, '')", "", [""]),
        ("regexp_count(t, 'b*')", "aéz", 4),
        ("regexp_replace(t, 'b*', '-')", "abca", "-a--c-a-"),
        ("regexp_replace(t, '(b?)', '<$1>')", "ab", "<>a<b><>"),
        ("regexp_replace(t, 'x*', '$0.')", "ax", ".ax.."),
    ],
)
def test_a_pattern_that_can_match_nothing_gives_what_java_gives(
    expression: str, text: str | None, expected: object
) -> None:
    assert of_text(expression, text) == expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("round(x, -40)", [0.0, 0.0, 0.0]),
        ("round(x, -30)", [1e30, 1e30, 0.0]),
        ("round(x, -25)", [1e30, 6e29, 0.0]),
        ("round(x, -24)", [1e30, 6e29, -3e24]),
        ("round(x / 1e53, 23)", [1e-23, 1e-23, 0.0]),
    ],
)
def test_doubles_are_rounded_beyond_the_exact_powers_of_ten(expression: str, expected: list[float]) -> None:
    rows = pa.table({"x": pa.array([1e30, 6e29, -2.5e24])})
    assert bind(expression, rows.schema).evaluate(rows).to_pylist() == expected
