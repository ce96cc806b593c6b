"""SQL text of statebed's expression language for expressions of an analysed plan.

Only classes that both languages have are written (`function_names`). Whatever depends on the session's time zone, a
user's function or chance raises UntranslatableError, and is computed by Spark in the head or the tail. The type of the
bound text is compared with Spark's, so a difference is found before the query starts.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import _parse_datatype_json_value

from statebed.errors import StatebedError
from statebed.expressions import BoundExpression, bind
from statebed.expressions.user_functions import UserFunction
from statebed.flow.keys import quoted
from statebed.quantities import parse_duration
from statebed.spark.analysed.function_names import (
    BINARY,
    DEFAULT_ORDER,
    DERIVED,
    EXTRACTED,
    FAILING,
    FUNCTIONS,
    INEXACT,
    INEXACT_OF_FLOATS,
    LEGACY_TIMES,
    LENIENT,
    LENIENT_CLASSES,
    MODAL,
    SESSION_SETTINGS,
    SETTINGS,
    TYPE_SENSITIVE,
    WRITING_FLOATS,
    ZONED,
)
from statebed.spark.analysed.plan_tree import Expr, Json
from statebed.spark.analysed.types import arrow_type, same_type
from statebed.spark.java_classes import java_class

UTC = frozenset({"UTC", "Etc/UTC", "GMT", "Z", "+00:00"})
DAY_US = 86_400_000_000
_INTEGERS = ("byte", "short", "integer", "long")
_FLOATS = frozenset({"float", "double"})
_SHORT_FLOATS = 19
"""Version of Java that first writes every float with as few digits as needed."""
_READER_OPTIONS = ("mode", "columnNameOfCorruptRecord")
_SUFFIX = {"byte": "Y", "short": "S", "integer": "", "long": "L"}


class UntranslatableError(Exception):
    """An expression or a step that only Spark can compute; `fix` says what to do instead, and `sql_fix` in SQL text."""

    def __init__(self, why: str, fix: str = "", *, sql_fix: str = "") -> None:
        super().__init__(why)
        self.why = why
        self.fix = fix
        self.sql_fix = sql_fix


def not_ansi(what: str, mode: str) -> UntranslatableError:
    """Return the error for an expression that was analysed in another mode than ANSI."""
    fix = "use the function without try_, and leave out values that it cannot take: CASE WHEN ... THEN ... END"
    if mode != "TRY":
        fix = "set spark.sql.ansi.enabled to true, which is Spark's default, before you build the query"
    return UntranslatableError(f"{what} in {mode} mode; operators work in ANSI mode", fix)


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
    session: SparkSession | None = None
    """Session whose settings change the results of some functions, which are refused without one."""
    exact: bool = False
    """Whether to refuse functions whose last digit may differ from Spark's."""

    def bound(self, expression: Expr, schema: pa.Schema) -> BoundExpression:
        """Write the expression, bind it to a schema, and check its type against Spark's."""
        parts = list(self._written(expression))
        if expression.value.children and any("collate" in str(part.type_json) for part in parts if not part.children):
            raise UntranslatableError(
                f"{expression.sql} compares by a collation; between operators, texts are compared by their bytes"
            )
        bound = self._bound(expression, schema)
        for part in parts:
            if part.kind in TYPE_SENSITIVE or (part.kind == "Cast" and part.type_json == "string"):
                for argument in part.children:
                    if argument.children:
                        self._bound(argument, _with_variables(schema, argument, self))
        return bound

    def _written(self, e: Expr) -> Iterator[Expr]:
        """Yield an expression and everything in it, but nothing of what a column holds."""
        yield e
        if not (self.known and e.key in self.known):
            for child in e.children:
                yield from self._written(child)

    def _bound(self, expression: Expr, schema: pa.Schema) -> BoundExpression:
        text = self.text(expression)
        try:
            bound = bind(text, schema, functions=self.functions)
            wanted = arrow_type(expression.type_json)
        except StatebedError as error:
            raise UntranslatableError(f"{expression.sql}: {error.what.splitlines()[0]}") from error
        if not same_type(bound.type, wanted):
            raise UntranslatableError(f"{expression.sql} has the type {bound.type} here, but {wanted} in Spark")
        return bound

    def text(self, e: Expr) -> str:  # noqa: C901, PLR0911 - one return per kind of expression
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
                self._check_exact(e)
                return self._cast(e)
            case "GetStructField":
                return self._field(e)
        if e.kind == "PythonUDF" and e.name.lower() in self.functions:
            return f"{e.name}({self._list(e.children)})"
        if not e.is_catalyst:
            raise UntranslatableError(f"{e.sql}: {e.kind} is a function that only Spark can call")
        self._check_zone(e)
        self._check_session(e)
        self._check_exact(e)
        if e.kind in BINARY:
            return self._operator(e)
        special = self._special(e)
        if special is not None:
            return special
        if "replacement" in e.fields:
            return self._replaced(e)
        if e.kind in FUNCTIONS:
            _check_settings(e)
            return f"{FUNCTIONS[e.kind]}({self._list(e.children)})"
        raise UntranslatableError(f"{e.sql}: {e.kind} is not available between operators")

    def _operator(self, e: Expr) -> str:
        mode = e.mode if e.kind in MODAL else "ANSI"
        if mode == "TRY" and e.kind in LENIENT:
            return f"{LENIENT[e.kind]}({self._list(e.children)})"
        if mode != "ANSI":
            raise not_ansi(f"{e.sql}: {e.kind}", mode)
        return f"({self.text(e.children[0])} {BINARY[e.kind]} {self.text(e.children[1])})"

    def _replaced(self, e: Expr) -> str:
        """Return the text of what Spark computes instead of a function; or a call, if that cannot be written."""
        try:
            return self.text(e.child)
        except UntranslatableError:
            if e.kind not in FUNCTIONS:
                raise
        arguments: list[Expr] = []
        for name, content in e.fields.items():
            if name not in DERIVED and name != "replacement":
                is_sequence = isinstance(content, list) and bool(content) and isinstance(content[0], list)
                arguments += e.parts(name) if is_sequence else [e.part(name)]
        return f"{FUNCTIONS[e.kind]}({self._list(arguments)})"

    def _special(self, e: Expr) -> str | None:  # noqa: PLR0911, C901, PLR0912, PLR0915 - one return per kind of expression
        """Return the text of an expression that is not a plain call; None for other expressions."""
        kids = e.children
        if e.kind in EXTRACTED:
            return f"extract({EXTRACTED[e.kind]} from {self.text(e.child)})"
        if e.kind in FAILING and len(kids) == _arguments(e):
            return f"{FAILING[e.kind][0 if e.fields['failOnError'] else 1]}({self._list(kids)})"
        match e.kind:
            case "Not":
                return f"(not {self.text(e.child)})"
            case "IsNull":
                return f"({self.text(e.child)} is null)"
            case "IsNotNull":
                return f"({self.text(e.child)} is not null)"
            case "UnaryMinus":
                _check_settings(e)
                return f"(- {self.text(e.child)})"
            case "BitwiseNot":
                return f"(~ {self.text(e.child)})"
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
            case "Like" | "ILike" | "RLike":
                return self._like(e)
            case "LikeAll" | "LikeAny" | "NotLikeAll" | "NotLikeAny":
                return self._like_several(e)
            case "StringTrim" | "StringTrimLeft" | "StringTrimRight" if len(kids) > 1:
                side = {"StringTrim": "both", "StringTrimLeft": "leading", "StringTrimRight": "trailing"}[e.kind]
                return f"trim({side} {self.text(kids[1])} from {self.text(kids[0])})"
            case "StringSplit" if _constant(kids[2]) == "-1":
                return f"split({self._list(kids[:2])})"
            case "RegExpReplace" if _constant(kids[3]) == "1":
                return f"regexp_replace({self._list(kids[:3])})"
            case "GetArrayItem":
                name = f"{self.text(kids[0])}[{self.text(kids[1])}]"
                return name if e.handle.failOnError() else f"get({self._list(kids)})"
            case "FormatNumber" if kids[1].type_json == "string":
                raise UntranslatableError(f"{e.sql}: format_number with a pattern is not available between operators")
            case "Levenshtein" if len(kids) > 2 and kids[2].kind != "Literal":  # noqa: PLR2004
                raise UntranslatableError(f"{e.sql}: a threshold that is not constant")
            case "GetMapValue":
                return f"{self.text(kids[0])}[{self.text(kids[1])}]"
            case "LambdaFunction":
                variables = ", ".join(self.variable(variable) for variable in e.parts("arguments"))
                return f"({variables}) -> {self.text(kids[0])}"
            case "NamedLambdaVariable":
                return self.variable(e)
            case "ArraySort" if _outline(kids[1].children[0]) == DEFAULT_ORDER:
                _check_settings(e)
                return f"array_sort({self.text(kids[0])})"
            case "TimestampAdd" | "TimestampDiff":
                return f"{e.kind.lower()}({e.fields['unit']}, {self._list(kids)})"
            case "MakeTimestamp" if len(kids) == 6:  # noqa: PLR2004 - without a time zone
                name = "make_timestamp" if e.fields["failOnError"] else "try_make_timestamp"
                return f"{name}{'_ntz' if e.type_json == 'timestamp_ntz' else ''}({self._list(kids)})"
            case "ParseToTimestamp" if e.type_json == "timestamp" or e.fields["failOnError"]:
                name = "to_timestamp" if e.fields["failOnError"] else "try_to_timestamp"
                return f"{name}{'_ntz' if e.type_json == 'timestamp_ntz' else ''}({self._list(kids)})"
            case "ParseToDate":
                return f"{'to_date' if e.fields['ansiEnabled'] else 'try_to_date'}({self._list(kids)})"
            case "CurrentTimeZone":
                _check_utc(e, self._zone(e))
                return "'UTC'"
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
            case "StructsToJson" | "SchemaOfJson" | "JsonToStructs":
                return self._json(e)
            case "RaiseError" if kids[1].kind == "CreateMap" and len(kids[1].children) == 2:  # noqa: PLR2004 - a name
                return f"raise_error({self.text(kids[1].children[1])})"
            case "UnixTimestamp" | "ToUnixTimestamp" if kids[0].type_json in {"timestamp", "date"}:
                return f"unix_timestamp({self.text(kids[0])})"
        return None

    def _json(self, e: Expr) -> str:
        is_reader = e.kind == "JsonToStructs"
        choices = e.handle.options()  # which the JSON leaves out
        known = _READER_OPTIONS if is_reader and not choices.isEmpty() else ()
        options = {name: str(choices.apply(name)) for name in known if choices.contains(name)}
        if len(options) < choices.size():
            raise UntranslatableError(f"{e.sql}: {FUNCTIONS[e.kind]} with options is not available between operators")
        schema = f", {string_text(type_text(e.fields['schema']))}" if is_reader else ""
        pairs = ", ".join(string_text(text) for pair in options.items() for text in pair)
        return f"{FUNCTIONS[e.kind]}({self.text(e.child)}{schema}{f', map({pairs})' if pairs else ''})"

    def variable(self, e: Expr) -> str:
        """Return a name for a variable of a lambda function that no column has."""
        name = f"{e.name}_{e.id}"
        while name in self.columns.values():
            name += "_"
        return quoted(name)

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
        escape = str(e.handle.escapeChar())  # which the JSON leaves out
        return f"({text} {e.kind.lower()} {pattern}" + (")" if escape == "\\" else f" escape {string_text(escape)})")

    def _like_several(self, e: Expr) -> str:
        patterns = e.handle.patterns()  # which the JSON leaves out
        if patterns.contains(None):
            raise UntranslatableError(f"{e.sql}: a pattern that is null")
        texts = ", ".join(string_text(str(patterns.apply(place).toString())) for place in range(patterns.size()))
        return (
            f"({self.text(e.child)} {'not ' if e.kind.startswith('Not') else ''}like {e.kind[-3:].lower()} ({texts}))"
        )

    def _cast(self, e: Expr) -> str:
        source, target = e.child.type_json, e.type_json
        if source == target or (_is_interval(source) and _is_interval(target)):
            return self.text(e.child)
        kinds = {*_leaves(source), *_leaves(target)}
        if "timestamp" in kinds and kinds & {"string", "date", "timestamp_ntz"}:
            _check_utc(e, e.fields.get("timeZoneId"))
        if "date" in _leaves(source) and "string" in _leaves(target):
            self._check_setting(e, *LEGACY_TIMES)
        name = "cast" if _is_widening(source, target) else {"ANSI": "cast", "TRY": "try_cast"}.get(e.mode)
        if name is None:
            raise not_ansi(f"{e.sql}: a cast", e.mode)
        return f"{name}({self.text(e.child)} as {type_text(target)})"

    def _check_zone(self, e: Expr) -> None:
        if e.kind == "TimestampAddInterval":
            span_us = _constant_interval(e.children[1])
            if span_us is not None and abs(span_us) < DAY_US:
                return
        elif e.kind in ZONED or "timeZoneId" not in e.fields or _counts_seconds(e):
            return
        _check_utc(e, e.fields.get("timeZoneId"))

    def _check_session(self, e: Expr) -> None:
        """Refuse an expression whose result a setting of the session changes."""
        for name, other in SESSION_SETTINGS.get(e.kind, ()):
            self._check_setting(e, name, other)

    def _check_setting(self, e: Expr, name: str, other: str) -> None:
        if self.session is None:
            raise UntranslatableError(f"{e.sql} depends on {name}, which is not known here")
        # Without a default Spark would return its own, which is never the other value.
        value = self.session.conf.get(name, None)
        if value is not None and value.upper() == other.upper():
            raise UntranslatableError(f"{e.sql}: {name} is {value}, which changes its results; only Spark can call it")

    def _check_exact(self, e: Expr) -> None:
        """Refuse an expression that may give other digits than Spark, if they must be the same."""
        if not self.exact:
            return
        of_floats = any(not _FLOATS.isdisjoint(_leaves(child.type_json)) for child in e.children)
        if e.kind in INEXACT or (e.kind in INEXACT_OF_FLOATS and of_floats):
            raise UntranslatableError(f"{e.sql}: the last digits of {e.kind} may differ from Spark's")
        if e.kind in WRITING_FLOATS and of_floats and "string" in _leaves(e.type_json) and not self._has_short_floats():
            raise UntranslatableError(f"{e.sql}: Java writes some floats with more digits before version 19")

    def _has_short_floats(self) -> bool:
        if self.session is None:
            return False
        version = java_class(self.session, "java.lang.System").getProperty("java.specification.version")
        return int(str(version).split(".")[0]) >= _SHORT_FLOATS

    def _zone(self, e: Expr) -> str:
        if self.session is None:
            raise UntranslatableError(f"{e.sql} depends on the session's time zone, which is not known here")
        return str(self.session.conf.get("spark.sql.session.timeZone"))


def _check_settings(e: Expr) -> None:
    """Refuse an expression with a setting that our function does not have: everything but its arguments."""
    for name, value in e.fields.items():
        if name in SETTINGS:
            if value != (SETTINGS[name] if e.kind not in LENIENT_CLASSES else False):
                raise UntranslatableError(f"{e.sql}: {e.kind} with {name} = {value}; between operators it differs")
        elif name in {"evalContext", "evalMode"}:
            if e.mode != "ANSI":
                raise not_ansi(f"{e.sql}: {e.kind}", e.mode)
        elif name not in DERIVED and not isinstance(value, int | list):
            raise UntranslatableError(f"{e.sql}: {e.kind} with {name} = {value} is not available between operators")
    if _arguments(e) != len(e.children):
        raise UntranslatableError(f"{e.sql}: {e.kind} with these arguments is not available between operators")


def _arguments(e: Expr) -> int:
    """Return the number of fields that are expressions. Spark writes the place of a child, or an optional one whole."""
    count = 0
    for name, value in e.fields.items():
        if name in SETTINGS or name in DERIVED:
            continue
        if isinstance(value, int):
            count += 1
        elif isinstance(value, list) and value:
            count += len(value) if isinstance(value[0], int | list) else 1
    return count


def _with_variables(schema: pa.Schema, e: Expr, writer: "ExpressionText") -> pa.Schema:
    """Add the variables of lambda functions to a schema, so that a part of such a function can be bound alone."""
    for part in e.walk():
        if part.kind == "NamedLambdaVariable":
            name = writer.variable(part).strip("`")
            if name not in schema.names:
                schema = schema.append(pa.field(name, arrow_type(part.type_json)))
    return schema


def _outline(e: Expr) -> str:
    """Return the classes, variables and constants of an expression, parents first."""
    own = {"NamedLambdaVariable": "name", "Literal": "value"}
    return " ".join(str(part.fields[own[part.kind]]) if part.kind in own else part.kind for part in e.walk())


def _counts_seconds(e: Expr) -> bool:
    """Return whether it is unix_timestamp of a time, which is the same in every zone."""
    return e.kind in {"UnixTimestamp", "ToUnixTimestamp"} and e.child.type_json == "timestamp"


def _check_utc(e: Expr, zone: str | None) -> None:
    if zone not in UTC:
        raise UntranslatableError(
            f"{e.sql} depends on the session's time zone, {zone}; between operators all times are UTC",
            "set spark.sql.session.timeZone to UTC before the query is built, or compute it before the first stateful "
            "step; a range of times is written b.ts BETWEEN a.ts AND a.ts + INTERVAL '20 seconds'",
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


def literal_text(e: Expr) -> str:  # noqa: C901, PLR0911 - one return per type
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
    if name == "timestamp_ntz":
        return f"cast(timestamp_micros({int(e.handle.value())}L) as timestamp_ntz)"
    if name == "binary":
        return f"X'{bytes(e.handle.value()).hex()}'"
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


def _leaves(kind: Json) -> list[str]:
    """Return the types of a value and of everything in it."""
    match kind:
        case {"type": "array", "elementType": element}:
            return _leaves(element)
        case {"type": "map", "keyType": key, "valueType": value}:
            return [*_leaves(key), *_leaves(value)]
        case {"type": "struct", "fields": fields}:
            return [leaf for item in fields for leaf in _leaves(item["type"])]
    return [_plain(kind)]


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
