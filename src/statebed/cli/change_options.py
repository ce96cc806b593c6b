"""Options shared by the commands that change state, and how a change is confirmed and reported."""

from typing import TYPE_CHECKING, Annotated

import typer

from statebed.cli import completion
from statebed.cli.confirmation import FENCES, confirm

if TYPE_CHECKING:
    from statebed.maintain import Through

TIMEOUT_S = 60.0

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
Offline = Annotated[
    bool,
    typer.Option(
        "--offline", help="Make the change in a separate run, which fences a live one; asks for confirmation (--yes)."
    ),
]
Timeout = Annotated[
    float,
    typer.Option(
        "--timeout", min=0.1, help="Seconds to wait for the live run, which answers when it commits an epoch."
    ),
]
SomeEpoch = Annotated[
    int | None,
    typer.Option("--epoch", min=1, help="Epoch to use; default: the newest.", autocompletion=completion.epochs),
]
SomeSavepoint = Annotated[
    str | None, typer.Option("--savepoint", help="Savepoint to use.", autocompletion=completion.savepoints)
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only print what would be done.")]
Memory = Annotated[str | None, typer.Option("--memory", help="Memory limit, e.g. 2g; default: STATEBED_MEMORY.")]


def through(*, offline: bool, yes: bool) -> "Through":
    from statebed.maintain import Through

    if not offline:
        return Through.LIVE_RUN
    confirm(f"{FENCES} Continue?", yes=yes)
    return Through.OWN_RUN


def say_changed(what: str, changed: object, *, json: bool) -> None:
    from statebed.cli import output, render_changes
    from statebed.maintain import CommittedChange

    if json:
        output.print_json(render_changes.as_json(changed))
    elif isinstance(changed, CommittedChange):
        output.say(render_changes.changed_line(what, changed))
