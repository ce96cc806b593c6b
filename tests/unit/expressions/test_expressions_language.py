"""The language: what a text means, and what is said about one that means nothing."""

import re
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebed.errors import ExpressionError, InputError
from statebed.expressions import bind
from statebed.expressions.functions import FUNCTIONS

SCHEMA = pa.schema(
    {
        "price": pa.int64(),
        "Reserve": pa.int64(),
        "channel": pa.string(),
        "open": pa.bool_(),
        "two words": pa.int32(),
        "item": pa.struct([("name", pa.string()), ("Weight", pa.float64())]),
    }
)
ROW = pa.table(
    {
        "price": pa.array([7]),
        "Reserve": pa.array([3]),
        "channel": pa.array(["web"]),
        "open": pa.array([True]),
        "two words": pa.array([5], pa.int32()),
        "item": pa.array([{"name": "cup", "Weight": 0.5}], SCHEMA.field("item").type),
    },
    schema=SCHEMA,
)


def value(text: str) -> object:
    return bind(text, SCHEMA).evaluate(ROW)[0].as_py()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("10 - 2 - 3", 5),
        ("2 * 3 % 4", 2),
        ("- price + 1", -6),
        ("- - price", 7),
        ("7 - -3", 10),
        ("not open or true", True),
        ("not (open or true)", False),
        ("true or true and false", True),
        ("not price = 7", False),
        ("price + 1 > 7 and price between 1 and 3 + 4", True),
        ("price between 8 and 9 or open", True),
        ("price not in (1, 2) and channel not like 'x%'", True),
        ("price = 7 is not null", True),
        ("1 < 2 = open", True),
        ("1 + 2 || '3'", "33"),
        ("price::string || '!'", "7!"),
        ("-price::string::int", -7),
        ("case when price > 5 then case open when true then 'a' else 'b' end end", "a"),
        ("item.name", "cup"),
        ("ITEM.weight * 2", 1.0),
        ("(item).name", "cup"),
        ("named_struct('a', struct(price as p)).a.P", 7),
        ("`two words` + 1", 6),
        ("PRICE + reserve", 10),
        ("price -- a comment\n + 1", 8),
        ("price /* another */ + 1", 8),
        ("'it''s'", "it's"),
        ('"say ""so"""', 'say "so"'),
        ("'it\\'s'", "it's"),
        ("'a\\tb'", "a\tb"),
        ("'\\\\d'", "\\d"),
        ("r'\\d'", "\\d"),
        ("'\\''''", "''"),
        ("'a' \"b\"", "ab"),
        ("interval 90 seconds = interval '1' minute + interval '30 seconds'", True),
    ],
)
def test_a_text_means_what_it_means_in_sql(text: str, expected: object) -> None:
    assert value(text) == expected


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("price * 2 as double_price", "double_price"),
        ("price as `a b`", "a b"),
        ("PRICE", "price"),
        ("reserve", "Reserve"),
        ("item.name", "name"),
        ("  price + 1 ", "price + 1"),
        ("item['name']", "item['name']"),
    ],
)
def test_a_result_is_named_by_its_alias_or_its_column_or_its_text(text: str, name: str) -> None:
    assert bind(text, SCHEMA).name == name


@pytest.mark.parametrize(
    ("text", "said", "pointed"),
    [
        ("prise > 1", "there is no column 'prise'", "prise"),
        ("price > 1 and item.nam = 'a'", "there is no field 'nam'", "item.nam"),
        ("price +", "the text ends, but a value is expected", ""),
        ("price price", "expected an operator or the end, got 'price'", "price"),
        ("price > > 1", "expected a value, got '>'", ">"),
        ("(price", "the text ends, but ')' is expected", ""),
        ("price ? 2", "unexpected character '?'", "?"),
        ("channel = 'web", "the quote is not closed", "'"),
        ("2fast", "the number is invalid", "2"),
        ("uper(channel)", "there is no function uper", "uper(channel)"),
        ("sum(price)", "sum is an aggregate", "sum(price)"),
        ("price < now()", "now is not deterministic", "now()"),
        ("upper(channel, 1)", "upper takes 1 argument, got 2", "upper(channel, 1)"),
        ("channel and open", "and needs a boolean, got string", "channel"),
        ("open + 1", "+ does not accept boolean and int", "open + 1"),
        ("price.x", "there is no field 'x': the value has the type bigint", "price.x"),
        ("cast(price as money)", "there is no type money", "money"),
        ("cast(price as decimal(40, 2))", "there is no type decimal(40,2)", "decimal(40, 2)"),
        ("cast(item as int)", "cannot be cast to int", "cast(item as int)"),
        ("channel like price", "like needs a text that is a constant", "price"),
        ("channel like 'a\\\\b'", "escapes neither '%' nor '_' nor itself", "'a\\\\b'"),
        ("channel rlike '(?=a)'", "the regular expression is invalid", "'(?=a)'"),
        ("regexp_extract(channel, '(a)', 2)", "the regular expression has no group 2", "2"),
        ("interval 1 month", "an interval cannot be in 'month'", "interval 1 month"),
        ("interval x", "expected an operator or the end", "x"),
        ("interval '5 minutes and' ", "is not an interval", "interval '5 minutes and'"),
        ("timestamp '2024-13-01'", "'2024-13-01' is not a timestamp", "timestamp '2024-13-01'"),
        ("date_format(null, 'yyyy-Q')", "date_format does not support 'Q'", "'yyyy-Q'"),
        ("date_format(null, 'yyyyyyy')", "date_format does not support 'yyyyyyy'", "'yyyyyyy'"),
        ("date_format(null, '[yyyy]')", "date_format does not support '['", "'[yyyy]'"),
        ('date_format(null, "\'o")', "the pattern has a quote that is not closed", '"\'o"'),
        ("date_format(null, \"'o''c'\")", "two quotes next to quoted text", "\"'o''c'\""),
        ("end > 1", "expected a value, got 'end'", "end"),
        ("'a' in (1, open)", "in does not accept", "'a' in (1, open)"),
        ("1e3L", "an integer cannot have an exponent", "1e3L"),
        ("300Y", "300 does not fit the type tinyint", "300Y"),
        ("", "the text ends, but a value is expected", ""),
    ],
)
def test_a_mistake_is_shown_at_its_place(text: str, said: str, pointed: str) -> None:
    with pytest.raises(InputError) as caught:
        bind(text, SCHEMA, where="operator 'rides', where")
    assert said in caught.value.what
    assert caught.value.where == "operator 'rides', where"
    shown, carets = caught.value.what.splitlines()[-2:]
    first, width = carets.index("^"), carets.count("^")
    assert shown.strip() == text.strip()
    assert shown[first : first + width] == pointed
    assert width == max(1, len(pointed))


def test_a_mistake_in_a_text_of_several_lines_shows_its_line() -> None:
    with pytest.raises(InputError) as caught:
        bind("price > 1\n  and prise > 2\n  and open", SCHEMA)
    assert caught.value.what.splitlines()[1:] == ["      and prise > 2", "          ^^^^^"]


def test_an_unknown_column_gets_a_near_match_and_the_columns_there_are() -> None:
    with pytest.raises(InputError) as caught:
        bind("reserv > 1", SCHEMA)
    assert caught.value.fix.startswith("did you mean 'Reserve'? the columns are price, Reserve, channel")
    with pytest.raises(InputError) as caught:
        bind("uper(channel)", SCHEMA)
    assert "did you mean upper?" in caught.value.fix


def test_a_name_that_fits_two_columns_is_refused_unless_one_is_spelt_so() -> None:
    schema = pa.schema({"a": pa.int64(), "A": pa.int32(), "b": pa.int64()})
    assert bind("A", schema).type == pa.int32()
    with pytest.raises(InputError, match="ambiguous"):
        bind("x", pa.schema({"X": pa.int64()}).append(pa.field("X", pa.int64())))
    with pytest.raises(InputError, match="ambiguous"):
        bind("cC", pa.schema({"cc": pa.int64(), "CC": pa.int64()}))


def test_a_long_chain_of_conditions_is_no_deep_tree() -> None:
    text = " or ".join(f"price = {number}" for number in range(1500))
    assert value(text) is True
    assert value(text.replace(" or ", " and ")) is False


@pytest.mark.parametrize("text", ["(" * 300 + "1" + ")" * 300, "-" * 300 + "price", "1" + " + 1" * 300, "not " * 300])
def test_too_deep_a_tree_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        bind(text.replace("--", "- -"), SCHEMA)


def test_the_reference_names_every_function() -> None:
    page = Path(__file__).parents[3] / "docs" / "reference" / "functions.md"
    named = set(re.findall(r"^\| `(\w+)` \| between", page.read_text(encoding="utf-8"), re.MULTILINE))
    operators = {"and", "or", "not", "in", "between", "like", "ilike", "rlike", "div"}
    assert not sorted(name for name in FUNCTIONS if name.isidentifier() and name not in named | operators)


WORDS = [
    *SCHEMA.names, "`two words`", "item.name", "1", "2.5", "1e3", "7L", "'a'", "'%'", "'2024-01-01'", "null", "true",
    "interval 5 minutes", "timestamp '2024-01-01'", "date '2024-01-01'", "and", "or", "not", "in", "is", "between",
    "like", "case", "when", "then", "else", "end", "as", "::int", "::string", "cast(", "coalesce(", "if(", "substring(",
    "round(", "split(", "date_trunc('day',", "struct(", "greatest(", "abs(", "hour(", "concat(", "nullif(", "(", ")",
    "(", ")", "[", "]", ",", ",", ".", "+", "-", "*", "/", "%", "=", "<", ">=", "<=>", "||", "!", "'", "\\",
]  # fmt: skip


@given(st.lists(st.sampled_from(WORDS), max_size=9))
def test_any_text_is_bound_or_refused_as_input(words: list[str]) -> None:
    try:
        bound = bind(" ".join(words), SCHEMA)
    except InputError:
        return
    try:
        found = bound.evaluate(ROW)
    except ExpressionError:
        return
    assert found.type == bound.type
    assert len(found) == 1
    assert bound.nullable or not found.null_count


OPERANDS = [
    *(
        "price",
        "reserve",
        "channel",
        "open",
        "`two words`",
        "item",
        "item.weight",
        "1",
        "2.5",
        "1e3",
        "'a'",
        "'7'",
        "0",
    ),
    *("null", "true", "interval 5 minutes", "timestamp '2024-01-01'", "date '2024-01-01'", "'2024-01-01'", "-1", "9L"),
]
OPERATORS = ["+", "-", "*", "/", "%", "div", "=", "<", ">=", "<=>", "||", "and", "or", "in", "like", "[]"]
OF_TWO = ["coalesce", "nullif", "greatest", "least", "round", "mod", "pow", "substring", "concat", "split", "rlike"]
OF_TWO += ["date_add", "datediff", "contains", "startswith", "left", "lpad", "date_format", "element_at", "struct"]
SINGLE = ["abs", "floor", "ceil", "sqrt", "ln", "length", "upper", "trim", "year", "hour", "unix_timestamp", "isnan"]
SINGLE += ["isnull", "not", "negative", "string", "int", "double", "boolean", "date", "timestamp", "to_date", "size"]
SINGLE += ["timestamp_seconds", "unix_micros", "sign", "bigint", "float", "tinyint", "reverse", "dayofweek"]


def operations() -> st.SearchStrategy[str]:
    def grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        def binary(one: str, operator: str, other: str) -> str:
            if operator == "[]":
                return f"({one})[{other}]"
            return f"({one} {operator} ({other}))"

        return st.one_of(
            st.builds(binary, inner, st.sampled_from(OPERATORS), inner),
            st.builds("{}({}, {})".format, st.sampled_from(OF_TWO), inner, inner),
            st.builds("{}({})".format, st.sampled_from(SINGLE), inner),
            st.builds("if({}, {}, {})".format, inner, inner, inner),
            st.builds(
                "cast({} as {})".format, inner, st.sampled_from(["int", "string", "decimal(9,2)", "date", "double"])
            ),
        )

    return st.recursive(st.sampled_from(OPERANDS), grown, max_leaves=6)


@given(operations())
def test_operations_on_any_types_are_bound_or_refused_as_input(text: str) -> None:
    test_any_text_is_bound_or_refused_as_input.hypothesis.inner_test([text])  # type: ignore[attr-defined]
