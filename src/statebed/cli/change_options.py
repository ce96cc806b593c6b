"""Options that the changing commands have in common, and how a change is asked for and told."""

from typing import TYPE_CHECKING, Annotated

import typer

from statebed.cli import completion
from statebed.cli.confirmation import FENCES, confirm

if TYPE_CHECKING:
    from statebed.maintain import Through

TIMEOUT_S = 60.0

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Offline = Annotated[
    bool,
    typer.Option("--offline", help="With a run of the tool's own, which fences the live one; asks first (--yes)."),
]
Timeout = Annotated[
    float,
    typer.Option("--timeout", min=0.1, help="Seconds to wait for the live run's answer, which comes with an epoch."),
]
SomeEpoch = Annotated[
    int | None,
    typer.Option("--epoch", min=1, help="This epoch; the newest if left out.", autocompletion=completion.epochs),
]
SomeSavepoint = Annotated[
    str | None, typer.Option("--savepoint", help="This savepoint.", autocompletion=completion.savepoints)
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]
Memory = Annotated[
    str | None, typer.Option("--memory", help="Most memory to use, e.g. 2g; as STATEBED_MEMORY if left out.")
]


def through(*, offline: bool, yes: bool) -> "Through":
    from statebed.maintain import Through

    if not offline:
        return Through.LIVE_RUN
    confirm(f"{FENCES} Go on?", yes=yes)
    return Through.OWN_RUN


def say_changed(what: str, changed: object, *, json: bool) -> None:
    from statebed.cli import output, render_changes
    from statebed.maintain import CommittedChange

    if json:
        output.print_json(render_changes.as_json(changed))
    elif isinstance(changed, CommittedChange):
        output.say(render_changes.changed_line(what, changed))
