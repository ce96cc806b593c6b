"""SQL text of statebed's expression language for expressions of an analysed plan.

Only classes that both languages have are written (`function_names`). Whatever depends on the session's time zone, a
user's function or chance raises UntranslatableError, and is computed by Spark in the head or the tail. The type of the
bound text is compared with Spark's, so a difference is found before the query starts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql.types import _parse_datatype_json_value

from statebed.errors import StatebedError
from statebed.expressions import BoundExpression, bind
from statebed.expressions.user_functions import UserFunction
from statebed.flow.keys import quoted
from statebed.quantities import parse_duration
from statebed.spark.analysed.function_names import BINARY, FAIL_ON_ERROR, FUNCTIONS, MODAL, REPLACED, ZONED
from statebed.spark.analysed.plan_tree import Expr, Json
from statebed.spark.analysed.types import arrow_type, same_type

UTC = frozenset({"UTC", "Etc/UTC", "GMT", "Z", "+00:00"})
DAY_US = 86_400_000_000
_INTEGERS = ("byte", "short", "integer", "long")
_SUFFIX = {"byte": "Y", "short": "S", "integer": "", "long": "L"}


class UntranslatableError(Exception):
    """An expression or a step that only Spark can compute; `fix` says what to do instead."""

    def __init__(self, why: str, fix: str = "") -> None:
        super().__init__(why)
        self.why = why
        self.fix = fix


@dataclass(frozen=True)
class WindowColumns:
    """Columns that hold the start and the end of a window."""

    start: str
    end: str


@dataclass(frozen=True)
class ExpressionText:
    """Writes expressions over the columns of a stream."""

    columns: Mapping[int, str]
    """Columns by the id of their attribute."""
    windows: Mapping[int, WindowColumns] = field(default_factory=dict)
    """Columns of windows by the id of their attribute."""
    known: Mapping[tuple[object, ...], str] = field(default_factory=dict)
    """Columns that hold the value of a whole expression, by its key."""
    functions: Mapping[str, UserFunction] = field(default_factory=dict)
    """Functions of the user, by name in lower case."""

    def bound(self, expression: Expr, schema: pa.Schema) -> BoundExpression:
        """Write the expression, bind it to a schema, and check its type against Spark's."""
        text = self.text(expression)
        try:
            bound = bind(text, schema, functions=self.functions)
        except StatebedError as error:
            raise UntranslatableError(f"{expression.sql}: {error.what.splitlines()[0]}") from error
        wanted = arrow_type(expression.type_json)
        if not same_type(bound.type, wanted):
            raise UntranslatableError(f"{expression.sql} has the type {bound.type} here, but {wanted} in Spark")
        return bound

    def text(self, e: Expr) -> str:  # noqa: C901, PLR0911, PLR0912 - one return per kind of expression
        """Return the text of an expression."""
        if self.known and e.key in self.known:
            return quoted(self.known[e.key])
        match e.kind:
            case "AttributeReference":
                return self._attribute(e)
            case "Alias" | "KnownNullable" | "KnownNotNull":
                return self.text(e.child)
            case "Literal":
                return literal_text(e)
            case "Cast":
                return self._cast(e)
            case "GetStructField":
                return self._field(e)
        if e.kind == "PythonUDF" and e.name.lower() in self.functions:
            return f"{e.name}({self._list(e.children)})"
        if not e.is_catalyst:
            raise UntranslatableError(f"{e.sql}: {e.kind} is a function that only Spark can call")
        self._check_zone(e)
        if e.kind in BINARY:
            if e.kind in MODAL and e.mode != "ANSI":
                raise UntranslatableError(f"{e.sql}: {e.kind} in {e.mode} mode; between operators ANSI mode applies")
            return f"({self.text(e.children[0])} {BINARY[e.kind]} {self.text(e.children[1])})"
        if e.kind in FAIL_ON_ERROR and not e.handle.failOnError():
            raise UntranslatableError(f"{e.sql}: {e.kind} that wraps around; between operators ANSI mode applies")
        if e.kind in FUNCTIONS:
            return f"{FUNCTIONS[e.kind]}({self._list(e.children)})"
        if e.kind in REPLACED:
            name, arguments = REPLACED[e.kind]
            return f"{name}({self._list([e.part(argument) for argument in arguments])})"
        return self._special(e)

    def _special(self, e: Expr) -> str:  # noqa: PLR0911, C901, PLR0912 - one return per kind of expression
        kids = e.children
        match e.kind:
            case "Not":
                return f"(not {self.text(e.child)})"
            case "IsNull":
                return f"({self.text(e.child)} is null)"
            case "IsNotNull":
                return f"({self.text(e.child)} is not null)"
            case "UnaryMinus":
                return f"(- {self.text(e.child)})"
            case "UnaryPositive":
                return self.text(e.child)
            case "In":
                return f"({self.text(kids[0])} in ({self._list(kids[1:])}))"
            case "Between":
                low, high = self.text(e.part("lower")), self.text(e.part("upper"))
                return f"({self.text(e.part('input'))} between {low} and {high})"
            case "CaseWhen":
                pairs = [(kids[at], kids[at + 1]) for at in range(0, len(kids) - 1, 2)]
                said = " ".join(f"when {self.text(when)} then {self.text(then)}" for when, then in pairs)
                rest = f" else {self.text(kids[-1])}" if len(kids) % 2 else ""
                return f"case {said}{rest} end"
            case "Like" | "RLike":
                return self._like(e)
            case "StringSplit" if _constant(kids[2]) == "-1":
                return f"split({self._list(kids[:2])})"
            case "RegExpReplace" if _constant(kids[3]) == "1":
                return f"regexp_replace({self._list(kids[:3])})"
            case "RegExpExtract":
                return f"regexp_extract({self._list(kids)})"
            case "CreateNamedStruct":
                return f"named_struct({self._list(kids)})"
            case "GetArrayItem":
                name = f"{self.text(kids[0])}[{self.text(kids[1])}]"
                return name if e.handle.failOnError() else f"get({self._list(kids)})"
            case "TimestampAddInterval" | "TimeAdd":
                span_us = _constant_interval(kids[1])
                if span_us is None:
                    return f"({self.text(kids[0])} + {self.text(kids[1])})"
                return f"({self.text(kids[0])} {'-' if span_us < 0 else '+'} {_interval_text(abs(span_us))})"
            case "DatetimeSub":
                return self.text(e.part("replacement"))
            case "SubtractTimestamps" | "SubtractDates":
                return f"({self.text(kids[0])} - {self.text(kids[1])})"
            case "PreciseTimestampConversion":
                name = "unix_micros" if e.fields["toType"] == "long" else "timestamp_micros"
                return f"{name}({self.text(e.child)})"
            case "StructsToJson" if not e.fields.get("options"):
                return f"to_json({self.text(e.child)})"
            case "JsonToStructs" if not e.fields.get("options"):
                return f"from_json({self.text(e.child)}, {string_text(type_text(e.fields['schema']))})"
            case "TruncTimestamp":
                return f"date_trunc({self._list(kids)})"
            case "UnixTimestamp" | "ToUnixTimestamp" if kids[0].type_json in {"timestamp", "date"}:
                return f"unix_timestamp({self.text(kids[0])})"
        raise UntranslatableError(f"{e.sql}: {e.kind} is not available between operators")

    def _list(self, items: Sequence[Expr]) -> str:
        return ", ".join(self.text(item) for item in items)

    def _attribute(self, e: Expr) -> str:
        if e.id in self.columns:
            return quoted(self.columns[e.id])
        if e.id in self.windows:
            window = self.windows[e.id]
            return f"named_struct('start', {quoted(window.start)}, 'end', {quoted(window.end)})"
        raise UntranslatableError(f"{e.name} is not a column at this step")

    def _field(self, e: Expr) -> str:
        if e.child.is_attribute and e.child.id in self.windows:
            window = self.windows[e.child.id]
            return quoted(window.end if e.fields["ordinal"] else window.start)
        fields = e.child.type_json["fields"]
        return f"{self.text(e.child)}.{quoted(fields[e.fields['ordinal']]['name'])}"

    def _like(self, e: Expr) -> str:
        text, pattern = (self.text(operand) for operand in e.children)
        if e.kind == "RLike":
            return f"({text} rlike {pattern})"
        escape = str(e.fields.get("escapeChar", "\\"))
        return f"({text} like {pattern}" + (")" if escape == "\\" else f" escape {string_text(escape)})")

    def _cast(self, e: Expr) -> str:
        source, target = e.child.type_json, e.type_json
        if source == target or (_is_interval(source) and _is_interval(target)):
            return self.text(e.child)
        kinds = {_plain(source), _plain(target)}
        if "timestamp" in kinds and kinds & {"string", "date", "timestamp_ntz"}:
            _check_utc(e, e.fields.get("timeZoneId"))
        name = "cast" if _is_widening(source, target) else {"ANSI": "cast", "TRY": "try_cast"}.get(e.mode)
        if name is None:
            raise UntranslatableError(f"{e.sql}: a cast in {e.mode} mode; between operators ANSI mode applies")
        return f"{name}({self.text(e.child)} as {type_text(target)})"

    def _check_zone(self, e: Expr) -> None:
        if e.kind == "TimestampAddInterval":
            span_us = _constant_interval(e.children[1])
            if span_us is not None and abs(span_us) < DAY_US:
                return
        elif e.kind in ZONED or "timeZoneId" not in e.fields:
            return
        _check_utc(e, e.fields.get("timeZoneId"))


def _check_utc(e: Expr, zone: str | None) -> None:
    if zone not in UTC:
        raise UntranslatableError(
            f"{e.sql} depends on the session's time zone, {zone}; between operators all times are UTC"
        )


def interval_us(e: Expr) -> int:
    """Return the length of a constant interval in microseconds."""
    if e.kind == "UnaryMinus":
        return -interval_us(e.child)
    if e.kind == "Cast" and (_is_interval(e.child.type_json) or e.child.kind == "Literal"):
        return interval_us(e.child)
    if e.kind != "Literal":
        raise UntranslatableError(f"{e.sql} is not a constant interval")
    kind, value = _plain(e.type_json), str(e.fields["value"])
    if "month" in kind or "year" in kind or "month" in value or "year" in value:
        raise UntranslatableError(f"{e.sql}: months and years have no fixed length", "write the interval in days")
    return int(value) if value.lstrip("-").isdigit() else parse_duration(value)


def _constant_interval(e: Expr) -> int | None:
    """Return the length of an interval in microseconds; None if it is not constant, or has no fixed length."""
    try:
        return interval_us(e)
    except UntranslatableError:
        return None


def _interval_text(us: int) -> str:
    return f"interval '{us} microseconds'"


def literal_text(e: Expr) -> str:  # noqa: PLR0911 - one return per type
    """Return a constant as text."""
    kind, value = e.type_json, e.fields["value"]
    name = _plain(kind)
    if value is None:
        return "null" if name == "void" else f"cast(null as {type_text(kind)})"
    text = str(value)
    if name in _SUFFIX:
        return (
            f"{text}{_SUFFIX[name]}" if not text.startswith("-") else f"cast({string_text(text)} as {type_text(kind)})"
        )
    if name in {"double", "float"} or name.startswith("decimal"):
        return f"cast({string_text(text)} as {type_text(kind)})"
    if name == "boolean":
        return text.lower()
    if name.startswith(("string", "char", "varchar")) and name == "string":
        return string_text(text)
    if name == "timestamp":
        return f"timestamp_micros({int(e.handle.value())}L)"
    if name == "date":
        return f"date '{text}'"
    if _is_interval(kind):
        return _interval_text(interval_us(e))
    raise UntranslatableError(f"{e.sql}: a constant of the type {name}")


def string_text(text: str) -> str:
    """Return a string as a constant of SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\t", "\\t")
    return f"'{escaped}'"


def type_text(kind: Json) -> str:
    """Return a type as SQL."""
    return _parse_datatype_json_value(kind).simpleString()


def _constant(e: Expr) -> str | None:
    return str(e.fields["value"]) if e.kind == "Literal" else None


def _plain(kind: Json) -> str:
    return kind if isinstance(kind, str) else str(kind["type"])


def _is_interval(kind: Json) -> bool:
    return "interval" in _plain(kind)


def _is_widening(source: Json, target: Json) -> bool:
    """Return whether a cast never fails, so that its mode makes no difference."""
    wider = (*_INTEGERS, "float", "double")
    a, b = _plain(source), _plain(target)
    if a == "void":
        return True
    if a in _INTEGERS and b in wider:
        return wider.index(a) <= wider.index(b)
    return (a == "float" and b == "double") or (b == "string" and a in {*wider, "boolean", "date"})
