"""Position of a sink in a Delta table that was restored to an older version.

`RESTORE` brings back the files of a version, but not its application transactions: those still have the newest epoch,
although its rows are gone. The commits of the sink itself, which have their epoch in the history, tell which epochs the
restored version has.
"""

from collections.abc import Iterable, Iterator, Mapping
from math import inf
from typing import Any

from statebed.sinks.lake.lake_table import EPOCH, OWNER

_RESTORE = "RESTORE"
_LIMITS = (1, 64, None)
"""Number of newest commits to read at a time, until one is the sink's. Usually the newest one is."""


def commits_of(table: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the commits of a table, newest first."""
    seen = 0
    for limit in _LIMITS:
        commits = table.history(limit)
        yield from commits[seen:]
        seen = len(commits)
        if limit is None or seen < limit:
            return


def restored_epoch(commits: Iterable[Mapping[str, Any]], owner: str) -> int | None:
    """Return the newest epoch that a restored table has, 0 if that is unknown, or None if the table was not restored
    after the newest commit of the sink. `commits` are the newest first.

    >>> mine = [{"version": n, "timestamp": n, OWNER: "a/b", EPOCH: str(10 + n)} for n in (3, 2, 1)]
    >>> back = {"version": 4, "timestamp": 4, "operation": "RESTORE", "operationParameters": {"version": "2"}}
    >>> restored_epoch(mine, "a/b"), restored_epoch([back, *mine], "a/b")
    (None, 12)
    """
    is_restored, version, milliseconds = False, inf, inf
    for commit in commits:
        if commit["version"] > version or commit.get("timestamp", 0) > milliseconds:
            continue  # gone since the restore
        if commit.get(OWNER) == owner and EPOCH in commit:
            return int(commit[EPOCH]) if is_restored else None
        if commit.get("operation") == _RESTORE:
            is_restored, parameters = True, commit.get("operationParameters") or {}
            number, moment = (str(parameters.get(name)) for name in ("version", "datetime"))
            if number.isdecimal():
                version = int(number)
            elif moment.isdecimal():
                milliseconds = int(moment)
            else:
                return 0  # by a time in the time zone of another program
    return 0 if is_restored else None
