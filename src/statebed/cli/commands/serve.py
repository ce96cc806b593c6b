"""Commands that serve state to a browser."""

import sys
from typing import Annotated

import typer

app = typer.Typer()

DEFAULT_PORT = 8766


@app.command()
def ui(
    state: Annotated[
        str, typer.Argument(help="State location: a folder or URL, e.g. demo-state/state, s3://bucket/state.")
    ] = "statebed-state",
    *,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0 picks a free one.")
    ] = DEFAULT_PORT,
    open_browser: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the page in a browser if there is a display.")
    ] = True,
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", help="Additional host name under which the dashboard is reached."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the address as one JSON document.")] = False,
) -> None:
    """Show jobs, epochs and tables in a browser, live while a job runs. Read-only."""
    from statebed.cli.extras import require

    require("ui")
    from statebed.cli import output
    from statebed.ui import is_loopback, serve

    if not is_loopback(host):
        typer.echo(
            f"warning: the dashboard has no password; anyone who can reach {host} can read the state",
            err=True,
        )

    def ready(address: str) -> None:
        if json:
            output.print_json({"url": address, "state": state})
            sys.stdout.flush()  # the process that started it waits for this line
        else:
            typer.echo(f"statebed ui: {address} (state at {state}; press Ctrl-C to stop)")

    serve(state, host=host, port=port, allowed_hosts=allow_host or (), ready=ready, open_browser=open_browser)
