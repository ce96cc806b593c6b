"""`statebed sql`: checks, explains or runs a pipeline of SQL text."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from statebed.cli import output
from statebed.cli.extras import require
from statebed.cli.signals import interrupted_by_signals
from statebed.errors import InputError
from statebed.present.units import NOTHING
from statebed.sql.source_text import SqlText

if TYPE_CHECKING:
    from statebed.queries.text.pipeline import SqlPipeline

_SHOWN_ROWS = 20


@dataclass(frozen=True)
class PipelineRequest:
    """Options of the command."""

    file: str
    text: str
    job: str | None
    state: str | None
    settings: tuple[tuple[str, str], ...]
    choices: Mapping[str, Any]
    """Choices of `job.start`."""


def read_text(file: Path) -> str:
    """Return the text of a file, without the mark that some editors put at its beginning."""
    try:
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"it is not UTF-8 text ({error})"
        raise InputError(
            f"cannot read the SQL: {reason}", where=str(file), fix="pass the path of a text file in UTF-8"
        ) from error


def parse_pairs(option: str, supplied: Sequence[str], *, example: str) -> tuple[tuple[str, str], ...]:
    """Return names and values of the `name=value` texts of an option."""
    for text in supplied:
        if "=" not in text:
            raise InputError(f"{option} must be name=value, got {text!r}", fix=f"write {option} {example}")
    return tuple((name.strip(), value.strip()) for name, _, value in (text.partition("=") for text in supplied))


def parse_choices(
    *, removed: str, sinks: Sequence[str], abandon: Sequence[str], skip: Sequence[str], sources: Sequence[str]
) -> Mapping[str, Any]:
    """Return the arguments of `job.start` that its options of the same names stand for."""
    epochs = parse_pairs("--skip", skip, example="totals=17")
    for name, epoch in epochs:
        if not epoch.isdecimal():
            raise InputError(f"--skip {name}={epoch} does not name an epoch", fix=f"write --skip {name}=17")
    return {
        "removed": removed,
        "sinks": dict(parse_pairs("--sinks", sinks, example="totals=rebuild")),
        "abandon": tuple(abandon),
        "skip": {name: int(epoch) for name, epoch in epochs},
        "sources": dict(parse_pairs("--sources", sources, example="orders=earliest")),
    }


def check(request: PipelineRequest) -> None:
    """Check the whole text and print what the job would have; nothing is written."""
    pipeline = _pipeline(request)
    pipeline.job.explain()
    output.say(f"{request.file}: no mistakes; the job is called {pipeline.job.name}")
    for what, names in (
        ("sources", pipeline.job.graph.sources),
        ("operators", pipeline.job.graph.operators),
        ("sinks", pipeline.job.sink_names),
    ):
        output.say(f"  {what:<10} {', '.join(names) or NOTHING}")


def explain(request: PipelineRequest) -> None:
    """Print the plan of the job, and the zones of each of its queries."""
    pipeline = _pipeline(request)
    from statebed.queries.explain import explained_text

    output.say_lines(explained_text(pipeline.job))


def run(request: PipelineRequest, *, once: bool, watch: bool, processing_time: str | None) -> None:
    """Run the job until its input ends, with `once`, or until it is stopped."""
    pipeline = _pipeline(request)
    if watch:
        pipeline.job.watch_sinks(_show)
    every = processing_time or pipeline.processing_time
    with warnings.catch_warnings():
        warnings.showwarning = output.show_warning
        query = pipeline.job.start(available_now=once, processing_time=None if once else every, **request.choices)
    with interrupted_by_signals():
        try:
            query.await_termination()
        except KeyboardInterrupt:
            query.stop()
            output.say(f"stopped at epoch {query.status.epoch}; the next run resumes there")


def _pipeline(request: PipelineRequest) -> "SqlPipeline":
    require("spark")
    from statebed.queries.text.pipeline import read_pipeline

    return read_pipeline(
        SqlText(request.text, request.file), name=request.job, state=request.state, settings=request.settings
    )


def _show(sink: str, epoch: int, rows: pa.Table) -> None:
    """Print the first rows of an epoch."""
    head = rows.slice(0, _SHOWN_ROWS)
    lines = [tuple(row.values()) for row in head.to_pylist()]
    more = f", the first {_SHOWN_ROWS} of {rows.num_rows} rows" if rows.num_rows > _SHOWN_ROWS else ""
    output.print_table(output.table(f"{sink}, epoch {epoch}{more}", rows.schema.names, lines), ())
