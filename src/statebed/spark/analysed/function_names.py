"""Expression classes of Spark that statebed's expressions also have: operators, functions, and their settings.

Nothing is translated by its printed text, because several classes print alike: `try_add(a, b)` prints `a + b`, and a
Python function called `length` prints `length(k)`. A class that is not listed here or in `function_classes`, and not
handled in `expression_text`, is computed by Spark or refused. So is one with a setting that is not listed here.
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
_FORMATTERS = {"DateFormatClass", "FromUnixTime", "ParseToDate", "ParseToTimestamp", "ToUnixTimestamp"}
SESSION_SETTINGS = {
    **dict.fromkeys(_MAP_BUILDERS, ("spark.sql.mapKeyDedupPolicy", "LAST_WIN")),
    **dict.fromkeys(_FORMATTERS, ("spark.sql.legacy.timeParserPolicy", "LEGACY")),
    "ArrayAppend": ("spark.sql.legacy.negativeIndexInArrayInsert", "true"),
}
"""Settings of a session, and the value with which a class gives other results than our function."""
TYPE_SENSITIVE = frozenset({"FormatString", "Murmur3Hash", "StructsToJson", "TypeOf", "XxHash64"})
"""Functions whose result, but not its type, depends on the exact types of their arguments."""
ZONED = frozenset({"Cast", "TimestampAddInterval"})
"""Classes whose dependence on the time zone is judged by their arguments."""
DEFAULT_ORDER = (
    "If And IsNull left IsNull right 0 If IsNull left 1 If IsNull right -1 If LessThan left right -1 "
    "If GreaterThan left right 1 0"
)
"""The comparison that Spark adds to `array_sort(list)`: classes, variables and constants, parents first."""
