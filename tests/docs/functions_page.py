"""Writes docs/reference/functions.md: every function of the installed Spark, and where it can be used.

`python tests/docs/functions_page.py` starts Spark and replaces the page.
"""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from function_rows import CASES
from pyspark.sql import SparkSession

import statebed as sb
from statebed.expressions import FUNCTIONS
from statebed.java import use_java

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "functions.md"
SYNTAX = {
    "!": "not b",
    "!=": "a != b",
    "==": "a == b",
    "case": "case when a then b end",
    "cast": "cast(a as int)",
    "extract": "extract(hour from ts)",
    "struct": "struct(a, b as c)",
    "when": "case when a then b end",
}
"""Functions that our grammar has as syntax, with an example."""
CHANGING = {"rand", "randn", "random", "randstr", "uniform", "uuid", "shuffle", "monotonically_increasing_id"}
SESSION = re.compile(r"cur(rent_?|date)|now$|local|session_user|^user$|version|input_file|spark_partition_id|timezone")
Applies = Callable[[str, str], bool]
REASONS: list[tuple[Applies, str, str]] = [
    (lambda name, group: name in CHANGING, "head", "another result each time"),
    (lambda name, group: SESSION.match(name) is not None or "timezone" in name, "head", "depends on the session"),
    (
        lambda name, group: name in {"window", "session_window", "window_time"},
        "operator",
        "`sb.tumbling`, `sb.session`",
    ),
    (lambda name, group: group == "window_funcs", "operator", "top-n and window functions per window"),
    (
        lambda name, group: group in {"generator_funcs", "table_funcs"},
        "head, tail",
        "more or fewer rows than its input",
    ),
    (lambda name, group: group == "variant_funcs", "head, tail", "Arrow has no variant type"),
    (lambda name, group: group == "st_funcs", "head, tail", "Arrow has no geometry type"),
    (lambda name, group: group == "sketch_funcs", "head, tail", "sketches of another format"),
    (
        lambda name, group: group in {"xml_funcs", "avro_funcs", "protobuf_funcs", "csv_funcs"},
        "head, tail",
        "another format",
    ),
    (
        lambda name, group: "time" in name and name.startswith(("time", "make_time", "to_time", "try_to_time")),
        "head, tail",
        "the type time",
    ),
    (lambda name, group: "interval" in name, "head, tail", "calendar intervals"),
    (lambda name, group: "aes" in name or "reflect" in name or name == "java_method", "head, tail", "runs in the JVM"),
]
"""Reasons why a function is not available between operators; the first one that applies counts."""
TITLES = {
    "agg_funcs": "Aggregates",
    "array_funcs": "Lists",
    "bitwise_funcs": "Bits",
    "collection_funcs": "Lists and maps",
    "conditional_funcs": "Conditions",
    "conversion_funcs": "Conversions",
    "datetime_funcs": "Dates and times",
    "hash_funcs": "Hashes",
    "json_funcs": "JSON",
    "lambda_funcs": "Lambda functions",
    "map_funcs": "Maps",
    "math_funcs": "Numbers",
    "predicate_funcs": "Predicates",
    "string_funcs": "Text",
    "struct_funcs": "Structs",
    "url_funcs": "URLs",
}
HEAD = """# Functions

Where each of the {all} functions of Spark {version} can be used in a job:

- **between**: everywhere, also after and between operators, and without Spark. {between} functions. Each is compared
  with Spark over random rows. Times are UTC ([differences from Spark](expressions.md#differences-from-spark)).
- **aggregate**: in an aggregation of statebed, under the given name.
- **head**: before the first operator, in the DataFrame that is the source.
- **tail**: in a query that was written for Spark, also on committed rows on their way to a sink.
- **operator**: a shape of its own, not a function of a row.

*This page is generated from Spark and from the code, and a test compares them.*
"""


def spark_functions(session: SparkSession) -> list[tuple[str, str]]:
    """Return the name and group of each function of Spark."""
    jvm: Any = session._jvm
    catalog = session._jsparkSession.sessionState().catalog()
    found = []
    for (name,) in session.sql("show functions").collect():
        try:
            info = catalog.lookupFunctionInfo(jvm.org.apache.spark.sql.catalyst.FunctionIdentifier(name))
            found.append((str(name), str(info.getGroup())))
        except Exception:  # noqa: BLE001 - operators that only the parser knows have no entry
            found.append((str(name), "predicate_funcs"))
    return found


def is_between(name: str) -> bool:
    return name in FUNCTIONS or name in SYNTAX


def page(functions: list[tuple[str, str]], version: str) -> str:
    """The whole page."""
    between = sum(is_between(name) for name, _ in functions)
    parts = [HEAD.format(all=len(functions), between=between, version=version)]
    for group in sorted(
        {group for _, group in functions}, key=lambda group: (group not in TITLES, TITLES.get(group, group))
    ):
        title = TITLES.get(group) or group.removesuffix("_funcs").capitalize()
        rows = "\n".join(_row(name, group) for name, of in functions if of == group)
        parts.append(f"## {title}\n\n| function | where | example, or why not |\n|---|---|---|\n{rows}\n")
    own = sorted(name for name in FUNCTIONS if name.isidentifier() and name not in {name for name, _ in functions})
    rows = "\n".join(f"| `{name}` | between | {_example(name)} |" for name in own)
    parts.append(f"## Only as syntax in Spark\n\n| function | where | example |\n|---|---|---|\n{rows}\n")
    return "\n".join(parts)


def _row(name: str, group: str) -> str:
    where, note = _where(name, group)
    return f"| {_code(name)} | {where} | {note} |"


def _where(name: str, group: str) -> tuple[str, str]:
    if is_between(name):
        return "between", _code(SYNTAX[name]) if name in SYNTAX else _example(name)
    if group == "agg_funcs":
        ours = _OURS.get(name, name)
        return ("aggregate", f"`sb.{ours}`") if hasattr(sb, ours) else ("head, tail", "not an aggregate of statebed")
    for applies, where, reason in REASONS:
        if applies(name, group):
            return where, reason
    return "head, tail", "not implemented"


_OURS = {
    "avg": "mean",
    "stddev": "stddev_samp",
    "std": "stddev_samp",
    "variance": "var_samp",
    "every": "bool_and",
    "some": "bool_or",
    "any": "bool_or",
    "first_value": "first",
    "last_value": "last",
    "listagg": "string_agg",
    "array_agg": "collect_list",
}


def _example(name: str) -> str:
    called = re.compile(rf"\b{re.escape(name)}\(" if name.isidentifier() else rf"(?<!\S){re.escape(name)}")
    return next((_code(case) for case in _cases() if called.search(case)), "")


def _cases() -> Iterable[str]:
    return sorted(CASES, key=len)


def _code(text: str) -> str:
    return f"`{text}`".replace("|", "\\|")


def main() -> None:
    use_java()
    session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    PAGE.write_text(page(spark_functions(session), session.version), encoding="utf-8")
    session.stop()


if __name__ == "__main__":
    main()
