"""Columns of Spark's behind an operator: every function and operator of our expressions, with Spark's answer."""

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from expression_cases import EXPRESSIONS, ROWS
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

import statebed as sb
from statebed.errors import InputError
from statebed.expressions import FUNCTIONS, bind
from statebed.expressions.language import Call, Case, Cast, FieldOf, Literal, Name, Node, TimeLiteral, parse
from statebed.expressions.mistakes import TextSpan
from statebed.spark.plan.column_text import column_text

BINARY: dict[str, Callable[[Column, Column], Column]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "%": lambda a, b: a % b,
    "=": lambda a, b: a == b,
    "<>": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "<=>": lambda a, b: a.eqNullSafe(b),
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "||": F.concat,
    "[]": lambda a, b: a[b],
}
UNARY: dict[str, Callable[[Column], Column]] = {
    "not": lambda a: ~a,
    "negative": lambda a: -a,
    "isnull": lambda a: a.isNull(),
    "isnotnull": lambda a: a.isNotNull(),
}
ONLY_TEXT = frozenset({"div", "between"})
"""Functions that Spark's Columns have no operator for; `between` is two comparisons there."""


def as_column(node: Node, text: str) -> Column | None:  # noqa: PLR0911 - one for each kind of node
    """The tree of an expression as a user would write it with Columns; None where that is not possible."""
    part = text[node.start : node.end]
    match node:
        case Name():
            return F.col(".".join(f"`{one}`" for one in node.parts))
        case Literal(value=str() as value):  # also the names of a struct's fields, which stand nowhere in the text
            return F.lit(value)
        case Literal() | TimeLiteral():
            return F.expr(part)
        case FieldOf():
            inner = as_column(node.operand, text)
            return None if inner is None else inner.getField(node.field)
        case Cast():
            inner, kind = as_column(node.operand, text), type_text(part)
            if inner is None or kind is None:
                return None
            return inner.try_cast(kind) if node.lenient else inner.cast(kind)
        case Case():
            return case_column(node, text)
        case Call():
            return call_column(node, text)
    raise AssertionError(node)


def type_text(cast: str) -> str | None:
    if cast.endswith(")") and " as " in cast.lower():
        return cast[cast.lower().rindex(" as ") + 4 : -1]
    return cast[cast.rindex("::") + 2 :] if "::" in cast else None


def case_column(node: Case, text: str) -> Column | None:
    parts = [(as_column(condition, text), as_column(value, text)) for condition, value in node.branches]
    if any(part is None for branch in parts for part in branch):
        return None
    (first, value), *rest = parts
    assert first is not None
    made = F.when(first, value)
    for condition, value in rest:
        assert condition is not None
        made = made.when(condition, value)
    if node.otherwise is None:
        return made
    last = as_column(node.otherwise, text)
    return None if last is None else made.otherwise(last)


def call_column(node: Call, text: str) -> Column | None:
    arguments = [as_column(one, text) for one in node.arguments]
    given = [one for one in arguments if one is not None]
    if len(given) != len(arguments) or node.function in ONLY_TEXT:
        return None
    if node.function in BINARY and len(given) == 2:
        return BINARY[node.function](*given)
    if node.function in UNARY and len(given) == 1:
        return UNARY[node.function](*given)
    return F.call_function(node.function, *given)


def columns_of_expressions() -> dict[str, Column]:
    made = {text: as_column(parse(TextSpan(text, "", 0, len(text))).root, text) for text in EXPRESSIONS}
    return {text: column for text, column in made.items() if column is not None}


def test_every_expression_of_ours_may_be_written_with_columns(spark: SparkSession) -> None:
    columns = columns_of_expressions()
    assert len(columns) > 0.9 * len(EXPRESSIONS)
    called = set()
    for text, column in columns.items():
        written = column_text(column, where="test")
        called |= {node.function for node in nodes_of(written) if isinstance(node, Call)}
        ours, expected = bind(written, ROWS.schema), bind(text, ROWS.schema)
        assert ours.type == expected.type, (text, written)
        assert repr(ours.evaluate(ROWS).to_pylist()) == repr(expected.evaluate(ROWS).to_pylist()), (text, written)
    for name in {name for name in FUNCTIONS if name.isidentifier()} - called - {"div", "between"}:
        assert column_text(F.call_function(name, F.col("i")), where="test") == f"{name}(i)"


def nodes_of(text: str) -> list[Node]:
    waiting, found = [parse(TextSpan(text, "", 0, len(text))).root], []
    while waiting:
        node = waiting.pop()
        found.append(node)
        waiting += [one for one in vars(node).values() if isinstance(one, Node)]
        waiting += list(getattr(node, "arguments", ()))
        waiting += [one for branch in getattr(node, "branches", ()) for one in branch]
    return found


SCHEMA = pa.schema(
    {
        "n": pa.int64(),
        "t": pa.string(),
        "x": pa.float64(),
        "ts": pa.timestamp("us", "UTC"),
        "s": pa.struct({"f": pa.int64(), "a b": pa.string()}),
        "a": pa.list_(pa.int64()),
        "m": pa.map_(pa.string(), pa.int64()),
        "odd name": pa.int64(),
        "a.b": pa.int64(),
    }
)
MADE = dt.datetime(2024, 5, 31, 23, 59, 58, 123456, tzinfo=dt.UTC)
TABLE = pa.table(
    [
        [3, None, -7],
        ["it's", "100%", None],
        [1.5, None, float("nan")],
        [MADE, None, MADE],
        [{"f": 1, "a b": "z"}, None, {"f": None, "a b": None}],
        [[1, 2], [3], None],
        [[("k", 1)], [], None],
        [1, 2, 3],
        [4, 5, 6],
    ],
    schema=SCHEMA,
)

COLUMNS: dict[str, Callable[[], Column]] = {
    "arithmetic": lambda: (F.col("n") * 2 - 1) / 4 + F.col("x"),
    "right operands": lambda: 10 - F.col("n"),
    "a chain of minus": lambda: F.col("n") - F.col("odd name") - (F.col("n") - 1),
    "and, or, not": lambda: (F.col("n") > 1) & ~(F.col("x") < 2) | F.col("t").isNull(),
    "a case": lambda: F.when(F.col("n") > 1, "a").when(F.col("n").isNull(), "it's").otherwise("b\\c"),
    "a case without an end": lambda: F.when(F.col("n") > 1, F.col("x")),
    "not equal": lambda: F.col("n") != 3,
    "in": lambda: F.col("n").isin(3, 4),
    "between": lambda: F.col("n").between(1, 5),
    "like": lambda: F.col("t").like("%\\%") | F.col("t").rlike("^it"),
    "a float is a double": lambda: F.col("n") * 0.1,
    "a large number": lambda: F.col("n") + 2**40,
    "a decimal": lambda: F.lit(Decimal("1.50")) * F.col("n"),
    "a date": lambda: F.lit(dt.date(2024, 1, 31)),
    "a time": lambda: F.col("ts") > F.lit(dt.datetime(2024, 5, 31, 12, tzinfo=dt.UTC)),
    "a time before 1970": lambda: F.lit(dt.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=dt.UTC)),
    "a span": lambda: F.col("ts") - F.expr("interval 1 minute"),
    "a timedelta": lambda: F.col("ts") + F.lit(dt.timedelta(minutes=3, microseconds=1)),
    "null": lambda: F.coalesce(F.lit(None), F.col("n")),
    "NaN": lambda: F.lit(float("nan")),
    "a flag": lambda: F.lit(True),
    "a cast": lambda: F.col("n").cast("decimal(10,2)"),
    "a lenient cast": lambda: F.col("t").try_cast("int"),
    "a field": lambda: F.col("s.f") + F.col("s").getField("f") + F.col("s")["f"],
    "a field with a space": lambda: F.col("s").getField("a b"),
    "an element": lambda: F.get(F.col("a"), F.lit(1)),
    "a value of a map": lambda: F.col("m")["k"],
    "odd names": lambda: F.col("`odd name`") + F.col("`a.b`"),
    "a struct": lambda: F.struct("n", F.col("x").alias("other name")),
    "functions": lambda: F.concat(F.upper("t"), F.substring("t", 1, 2), F.lpad("t", 5, "*")),
    "text inside": lambda: F.expr("n + 1") * 2,
    "a name": lambda: (F.col("n") * 2).alias("twice as much"),
    "modulo and power": lambda: F.pow(F.col("n") % 2, 3),
    "a hundred conditions": lambda: any_of([F.col("n") == number for number in range(100)]),
}


def any_of(conditions: list[Column]) -> Column:
    made = conditions[0]
    for one in conditions[1:]:
        made = made | one
    return made


@pytest.fixture(scope="module")
def frame(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    path = tmp_path_factory.mktemp("columns") / "rows.parquet"
    pq.write_table(TABLE, path)
    return session.read.parquet(str(path))


@pytest.mark.parametrize("case", COLUMNS, ids=str)
def test_a_column_has_sparks_answer_and_name(frame: DataFrame, case: str) -> None:
    column = COLUMNS[case]()
    expected = frame.select(column).toArrow()
    bound = bind(column_text(column, where="test"), SCHEMA)
    found = bound.evaluate(TABLE)
    assert repr(found.to_pylist()) == repr(expected.column(0).to_pylist())
    assert str(found.type).replace(" not null", "") == str(expected.column(0).type).replace(" not null", "")


REFUSED: dict[str, tuple[Callable[[], Column], str]] = {
    "a function that we lack": (lambda: F.sentences("t"), "the function sentences"),
    "an aggregate": (lambda: F.sum("n"), "the function sum"),
    "a window": (lambda: F.row_number().over(Window.orderBy("n")), "a window function"),
    "a UDF": (lambda: F.udf(lambda value: value, "int")("n"), "UDF"),
    "a changed struct": (lambda: F.col("s").withField("g", F.col("n")), "withField"),
    "a star": (lambda: F.col("*"), "'*'"),
    "an order": (lambda: F.col("n").desc(), "a sort order"),
    "chance": (lambda: F.rand(7), "the function rand"),
}


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_what_our_expressions_lack_is_named_with_the_way_out(spark: SparkSession, case: str) -> None:
    make, words = REFUSED[case]
    with pytest.raises(InputError) as caught:
        column_text(make(), where="operator 'late'")
    assert words in str(caught.value)
    assert "write it as SQL text" in caught.value.fix
    assert "operator 'late'" in str(caught.value)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: F.col("n").bitwiseAND(3).bitwiseOR(4), "((n & 3) | 4)"),
        (lambda: F.bitwise_not(F.col("n")), "(~n)"),
        (lambda: F.lit(b"ab"), "X'6162'"),
        (lambda: F.xxhash64("n", "t"), "xxhash64(n, t)"),
    ],
)
def test_bits_and_bytes_are_written_as_text(spark: SparkSession, make: Callable[[], Column], text: str) -> None:
    assert column_text(make(), where="test") == text


def test_a_lambda_function_is_written_as_text(spark: SparkSession) -> None:
    written = column_text(F.transform("a", lambda one: one + F.col("n")), where="test")
    rows = pa.table({"a": [[1, 2], [3]], "n": [10, 20]})
    assert bind(written, rows.schema).evaluate(rows).to_pylist() == [[11, 12], [23]]


def test_columns_behind_an_operator_work_through_a_whole_job(rides: Any) -> None:
    rides.add_files(3)
    job = sb.Job("rides", state=rides.state, spark=rides.spark)
    stream = job.source(rides.frame(), name="rides", watermark=("ts", "0 seconds"))
    trips = stream.group_by("driver", sb.tumbling("1 minute"), name="trips").agg(n=sb.count(), cents=sb.sum("cents"))
    shown = trips.where((F.col("n") > 1) & F.col("driver").isNotNull()).with_columns(
        mean=F.col("cents") / F.col("n"),
        size=F.when(F.col("n") > 10, "many").otherwise("few"),
    )
    totals = shown.key_by(F.upper("driver").alias("who"), name="totals").agg(twice=sb.sum(F.col("n") * 2), ttl="1 day")
    rows, sums = sb.MemorySink("rows"), sb.MemorySink("sums")
    shown.write(rows)
    totals.write(sums)
    assert job.start(available_now=True).await_termination(120)
    assert rows.rows
    for row in rows.rows:
        assert row["mean"] == row["cents"] / row["n"]
        assert row["size"] == ("many" if row["n"] > 10 else "few")
    assert {row["who"] for row in sums.rows} == {"ANN", "BOB", "CID", "ÉMILE"}
