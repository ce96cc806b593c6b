"""Spark's errors about a query, as errors that point into the user's text."""

import contextlib
import difflib
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger

from statebed.errors import InputError
from statebed.sql.query_rewriter import SparkQuery
from statebed.sql.source_text import SqlSpan, SqlText

_OTHER_FUNCTIONS = {
    "arrow_cast": "write CAST(value AS type)",
    "cardinality": "write size(items)",
    "json_exists": "write get_json_object(text, '$.a') IS NOT NULL",
    "json_query": "write get_json_object(text, '$.a')",
    "json_value": "write get_json_object(text, '$.a')",
    "strpos": "write locate(part, text)",
    "timestampadd": "write ts + INTERVAL '1' HOUR",
    "to_timestamp_ltz": "write timestamp_millis(ms)",
    "to_timestamp_micros": "write timestamp_micros(us)",
    "to_timestamp_millis": "write timestamp_millis(ms)",
    "to_timestamp_seconds": "write timestamp_seconds(s)",
}
"""Functions of Flink and Arroyo, and what to write instead."""
_FIXES = {
    "AMBIGUOUS_REFERENCE": "write the name of the table before it",
    "DATATYPE_MISMATCH": "cast one of the values: CAST(value AS type)",
    "DATATYPE_MISMATCH.NON_FOLDABLE_INPUT": "write a constant there",
    "DATATYPE_MISMATCH.PARAMETER_CONSTRAINT_VIOLATION": "change one of the arguments",
    "DATATYPE_MISMATCH.VALUE_OUT_OF_RANGE": "write a value within these bounds",
    "DATATYPE_MISMATCH.WRONG_NUM_ARGS": "correct the number of arguments",
    "MISSING_AGGREGATION": "add it to GROUP BY, or aggregate it; a window stands in GROUP BY as it does in SELECT",
    "MISSING_GROUP_BY": "add GROUP BY with the columns that are not aggregated",
}
"""Fixes for errors of Spark's analyser, by their condition or its first word."""
_WINDOWS = "Multiple time/session window expressions"
_GAP = "Gap duration expression"
_LINE_AND_POSITION = re.compile(r"\(line (\d+), pos (\d+)\)")
_SUFFIX = re.compile(r"\s*SQLSTATE: \w+.*|; line \d+ pos \d+\s*$", re.DOTALL)
_PREFIX = re.compile(r"^\s*\[[A-Z0-9_.]+\]\s*")


@contextlib.contextmanager
def quiet_analysis() -> Iterator[None]:
    """Keep pyspark from logging errors of Spark's analyser as JSON; the user gets the errors themselves."""
    logger = PySparkLogger.getLogger("SQLQueryContextLogger")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def text_error(
    error: PySparkException, query: SparkQuery, *, tables: Iterable[str], written: Collection[str] = ()
) -> InputError:
    """Return the error for a query that Spark cannot parse or analyse, at its place in the user's text.

    `tables` can be read, `written` are those that can only be written.
    """
    source = query.rewritten.source
    span = query.rewritten.origin(_span(error, query.text))
    what, fix = _described(error, list(tables), written)
    return source.mistake(what, span, fix=fix)


def _described(error: PySparkException, tables: list[str], written: Collection[str]) -> tuple[str, str]:
    condition = str(error.getCondition() or "")
    values = {name: str(value) for name, value in (error.getMessageParameters() or {}).items()}
    if condition.startswith("UNRESOLVED_COLUMN") and "objectName" in values:
        near = values.get("proposal")
        return f"there is no column {values['objectName']}", (
            f"did you mean one of {near}?" if near else "select the column in the subquery, or correct its name"
        )
    if condition == "TABLE_OR_VIEW_NOT_FOUND":
        name = values.get("relationName", "").strip("`")
        if name.lower() in written:
            return f"the table `{name}` can only be written: its connector does not read", (
                "read the table that its rows come from, or declare a table with another connector"
            )
        return f"there is no table `{name}`", nearest(name, tables, what="tables")
    if condition.startswith("UNRESOLVED_ROUTINE"):
        name = values.get("routineName", "").strip("`")
        return f"there is no function `{name}`", _OTHER_FUNCTIONS.get(
            name.lower(), "use one of Spark's functions, or write CREATE FUNCTION name AS 'module:function'"
        )
    if condition == "PARSE_SYNTAX_ERROR":
        return f"syntax error at or near {values.get('error', '')}", "correct the SQL at this place, or just before it"
    return _by_spark(error, condition)


def _by_spark(error: PySparkException, condition: str) -> tuple[str, str]:
    if "Streaming query is not allowed in subquery" in str(error):
        return "a subquery in a condition reads a stream", (
            "join instead: FROM a LEFT SEMI JOIN b ON a.k = b.k for IN and EXISTS, LEFT ANTI JOIN for NOT EXISTS"
        )
    fix = _FIXES.get(condition) or _FIXES.get(condition.partition(".")[0], "change the query; the message is Spark's")
    if _WINDOWS in str(error):
        fix = "group by one of the windows, and by the other in another query"
    if _GAP in str(error):
        fix = "write SESSION(ts, INTERVAL '5' MINUTES), or session_window(ts, '5 minutes')"
    lines = [line.strip() for line in _SUFFIX.sub("", _PREFIX.sub("", str(error))).splitlines() if line.strip()]
    return " ".join(lines[:3]) or condition, fix


def nearest(name: str, known: Sequence[str], *, what: str) -> str:
    """Return advice for an unknown name: the most similar known name, and all of them."""
    listed = f"the {what} are {', '.join(sorted(known))}" if known else f"there are no {what} yet"
    near = difflib.get_close_matches(name.lower(), [entry.lower() for entry in known], n=1)
    return f"did you mean `{near[0]}`? {listed}" if near else listed


def _span(error: PySparkException, text: str) -> SqlSpan:
    """Return the place of an error in the text that Spark parsed."""
    for context in error.getQueryContext() or []:
        result: Any = context
        start, stop = int(result.startIndex()), int(result.stopIndex())
        if 0 <= start <= stop < len(text):
            return SqlSpan(start, stop + 1)
    match = _LINE_AND_POSITION.search(str(error))
    if match is None:
        return SqlSpan(0, len(text))
    start = SqlText(text).offset_of(int(match[1]), int(match[2]))
    word = re.compile(r"\w+|\S|$").search(text, start)
    return SqlSpan(word.start(), max(word.end(), word.start() + 1)) if word else SqlSpan(start, start + 1)
