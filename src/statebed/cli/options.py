"""Arguments and options that several commands have, so that they read the same everywhere."""

from typing import Annotated

import typer

DEFAULT_STATE = "statebed-state"

State = Annotated[
    str, typer.Argument(help="A folder or URL that holds state, e.g. demo-state/state, s3://bucket/state.")
]
Job = Annotated[str, typer.Argument(help="The job.")]
OptionalJob = Annotated[str | None, typer.Argument(help="The job; may be left out where there is one.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
