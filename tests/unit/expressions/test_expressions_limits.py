"""Texts that an expression makes are bounded before memory is taken for them."""

import resource
import subprocess
import sys

import pyarrow as pa
import pytest

from statebed.errors import ExpressionError, InputError
from statebed.expressions import bind

ROWS = pa.table({"k": ["a" * 1000] * 4000, "n": list(range(4000))})


@pytest.mark.parametrize("function", ["lpad", "rpad"])
@pytest.mark.parametrize("text", ["k", "'k'", "cast(n as string)"])
def test_padding_to_two_billion_characters_is_refused_by_name_when_it_is_bound(function: str, text: str) -> None:
    with pytest.raises(InputError, match=rf"{function} cannot pad to 2,000,000,000 characters; the limit is 1,048,576"):
        bind(f"{function}({text}, 2000000000, 'x')", ROWS.schema)


@pytest.mark.parametrize(
    "text",
    [
        "lpad(k, 1048576, 'x')",
        "rpad(k, 1048576, '\u20ac')",
        "lpad('', 1048576, 'x')",
        f"replace(k, 'a', '{'b' * 1000}')",
        f"replace(replace(replace(k, 'a', '{'b' * 100}'), 'b', '{'c' * 100}'), 'c', '{'d' * 100}')",
        f"regexp_replace(k, 'a', '{'b' * 1000}')",
        f"regexp_replace(k, '(a+)', '{'$1' * 1000}')",
        f"concat({', '.join(['k'] * 300)})",
        "k || lpad('', 1048576, 'x')",
        "upper(lpad('', 1048576, 'x')) || lower(lpad('', 1048576, 'x'))",
        "repeat(k, 2000)",
        "space(1000000)",
        "lpad(k, 1000000 + cast(n as int), 'xy')",
        "replace(k, left(k, 1), repeat('b', 1000))",
        "array_join(array_repeat(k, 300), ',')",
        "concat_ws(k, array_repeat('', 300))",
    ],
)
def test_results_of_more_than_a_gibibyte_are_refused_by_name_without_taking_the_memory(text: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ExpressionError, match=r"of text for [0-9,]+ rows is above the limit of 1 GiB"):
        bind(text, ROWS.schema).evaluate(ROWS)
    # A step before the one that is refused may take up to the limit, 1 GiB; the refused ones ask for 1.2 GiB to 4 GiB.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20


@pytest.mark.parametrize(
    "text",
    [
        "array_repeat(n, 100000)",
        "sequence(1, 100000)",
        "sequence(0L, n * 1000000)",
        "array_insert(array(n), 100000, n)",
        "transform(sequence(1, 1000), x -> sequence(1, 100))",
    ],
)
def test_lists_of_more_than_64_million_elements_are_refused_without_taking_the_memory(text: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ExpressionError, match=r"list elements for .* rows, above the limit of 67,108,864"):
        bind(text, ROWS.schema).evaluate(ROWS)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20


def test_a_pattern_of_many_groups_makes_the_text_of_the_wanted_one_alone() -> None:
    pattern = "(" * 200 + "a+" + ")" * 200
    code = f"""
import resource, pyarrow as pa
from statebed.expressions import bind
rows = pa.table({{"k": ["a" * 1000] * 4000}})
bound = bind("regexp_extract(k, '{pattern}', 7)", rows.schema)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert bound.evaluate(rows).to_pylist() == rows["k"].to_pylist()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert int(found.stdout) < 100 << 10, "KiB"


def test_what_is_within_the_limits_is_as_before() -> None:
    few = pa.table({"k": ["a", None, "bcd"]})
    assert bind("lpad(k, 3, '0')", few.schema).evaluate(few).to_pylist() == ["00a", None, "bcd"]
    assert bind("replace(k, 'a', 'xyz')", few.schema).evaluate(few).to_pylist() == ["xyz", None, "bcd"]
    assert bind("regexp_replace(k, '(b)(c)', '$2$1$1')", few.schema).evaluate(few).to_pylist() == ["a", None, "cbbd"]
    assert bind("regexp_extract(k, '(b)(c)(d)', 2)", few.schema).evaluate(few).to_pylist() == ["", None, "c"]
    assert bind("regexp_extract(k, '(?<x>b)(?:c)(d)', 0)", few.schema).evaluate(few).to_pylist() == ["", None, "bcd"]
    assert bind("length(lpad(k, 1048576))", few.schema).evaluate(few).to_pylist() == [1048576, None, 1048576]


@pytest.mark.parametrize("number", ["n", "cast(n as decimal(20, 2))", "n * 1.5D"])
def test_rounding_to_two_billion_digits_takes_no_power_of_ten(number: str) -> None:
    code = f"""
import pyarrow as pa
from statebed.expressions import bind
rows = pa.table({{"n": [1, 99]}})
print([float(one) for one in bind("round({number}, -2000000000)", rows.schema).evaluate(rows).to_pylist()])
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout.strip() == "[0.0, 0.0]"
