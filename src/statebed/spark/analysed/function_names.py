"""Expression classes of Spark that statebed's expressions also have: operators, functions, and their arguments.

Nothing is translated by its printed text, because several classes print alike: `try_add(a, b)` prints `a + b`, and a
Python function called `length` prints `length(k)`. A class that is not listed here, or handled in `expression_text`,
is computed by Spark or refused.
"""

BINARY = {
    "Add": "+",
    "And": "and",
    "Divide": "/",
    "EqualNullSafe": "<=>",
    "EqualTo": "=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "IntegralDivide": "div",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "Multiply": "*",
    "Or": "or",
    "Remainder": "%",
    "Subtract": "-",
}
MODAL = frozenset({"Add", "Subtract", "Multiply", "Divide", "IntegralDivide", "Remainder"})
"""Operators with a mode: between operators, overflows and divisions by zero are errors, as in ANSI mode."""
FAIL_ON_ERROR = frozenset({"UnaryMinus", "Abs"})
FUNCTIONS = {
    "Abs": "abs",
    "Ceil": "ceil",
    "Coalesce": "coalesce",
    "Concat": "concat",
    "Contains": "contains",
    "DateAdd": "date_add",
    "DateDiff": "datediff",
    "DateSub": "date_sub",
    "DayOfMonth": "dayofmonth",
    "DayOfWeek": "dayofweek",
    "DayOfYear": "dayofyear",
    "EndsWith": "endswith",
    "Exp": "exp",
    "Floor": "floor",
    "FormatString": "format_string",
    "FromUTCTimestamp": "from_utc_timestamp",
    "GetJsonObject": "get_json_object",
    "Greatest": "greatest",
    "Hour": "hour",
    "If": "if",
    "IsNaN": "isnan",
    "JsonObjectKeys": "json_object_keys",
    "Least": "least",
    "Length": "length",
    "LengthOfJsonArray": "json_array_length",
    "Log": "ln",
    "Log10": "log10",
    "Log2": "log2",
    "Lower": "lower",
    "MicrosToTimestamp": "timestamp_micros",
    "MillisToTimestamp": "timestamp_millis",
    "Minute": "minute",
    "Month": "month",
    "Pow": "pow",
    "Quarter": "quarter",
    "Reverse": "reverse",
    "Round": "round",
    "Second": "second",
    "SecondsToTimestamp": "timestamp_seconds",
    "Signum": "sign",
    "Size": "size",
    "Sqrt": "sqrt",
    "StartsWith": "startswith",
    "StringLPad": "lpad",
    "StringRPad": "rpad",
    "StringReplace": "replace",
    "StringTrim": "trim",
    "StringTrimLeft": "ltrim",
    "StringTrimRight": "rtrim",
    "Substring": "substring",
    "ToUTCTimestamp": "to_utc_timestamp",
    "UnixMicros": "unix_micros",
    "UnixMillis": "unix_millis",
    "UnixSeconds": "unix_seconds",
    "Upper": "upper",
    "WeekDay": "weekday",
    "WeekOfYear": "weekofyear",
    "Year": "year",
}
"""Functions whose arguments are their children, in order."""
REPLACED = {
    "IfNull": ("nvl", ("left", "right")),
    "Left": ("left", ("str", "len")),
    "NullIf": ("nullif", ("left", "right")),
    "Nvl": ("nvl", ("left", "right")),
    "Nvl2": ("nvl2", ("expr1", "expr2", "expr3")),
    "Right": ("right", ("str", "len")),
}
"""Functions that Spark builds from others, with the fields of their arguments."""
ZONED = frozenset({"Cast", "TimestampAddInterval"})
"""Classes whose dependence on the time zone is judged by their arguments."""
