"""`statebed demo`: runs the demo job and shows its results, state and epochs, and what to try next."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from statebed.checkpoint.log import CheckpointLog
from statebed.cli import render
from statebed.cli.demo_next import show_next
from statebed.cli.output import console, table
from statebed.cli.signals import interrupted_by_signals
from statebed.demo.child import run_job
from statebed.demo.comparison import Comparison, Totals
from statebed.demo.crash import CrashOutcome, run_crash_demo
from statebed.demo.job import JOB, OPERATOR, DemoFolder
from statebed.format import checkpoint_pb2 as pb
from statebed.inspect import contents, records
from statebed.inspect.operator_names import OperatorNames
from statebed.present.units import number
from statebed.protocol.records import data_epoch_of

_POLL_SECONDS = 0.2
_SHOWN_EPOCHS = 15
_TOP = """
    SELECT auction, strftime(make_timestamp(epoch_us(window_start)), '%H:%M:%S') AS start, bids, volume / 100 AS volume
    FROM read_parquet(?) WHERE window_end = (SELECT max(window_end) FROM read_parquet(?))
    ORDER BY bids DESC, auction LIMIT 10
"""


def show_run(folder: DemoFolder, *, files: int, events_per_file: int) -> None:
    """Generate the next event files, process them, and show the outcome."""
    screen = console()
    before = records.newest(folder.log())
    if before is not None and data_epoch_of(before):
        screen.print(f"resumed from epoch {data_epoch_of(before)}: events, state and results are in {folder.root}")
    with _progress(screen) as progress:
        events = folder.events(events_per_file=events_per_file)
        making = progress.add_task("making Nexmark events", total=files)
        for _ in events.append(files):
            progress.advance(making)
        done = _batches(before)
        waiting = len(events.existing()) - done
        working = progress.add_task("starting Spark", total=waiting)
        if not screen.is_terminal:
            screen.print(f"generating {files} files of {events_per_file:,} Nexmark events; starting Spark")
        reported = done

        def look(log: CheckpointLog) -> bool:
            nonlocal reported
            now = _batches(log.head())
            if now > reported:
                progress.update(working, completed=now - done, description="processing epochs")
                if not screen.is_terminal:
                    screen.print(f"processed {now - done} of {waiting} files of {events_per_file:,} events")
                reported = now
            return False

        with resume_hint_on_interrupt(screen):
            run_job(folder, kill_when=look, poll_seconds=_POLL_SECONDS)
        look(folder.log())
    _show_results(screen, folder)
    _show_state(screen, folder)
    show_next(screen, folder)


def show_crash(folder: DemoFolder, *, kills: int, events_per_file: int) -> bool:
    """Run the crash demo and show the comparison. Return False if the result is wrong."""
    screen = console()
    records.newest(folder.log())  # reports damaged state before any file is generated
    with resume_hint_on_interrupt(screen):
        outcome = run_crash_demo(
            folder, kills=kills, events_per_file=events_per_file, tell=lambda line: screen.print(f"  {line}")
        )
    screen.print(_kills_table(outcome))
    screen.print(_comparison_table(outcome.comparison))
    missed = f" ({outcome.misses} more hit the job outside an epoch)" if outcome.misses else ""
    lost = sum(kill.epochs_lost for kill in outcome.kills)
    screen.print(f"{len(outcome.kills)} kills inside an epoch{missed}; committed epochs lost: {lost}")
    if outcome.right:
        screen.print("EQUAL: the result of the job equals that of a batch over the same files")
        return True
    comparison = outcome.comparison
    screen.print(f"DIFFERENT: {comparison.missing} rows are missing, {comparison.unexpected} rows are unexpected")
    return False


@contextmanager
def resume_hint_on_interrupt(screen: Console) -> Iterator[None]:
    """Say that the job can be resumed if Ctrl-C, a closed terminal or SIGTERM ends it."""
    try:
        with interrupted_by_signals():
            yield
    except KeyboardInterrupt:
        screen.print("stopped: committed epochs are kept, and the next demo in this folder resumes from there")
        raise


def _progress(screen: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=screen, disable=not screen.is_terminal)


def _batches(record: pb.CheckpointMetadata | None) -> int:
    """Return the number of micro-batches, and so of files, that the record's state includes."""
    if record is None or not record.source_position.HasField("batch_id"):
        return 0
    return record.source_position.batch_id + 1


def _show_results(screen: Console, folder: DemoFolder) -> None:
    import duckdb

    files = [str(path) for path in sorted(folder.results.rglob("*.parquet"))]
    if not files:
        screen.print("no window is closed yet: run the demo again with more events")
        return
    with duckdb.connect() as db:
        rows = db.execute(_TOP, [files, files]).fetchall()
    screen.print(
        table(
            "results: top auctions of the newest closed window",
            ["auction", "window start (UTC)", "bids", "volume"],
            [(auction, start, number(bids), f"{volume:,.2f}") for auction, start, bids, volume in rows],
            right=["auction", "bids", "volume"],
        )
    )


def _show_state(screen: Console, folder: DemoFolder) -> None:
    log = folder.log()
    head = records.record_at(log, None)
    tables = contents.contents_of(log, head).tables
    title = f"state of {OPERATOR} by tier, at epoch {head.epoch}"
    screen.print(render.state_table(tables, title=title, names=OperatorNames.of(head)))
    epochs = records.summarise_epochs(log)
    newest = f", the newest {_SHOWN_EPOCHS} of {len(epochs)}" if len(epochs) > _SHOWN_EPOCHS else ""
    screen.print(render.work_table(epochs[-_SHOWN_EPOCHS:], title=f"epochs of {JOB}{newest}"))


def _kills_table(outcome: CrashOutcome) -> object:
    return table(
        "kills",
        ["in epoch", "what the disk showed", "processes", "last committed", "resumed from"],
        [(k.epoch, k.moment.value, k.processes, k.last_committed, k.resumed_from) for k in outcome.kills],
        right=["in epoch", "processes", "last committed", "resumed from"],
    )


def _comparison_table(comparison: Comparison) -> object:
    def row(name: str, totals: Totals) -> tuple[str, ...]:
        return (name, number(totals.rows), number(totals.windows), number(totals.bids), number(totals.volume))

    return table(
        "result of the job compared with a batch recomputation by DuckDB",
        ["", "rows", "windows", "bids", "volume (cents)"],
        [
            row("closed windows, from the sink", comparison.closed),
            row("open windows, from the state", comparison.still_open),
            row("recomputed from the event files", comparison.expected),
        ],
        right=["rows", "windows", "bids", "volume (cents)"],
    )
