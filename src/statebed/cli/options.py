"""Arguments and options shared by several commands, so that they read the same everywhere."""

from typing import Annotated

import typer

from statebed.cli import completion

DEFAULT_STATE = "statebed-state"

State = Annotated[
    str, typer.Argument(help="State location: a folder or URL, e.g. demo-state/state, s3://bucket/state.")
]
Job = Annotated[str, typer.Argument(help="Name of the job.", autocompletion=completion.jobs)]
OptionalJob = Annotated[
    str | None,
    typer.Argument(help="Name of the job; optional if there is only one.", autocompletion=completion.jobs),
]
Operator = Annotated[
    str | None,
    typer.Option(
        "--operator",
        "-o",
        help="Name of the operator; optional if there is only one.",
        autocompletion=completion.operators,
    ),
]
Table = Annotated[
    str | None,
    typer.Option(
        "--table", "-t", help="Name of the table; optional if there is only one.", autocompletion=completion.tables
    ),
]
Epoch = Annotated[
    int | None,
    typer.Option(
        "--epoch",
        min=1,
        help="Read the state at this epoch; default: the newest.",
        autocompletion=completion.epochs,
    ),
]
Savepoint = Annotated[
    str | None,
    typer.Option("--savepoint", help="Read the state of this savepoint.", autocompletion=completion.savepoints),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
