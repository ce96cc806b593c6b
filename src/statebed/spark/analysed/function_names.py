"""Expression classes of Spark that statebed's expressions also have: operators, functions, and their settings.

Nothing is translated by its printed text, because several classes print alike: `try_add(a, b)` prints `a + b`, and a
Python function called `length` prints `length(k)`. A class that is not listed here or in `function_classes`, and not
handled in `expression_text`, is computed by Spark or refused; so is a class with a setting that is not listed.
"""

from statebed.spark.analysed.function_classes import FUNCTION_CLASSES

BINARY = {
    "Add": "+",
    "And": "and",
    "BitwiseAnd": "&",
    "BitwiseOr": "|",
    "BitwiseXor": "^",
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
LENIENT = {
    "Add": "try_add",
    "Divide": "try_divide",
    "Multiply": "try_multiply",
    "Remainder": "try_mod",
    "Subtract": "try_subtract",
}
"""Functions for operators in TRY mode, which return null instead of an error."""
FUNCTIONS = FUNCTION_CLASSES | {
    "Ceil": "ceil",
    "Contains": "contains",
    "EndsWith": "endswith",
    "Floor": "floor",
    "Hour": "hour",
    "Mask": "mask",
    "Minute": "minute",
    "Second": "second",
    "StartsWith": "startswith",
    "StringDecode": "decode",
    "StringInstr": "instr",
    "StringLPad": "lpad",
    "StringRPad": "rpad",
}
"""Functions whose arguments are their children, in order. Those listed here are built by other classes of Spark's."""
EXTRACTED = {
    "ExtractANSIIntervalDays": "day",
    "ExtractANSIIntervalHours": "hour",
    "ExtractANSIIntervalMinutes": "minute",
    "ExtractANSIIntervalSeconds": "second",
    "SecondWithFraction": "second",
    "YearOfWeek": "yearofweek",
}
"""Parts of times and intervals that have no function of their own: the field of `extract`."""
FAILING = {
    "ElementAt": ("element_at", "try_element_at"),
    "ParseUrl": ("parse_url", "try_parse_url"),
    "UrlDecode": ("url_decode", "try_url_decode"),
}
"""Functions that fail for bad values, and those that return null instead: one class with a flag in Spark."""
SETTINGS = {
    "allowNullComparisonResult": False,
    "ansiEnabled": True,
    "chunkBase64": True,
    "failOnError": True,
    "followThreeValuedLogic": True,
    "legacyCharsets": False,
    "legacyErrorAction": False,
    "legacyInterval": False,
    "legacyNegativeIndex": False,
    "legacySizeOfNull": False,
    "seed": 42,
    "useStringTypeWhenEmpty": False,
}
"""Settings of expressions that are not arguments, with the only value for which the results are the same."""
LENIENT_CLASSES = frozenset({"UnBase64", "Unhex"})
"""Functions that return null for bad values in every mode."""
DERIVED = frozenset({"class", "num-children", "product-class", "dataType", "nullable", "timeZoneId", "names"})
"""Fields that say nothing about the result, or that are checked elsewhere: the zone, and the type of the result."""
_MAP_BUILDERS = {
    "CreateMap",
    "JsonToStructs",
    "MapConcat",
    "MapFromArrays",
    "MapFromEntries",
    "StringToMap",
    "TransformKeys",
}
_FORMATTERS = {"DateFormatClass", "FromUnixTime", "ParseToDate", "ParseToTimestamp"}
_WITH_REGEX = {"StringSplit", "StringToMap"}
_CASE_MAPPINGS = {"InitCap", "Lower", "Upper"}
LEGACY_TIMES = ("spark.sql.legacy.timeParserPolicy", "LEGACY")
"""The formatter of Spark 2: another calendar before 1582, other letters, other years. The other two values, EXCEPTION
and CORRECTED, differ only in the error for what the new formatter refuses.
"""
_SETTINGS_BY_CLASSES = (
    (_MAP_BUILDERS, ("spark.sql.mapKeyDedupPolicy", "LAST_WIN")),
    (_MAP_BUILDERS, ("spark.sql.legacy.disableMapKeyNormalization", "true")),
    ({*_FORMATTERS, "JsonToStructs", "StructsToJson"}, LEGACY_TIMES),
    ({"ArrayAppend"}, ("spark.sql.legacy.negativeIndexInArrayInsert", "true")),
    (_WITH_REGEX, ("spark.sql.legacy.truncateForEmptyRegexSplit", "true")),
    (_CASE_MAPPINGS, ("spark.sql.icu.caseMappings.enabled", "false")),
    ({"JsonToStructs"}, ("spark.sql.json.enablePartialResults", "false")),
    ({"JsonToStructs"}, ("spark.sql.json.enableExactStringParsing", "false")),
    ({"JsonToStructs"}, ("spark.sql.legacy.json.allowEmptyString.enabled", "true")),
    ({"JsonToStructs"}, ("spark.sql.legacy.json.enableDateTimeParsingFallback", "true")),
    ({"StructsToJson"}, ("spark.sql.jsonGenerator.ignoreNullFields", "false")),
)
SESSION_SETTINGS = {
    kind: tuple(setting for classes, setting in _SETTINGS_BY_CLASSES if kind in classes)
    for kind in sorted({kind for classes, _ in _SETTINGS_BY_CLASSES for kind in classes})
}
"""Settings of a session that a class reads when it is evaluated, and the value with which it gives other results than
our function; none of these is a default.
"""
INEXACT = frozenset(
    {
        *("Acos", "Acosh", "Asin", "Asinh", "Atan", "Atan2", "Atanh", "Cos", "Cosh", "Cot", "Csc", "Sec", "Sin"),
        *("Cbrt", "Exp", "Expm1", "Hypot", "Log", "Log10", "Log1p", "Log2", "Logarithm", "Pow", "Sinh", "Tan", "Tanh"),
    }
)
"""Functions whose last digit may differ from Spark's, because Java and NumPy compute it differently."""
INEXACT_OF_FLOATS = frozenset({"BRound", "FormatNumber", "Round"})
"""Functions that may give other digits for floats and doubles."""
WRITING_FLOATS = frozenset({"Cast", "FormatString", "StructsToJson"})
"""Classes that write floats and doubles as text: the shortest one only since Java 19."""
TYPE_SENSITIVE = frozenset({"FormatString", "Murmur3Hash", "StructsToJson", "TypeOf", "XxHash64"})
"""Functions whose result, but not its type, depends on the exact types of their arguments."""
ZONED = frozenset({"Cast", "TimestampAddInterval"})
"""Classes whose dependence on the time zone is judged by their arguments."""
DEFAULT_ORDER = (
    "If And IsNull left IsNull right 0 If IsNull left 1 If IsNull right -1 If LessThan left right -1 "
    "If GreaterThan left right 1 0"
)
"""The comparison that Spark adds to `array_sort(list)`: classes, variables and constants, parents first."""
