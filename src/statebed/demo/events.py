"""The demo's input: bids as Parquet files in a folder, which a streaming query reads in the order they were
written.

A file is named by the events that it covers, so the next slice follows from the names alone. Its time of
modification is set to its place in the order, because Spark's file source goes by that.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from statebed.demo.nexmark import Nexmark
from statebed.errors import DemoError, InputError

_NAME = re.compile(r"bids-(\d{12})-(\d{9})\.parquet")
_FIRST_MODIFIED = 1_767_225_600


@dataclass(frozen=True)
class EventFiles:
    """The files of one folder, made by one generator."""

    folder: Path
    generator: Nexmark
    events_per_file: int

    def existing(self) -> list[Path]:
        """Complete files, in order."""
        return sorted(path for path in self.folder.glob("*.parquet") if _NAME.fullmatch(path.name))

    def append(self, count: int) -> Iterator[Path]:
        """Make the next `count` files, one by one; a file appears whole or not at all."""
        if count < 0:
            raise InputError(f"{count} files of events", fix="give 0 or more")
        try:
            yield from self._append(count)
        except OSError as error:
            raise DemoError(
                f"the events cannot be written: {error.strerror or error}",
                where=str(self.folder),
                fix="make room or give yourself the right to write there, or name another folder with --state",
            ) from error

    def _append(self, count: int) -> Iterator[Path]:
        self.folder.mkdir(parents=True, exist_ok=True)
        place = len(self.existing())
        first = self._next_event()
        for number in range(count):
            start = first + number * self.events_per_file
            target = self.folder / f"bids-{start:012d}-{self.events_per_file:09d}.parquet"
            hidden = self.folder / f".{target.name}.tmp"  # Spark passes over names that begin with a dot
            pq.write_table(self.generator.bids(first=start, count=self.events_per_file), hidden, compression="zstd")
            modified = _FIRST_MODIFIED + place + number
            os.utime(hidden, (modified, modified))
            hidden.rename(target)
            yield target

    def _next_event(self) -> int:
        ends = [int(m.group(1)) + int(m.group(2)) for p in self.existing() if (m := _NAME.fullmatch(p.name))]
        return max(ends, default=0)
