"""The commands that check, mend and change state."""

import typer

app = typer.Typer()
