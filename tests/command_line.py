"""A command as tests call it: `statebed("ls", folder)` gives its exit code and what it printed."""

import dataclasses
from pathlib import Path
from typing import Protocol


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


class Call(Protocol):
    """The fixture `statebed`."""

    def __call__(self, *arguments: str | Path) -> Outcome: ...
