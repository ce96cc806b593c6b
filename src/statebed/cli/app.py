"""The `statebed` command with all its subcommands, grouped. Each subcommand imports its code when it runs, to keep
`--help` fast.
"""

from functools import cache
from typing import Annotated, Any

import typer

from statebed.cli.commands import changes, logs, pipelines, rows, serve, setup

PANELS = {
    "Look at state": (logs, rows, serve),
    "Check and change state": (changes,),
    "Run SQL": (pipelines,),
    "Set up and try": (setup,),
}
"""Groups of commands in the output of `--help`."""


def _show_in(panel: str, commands: typer.Typer) -> None:
    for command in commands.registered_commands:
        command.rich_help_panel = panel
    for group in commands.registered_groups:
        group.rich_help_panel = panel
        if group.typer_instance is not None and not isinstance(
            group.name, str
        ):  # an unnamed group adds its commands to the app itself
            _show_in(panel, group.typer_instance)


app = typer.Typer(
    help="State you can SELECT: checkpointed operator state for Spark and Python, kept as plain Parquet.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for panel, parts in PANELS.items():
    for part in parts:
        _show_in(panel, part.app)
        app.add_typer(part.app)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"statebed {version('statebed')}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    context.obj.debug = debug


@cache
def command() -> Any:
    """Return the command with all its subcommands; calling `app` would build them again each time."""
    return typer.main.get_command(app)
