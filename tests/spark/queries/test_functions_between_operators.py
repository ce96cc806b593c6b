"""Every function of the expression language is also found in a query of Spark's, where it stands between operators."""

from collections.abc import Iterator

import pyarrow as pa
import pytest
from function_classes import MODULE, function_classes, module
from function_rows import CASES, random_rows
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from spark.queries.harness import configured
from spark.test_functions_against_spark import comparable

from statebed.expressions import bind
from statebed.queries.catalyst import outputs
from statebed.spark.analysed.expression_text import ExpressionText, UntranslatableError
from statebed.spark.analysed.plan_tree import Expr, analysed_plan

ROWS = random_rows(1)
AT_ONCE = 100


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    return session


def analysed(session: SparkSession, texts: list[str]) -> Iterator[tuple[str, Expr, ExpressionText]]:
    """Yield texts with their analysed expressions, and the writer for these."""
    frame = session.createDataFrame([], from_arrow_schema(ROWS.schema, prefer_timestamp_ntz=True))
    for start in range(0, len(texts), AT_ONCE):
        part = texts[start : start + AT_ONCE]
        plan = analysed_plan(frame.selectExpr(*(f"{text} as e{number}" for number, text in enumerate(part))))
        writer = ExpressionText(outputs(plan.child.handle).names, session=session)
        for text, expression in zip(part, plan.expressions("projectList"), strict=True):
            yield text, expression, writer


def values(expression: str) -> list[str]:
    return [repr(comparable(value)) for value in bind(expression, ROWS.schema).evaluate(ROWS).to_pylist()]


def test_every_function_can_stand_between_operators(session: SparkSession) -> None:
    """The texts themselves are compared with Spark's results, over the same rows, by `test_functions_against_spark`."""
    different = []
    for text, expression, writer in analysed(session, CASES):
        try:
            translated = writer.bound(expression, ROWS.schema).text
        except UntranslatableError as error:
            different.append(f"{text}: {error}")
            continue
        if values(translated) != values(text):
            different.append(f"{text} became {translated}")
    assert not different, "\n".join(different)


SETTINGS = {
    "spark.sql.ansi.enabled": "false",
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
    "spark.sql.legacy.timeParserPolicy": "LEGACY",
    "spark.sql.session.timeZone": "America/New_York",
    "spark.sql.legacy.negativeIndexInArrayInsert": "true",
}
REFUSED = {
    "size(li)": "legacySizeOfNull = True",
    "array_append(li, k)": "negativeIndexInArrayInsert is true",
    "array_insert(li, -2, 1)": "legacyNegativeIndex = True",
    "pmod(k, k2)": "LEGACY mode",
    "abs(k)": "failOnError = False",
    "round(q)": "ansiEnabled = False",
    "map('a', k)": "mapKeyDedupPolicy is LAST_WIN",
    "from_unixtime(kl)": "time zone, America/New_York",
    "convert_timezone('Asia/Tokyo', ntz)": "time zone, America/New_York",
    "cast(array(ts) as array<string>)": "time zone, America/New_York",
    "to_json(p, map('ignoreNullFields', 'false'))": "time zone, America/New_York",
}
"""Expressions whose results depend on the settings above, and part of the reason that is given."""
LEGACY = {
    "spark.sql.legacy.timeParserPolicy": "legacy",
    "spark.sql.legacy.truncateForEmptyRegexSplit": "true",
    "spark.sql.legacy.disableMapKeyNormalization": "TRUE",
    "spark.sql.legacy.json.allowEmptyString.enabled": "true",
    "spark.sql.icu.caseMappings.enabled": "false",
    "spark.sql.jsonGenerator.ignoreNullFields": "false",
}
REFUSED_BY_LEGACY = {
    "date_format(ts, 'yyyy')": "timeParserPolicy is legacy",
    "from_unixtime(kl)": "timeParserPolicy is legacy",
    "cast(day as string)": "timeParserPolicy is legacy",
    "concat(s, day)": "timeParserPolicy is legacy",
    "split(s, ',')": "truncateForEmptyRegexSplit is true",
    "map(q, k)": "disableMapKeyNormalization is TRUE",
    "from_json(doc, 'a INT')": "disableMapKeyNormalization is TRUE",
    "upper(s)": "caseMappings.enabled is false",
    "to_json(p)": "timeParserPolicy is legacy",
}
REFUSED_IN_UTC = {
    "to_json(p, map('ignoreNullFields', 'false'))": "to_json with options",
    "from_json(doc, 'a INT', map('mode', 'FAILFAST'))": "does not have the mode FAILFAST",
    "levenshtein(s, u, k2)": "a threshold that is not constant",
    "format_number(q, '#.00')": "format_number with a pattern",
    "to_timestamp(s, 'yyyy')": "to_timestamp takes 1 argument",
    "make_timestamp(2020, 1, 1, 3, 4, 5.25, 'Europe/Paris')": "MakeTimestamp is not available",
    "s collate UTF8_LCASE = 'A'": "compares by a collation",
    "make_interval(1)": "MakeInterval is not available",
    "rand()": "Rand is not available",
    "map()": "has no types",
}


@pytest.mark.parametrize(
    ("settings", "refused"),
    [(SETTINGS, REFUSED), (LEGACY, REFUSED_BY_LEGACY), ({}, REFUSED_IN_UTC)],
    ids=["lenient", "legacy", "utc"],
)
def test_an_expression_with_other_results_is_refused(
    session: SparkSession, settings: dict[str, str], refused: dict[str, str]
) -> None:
    with configured(session, settings):
        for text, expression, writer in analysed(session, list(refused)):
            with pytest.raises(UntranslatableError) as error:
                writer.bound(expression, ROWS.schema)
            assert refused[text] in str(error.value)


def test_escaped_patterns_and_shadowed_names_are_kept(session: SparkSession) -> None:
    texts = [
        "s like 'a/%' escape '/'",
        "s ilike '%A%'",
        "transform(li, k -> k + 1)",
        "transform(li, k2 -> hash(k2 + k))",
        "typeof(m * n)",
        "timestamp_ntz'2020-01-01 00:00:00'",
    ]
    for text, expression, writer in analysed(session, texts):
        assert values(writer.bound(expression, ROWS.schema).text) == values(text), text


def test_a_variable_is_never_taken_for_a_column(session: SparkSession) -> None:
    (_, expression, writer), *_ = analysed(session, ["transform(li, x -> x + k)"])
    variable = next(part for part in expression.walk() if part.kind == "NamedLambdaVariable")
    clash = ExpressionText({**writer.columns, -1: f"x_{variable.id}"})
    assert clash.variable(variable) == f"`x_{variable.id}_`"
    schema = ROWS.schema.append(pa.field(f"x_{variable.id}", pa.int32()))
    assert clash.bound(expression, schema).columns == {"li", "k"}


def test_the_table_of_classes_is_that_of_the_installed_spark(session: SparkSession) -> None:
    assert MODULE.read_text(encoding="utf-8") == module(function_classes(session)), (
        "run: python tests/function_classes.py"
    )
