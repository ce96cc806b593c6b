"""Shell completion of jobs, epochs, operators, tables and savepoints at the location typed so far.

Errors are suppressed, because they would be mixed with what the user is typing.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from statebed.checkpoint.log import CheckpointLog
    from statebed.format import checkpoint_pb2 as pb

MAX_EPOCHS = 50
"""Maximum number of epochs offered, the newest first. It keeps completion fast for long logs."""


def jobs(context: typer.Context, incomplete: str) -> list[str]:
    """Complete names of jobs."""
    from statebed.inspect.jobs import job_names
    from statebed.storage import get_storage_provider

    return _offered(lambda: job_names(get_storage_provider(_typed(context)[0])), incomplete)


def epochs(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the newest epochs of the job, newest first."""
    return _offered(lambda: map(str, reversed(_log(context).numbers()[-MAX_EPOCHS:])), incomplete)


def epochs_and_savepoints(context: typer.Context, incomplete: str) -> list[str]:
    """Complete epochs and savepoints of the job."""
    return [*savepoints(context, incomplete), *epochs(context, incomplete)]


def operators(context: typer.Context, incomplete: str) -> list[str]:
    """Complete operators of the job."""
    return _offered(lambda: (entry.operator_id for entry in _head(context).operators), incomplete)


def tables(context: typer.Context, incomplete: str) -> list[str]:
    """Complete tables of the job, or of the operator given on the command line."""
    from statebed.inspect.contents import metadata_of

    def candidates() -> Iterable[str]:
        operator = context.params.get("operator")
        metadata = metadata_of(_log(context), _head(context))
        return sorted({t for o, parts in metadata.items() if operator in {None, o} for p in parts for t in p.tables})

    return _offered(candidates, incomplete)


def savepoints(context: typer.Context, incomplete: str) -> list[str]:
    """Complete savepoints of the job."""
    return _offered(lambda: (pin.savepoint for pin in _head(context).pins), incomplete)


def _log(context: typer.Context) -> "CheckpointLog":
    from statebed.inspect.jobs import open_log

    return open_log(*_typed(context))


def _typed(context: typer.Context) -> tuple[str, str | None]:
    """Return the location and the job typed so far. While an option still lacks its value, click leaves arguments
    unparsed.
    """
    if context.args:
        return context.args[0], context.args[1] if len(context.args) > 1 else None
    return context.params["state"], context.params.get("job")


def _head(context: typer.Context) -> "pb.CheckpointMetadata":
    from statebed.inspect.records import record_at

    return record_at(_log(context), None)


def _offered(find: Callable[[], Iterable[str]], incomplete: str) -> list[str]:
    from statebed.errors import StatebedError

    try:
        return [name for name in find() if name.startswith(incomplete)]
    except (StatebedError, OSError, KeyError):
        return []
