"""The commands that serve state to a browser."""

import typer

app = typer.Typer()
