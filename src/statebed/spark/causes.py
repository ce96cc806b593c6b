"""Extracts the essential line of Spark's long errors, and the traceback of a Python worker."""

import itertools
import re

from statebed.errors import RemoteTraceback

_OF_THE_JVM = "Caused by: "
_NAMES_AN_ERROR = re.compile(r"[\w.]*(Error|Exception|Interrupt)\b: ")
_UNREAD_FILE = re.compile(
    r"\[FAILED_READ_FILE[.\w]*\] Encountered error while reading file (?P<path>\S+?)\.(?=\s|$)(?P<detail>[^\n]*?)"
    r"(?:SQLSTATE: \w+)?\s*(?:\n|$)"
)
_PATH_GONE = re.compile(r"\[PATH_NOT_FOUND\] Path does not exist: (?P<path>\S+?)\.(?=\s|$)")
_PATH_CHANGED = re.compile(r"Wrong basePath (?P<now>\S+) for the root path: (?P<before>\S+)")
MALFORMED_MESSAGE = "a message of a Kafka topic cannot be decoded"
LOST_MESSAGES = "messages of a Kafka topic are gone"
_MALFORMED = re.compile(r"KAFKA_MALFORMED message: (?P<what>[^\n]*?offset \d+)")
_DATA_LOSS = re.compile(r"\[(?:KAFKA_DATA_LOSS|UNRESOLVABLE_KAFKA)[.\w]*\] (?P<what>[^\n]*)")
_TOPIC_GONE = re.compile(r"UnknownTopicOrPartitionException: (?P<what>[^\n]*)")
_TRACEBACK = "Traceback (most recent call last):"
_FRAME = re.compile(r'\s+File "(?P<file>.*)", line (?P<line>\d+), in (?P<name>.*)')
_OF_SPARK = re.compile(r"[/\\]pyspark[/\\]|pyspark\.zip")
_RAISED = re.compile(r"[^\W\d][\w.<>]*(: .*)?$")


def source_problem(text: str) -> str | None:
    """Return which file, folder or message of a source Spark could not read, and why, or None for any other error.

    >>> source_problem("[PATH_NOT_FOUND] Path does not exist: file:/in. SQLSTATE: 42K03")
    'the path of a source does not exist: file:/in'
    """
    gone = _PATH_GONE.search(text)
    if gone is not None:
        return f"the path of a source does not exist: {gone['path']}"
    changed = _PATH_CHANGED.search(text)
    if changed is not None:
        return (
            f"the path of a source has changed: it is {changed['now']}, and the job has read files up to "
            f"{changed['before']}, which are identified by their paths"
        )
    malformed = _MALFORMED.search(text)
    if malformed is not None:
        return f"{MALFORMED_MESSAGE}: {malformed['what']}"
    lost = _DATA_LOSS.search(text) or _TOPIC_GONE.search(text)
    if lost is not None:
        return f"{LOST_MESSAGES}: {lost['what'].strip()}"
    unread = _UNREAD_FILE.search(text)
    if unread is None:
        return None
    causes = [line.strip() for line in text.splitlines() if line.strip().startswith(_OF_THE_JVM)]
    root = causes[-1].removeprefix(_OF_THE_JVM) if causes else "no reason given"
    return f"a file of a source cannot be read: {unread['path']}: {unread['detail'].strip() or root}"


def cause_of(error: BaseException) -> str:
    """Return the error at the end of a worker's last traceback, else a line that names an error, else the root cause in
    the JVM.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if _NAMES_AN_ERROR.match(line)]
    caused = [line.removeprefix(_OF_THE_JVM) for line in lines if line.startswith(_OF_THE_JVM)]
    thrown = [line.removeprefix(": ") for line in lines if line.startswith(": ")]
    return (_raised(str(error)) or named or caused or thrown or lines[:1] or [type(error).__name__])[-1]


def traceback_in(text: str) -> str:
    r"""Return the last Python traceback in a text, with the error that it ends with; empty: there is none.

    >>> print(traceback_in("x\nTraceback (most recent call last):\n  File 'a'\nValueError: no\n\tat java"))
    Traceback (most recent call last):
      File 'a'
    ValueError: no
    """
    _, header, behind = text.rpartition(_TRACEBACK)
    if not header:
        return ""
    lines: list[str] = []
    for line in behind.splitlines()[1:]:
        lines.append(line)
        if _RAISED.match(line):
            break
    return "\n".join([_TRACEBACK, *lines]).rstrip()


def worker_traceback(error: BaseException) -> RemoteTraceback | None:
    """Return the traceback of a Python worker in Spark's text, without frames of Spark's worker code, or None."""
    lines = traceback_in(str(error)).splitlines()
    frames = []
    for line, following in itertools.pairwise(lines):
        if match := _FRAME.match(line):
            source = "" if _FRAME.match(following) else following.strip()
            frames.append((match["file"], int(match["line"]), match["name"], source))
    users = [frame for frame in frames if not _OF_SPARK.search(frame[0])]
    return RemoteTraceback(tuple(users or frames), "", lines[-1]) if lines else None


def _raised(text: str) -> list[str]:
    """Return the first line after the last traceback header that is not indented, if any: frames are indented, and
    errors may have any name.
    """
    _, header, behind = text.rpartition(_TRACEBACK)
    return [line.strip() for line in behind.splitlines() if _RAISED.match(line)][:1] if header else []
