"""`statebed top`: shows a running job in a terminal. It only reads records, so it does not affect the job."""

import contextlib
import os
import select
import sys
import time
from collections.abc import Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from statebed.cli import output
from statebed.cli.output import age, line, problem, status, table
from statebed.cli.render import failure
from statebed.cli.render_show import memory_table, partitions_table, tiers_table
from statebed.cli.signals import interrupted_by_signals
from statebed.errors import JobNotFoundError, StatebedError
from statebed.inspect.jobs import open_log
from statebed.inspect.log_tail import JobPace, LogTail, OperatorPace, pace_of
from statebed.inspect.operator_names import OperatorNames
from statebed.inspect.sources import SourceState
from statebed.present.units import NOTHING, duration, instant, number, plural, rate, size

EXPENDABLE_COLUMNS = ("loads", "hits", "tombstones", "spills", "subtasks", "slowest subtask", "files", "of", "spilled")
"""Columns to drop on a narrow screen, the least important first."""
_BAR = 40
_KEYS_THAT_LEAVE = (b"q", b"Q", b"")
"""Keys that quit; empty input means that the terminal was closed."""


def print_once(state: str, job: str | None, *, epochs: int, as_json: bool) -> None:
    """Print the view once, for scripts."""
    pace = _look(_tail(state, job, epochs), where=state)
    if as_json:
        output.print_json(output.with_times(pace))
        return
    screen = output.console()
    screen.print(_view(pace, screen, note=""))


def watch(state: str, job: str | None, *, epochs: int, every: float) -> None:
    """Refresh the view until a key or a signal ends it, then restore the terminal."""
    tail = _tail(state, job, epochs)
    pace = _look(tail, where=state)
    screen = output.console()
    note = ""
    live = Live(console=screen, screen=True, auto_refresh=False, vertical_overflow="crop")
    with contextlib.suppress(KeyboardInterrupt), interrupted_by_signals(), _keys() as keys, live:
        while True:
            live.update(_view(pace, screen, note=note), refresh=True)
            if _leaves(keys, every):
                return
            try:
                pace, note = _look(tail, where=state), ""
            except (
                StatebedError
            ) as error:  # the store may be unreachable for a while; the last view stays on the screen
                note = f"{error.code}: {error.what}"


def _tail(state: str, job: str | None, epochs: int) -> LogTail:
    return LogTail(open_log(state, job), keep=epochs + 1)


def _look(tail: LogTail, *, where: str) -> JobPace:
    records = tail.poll()
    if not records:
        raise JobNotFoundError(
            "the job has not committed anything yet", where=where, fix="start the job and try again in a moment"
        )
    now_us = time.time_ns() // 1000
    return pace_of(records, now_us=now_us, report=tail.run(now_us=now_us), heartbeat=tail.heartbeat())


# ---- keys -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _keys() -> Iterator[bool]:
    """Yield whether single keys can be read, which requires standard input to be a terminal. Switch it to unbuffered
    input.
    """
    if not sys.stdin.isatty():
        yield False
        return
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield True
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _leaves(keys: bool, every: float) -> bool:
    """Wait for `every` seconds. Return True if a key was pressed that ends the view."""
    if not keys:
        time.sleep(every)
        return False
    ready, _, _ = select.select([sys.stdin], [], [], every)
    return bool(ready) and os.read(sys.stdin.fileno(), 1) in _KEYS_THAT_LEAVE


# ---- what is seen ---------------------------------------------------------------------------------------------


def _view(pace: JobPace, screen: Console, *, note: str) -> RenderableType:
    names = OperatorNames(pace.operator_names)
    pieces: list[RenderableType] = [*_heading(pace), _operators(pace.operators, names)]
    if any(source.offsets_behind is not None for source in pace.sources):
        pieces.append(_sources(pace.sources))
    if any(source.partitions for source in pace.sources):
        pieces.append(partitions_table(pace.sources))
    if pace.phases_us:
        pieces.append(_phases(pace.phases_us))
    if pace.tables:
        pieces.append(tiers_table(pace.tables, title="state by tier", names=names))
    if pace.hosts:
        pieces.append(memory_table(pace.hosts, names))
    if pace.compaction is not None:
        totals = pace.compaction
        pieces.append(
            line(
                f"compaction: {number(totals.merges)} merges in {number(totals.rounds)} rounds, "
                f"{size(totals.read_bytes)} read, {size(totals.written_bytes)} written, "
                f"{number(totals.failures)} failures"
            )
        )
    if not pace.tables:
        pieces.append(
            line("no figures for tiers, memory and phases: a tool or a program without Spark wrote the newest record")
        )
    if note:
        pieces.append(Text.assemble(("cannot refresh: ", "yellow"), line(note)))
    return Group(*(output.fit(p, screen, expendable=EXPENDABLE_COLUMNS) if isinstance(p, Table) else p for p in pieces))


def _heading(pace: JobPace) -> Iterator[Text]:
    heading = f"  {pace.job}, lineage {pace.lineage}, run {pace.run}"
    yield Text.assemble(("statebed top  ", "bold"), status(pace.status), line(heading))
    if pace.report is not None and pace.report.is_problem:
        yield problem(failure(pace.report))
    yield line(
        f"epoch {number(pace.epoch)}, {age(pace.finish_time_us)} ago; "
        f"newest took {duration(pace.duration_us)}; rates over {plural(pace.epochs, 'epoch')} of this run"
    )
    yield line(
        f"epochs {rate(pace.epochs_per_second)}, rows in {rate(pace.rows_in_per_second)}, "
        f"rows out {rate(pace.rows_out_per_second)}, {number(pace.rows_late)} late"
    )
    yield line(
        f"watermark {instant(pace.watermark_us)} UTC, {_lag(pace.lag_us)} behind the clock, "
        f"{_lag(pace.event_time_lag_us)} behind the newest event"
    )


def _sources(sources: Sequence[SourceState]) -> Table:
    return table(
        "sources",
        ["source", "behind", "arriving", "processed", "newest event (UTC)"],
        [
            (
                source.source,
                number(source.offsets_behind),
                rate(source.input_rows_per_second),
                rate(source.processed_rows_per_second),
                instant(source.newest_event_time_us),
            )
            for source in sources
        ],
        right=["behind", "arriving", "processed"],
    )


def _operators(operators: Sequence[OperatorPace], names: OperatorNames) -> Table:
    return table(
        "operators",
        ["operator", "subtasks", "rows in", "rows out", "late", "watermark (UTC)", "slowest subtask"],
        [
            (
                names(operator.operator),
                operator.subtasks,
                rate(operator.rows_in_per_second),
                rate(operator.rows_out_per_second),
                number(operator.rows_late),
                instant(operator.watermark_us),
                duration(operator.busy_us),
            )
            for operator in operators
        ],
        right=["subtasks", "rows in", "rows out", "late", "slowest subtask"],
    )


def _phases(phases_us: dict[str, int]) -> Table:
    longest = max(1, *phases_us.values())
    return table(
        "phases of an epoch, mean",
        ["phase", "took", ""],
        [
            (name, duration(took), "█" * round(_BAR * took / longest) if longest else "")
            for name, took in phases_us.items()
        ],
        right=["took"],
    )


def _lag(lag_us: int | None) -> str:
    return NOTHING if lag_us is None else duration(max(0, lag_us))
