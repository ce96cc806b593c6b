"""The one line of Spark's long errors that says what happened."""

import re

_OF_THE_JVM = "Caused by: "
_NAMES_AN_ERROR = re.compile(r"[\w.]*(Error|Exception|Interrupt)\b: ")


def cause_of(error: BaseException) -> str:
    """Of a worker's traceback the last line that names an error, of the JVM's what caused all else, else the first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if _NAMES_AN_ERROR.match(line)]
    caused = [line.removeprefix(_OF_THE_JVM) for line in lines if line.startswith(_OF_THE_JVM)]
    thrown = [line.removeprefix(": ") for line in lines if line.startswith(": ")]
    return (named or caused or thrown or lines[:1] or [type(error).__name__])[-1]
