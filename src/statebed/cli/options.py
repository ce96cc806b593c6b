"""Arguments and options that several commands have, so that they read the same everywhere."""

from typing import Annotated

import typer

from statebed.cli import completion

DEFAULT_STATE = "statebed-state"

State = Annotated[
    str, typer.Argument(help="A folder or URL that holds state, e.g. demo-state/state, s3://bucket/state.")
]
Job = Annotated[str, typer.Argument(help="The job.", autocompletion=completion.jobs)]
OptionalJob = Annotated[
    str | None,
    typer.Argument(help="The job; may be left out where there is one.", autocompletion=completion.jobs),
]
Operator = Annotated[
    str | None,
    typer.Option(
        "--operator",
        "-o",
        help="The operator; may be left out where there is one.",
        autocompletion=completion.operators,
    ),
]
Table = Annotated[
    str | None,
    typer.Option(
        "--table", "-t", help="The table; may be left out where there is one.", autocompletion=completion.tables
    ),
]
Epoch = Annotated[
    int | None,
    typer.Option(
        "--epoch",
        min=1,
        help="The state at this epoch; the newest if left out.",
        autocompletion=completion.epochs,
    ),
]
Savepoint = Annotated[
    str | None,
    typer.Option("--savepoint", help="The state of this savepoint.", autocompletion=completion.savepoints),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
