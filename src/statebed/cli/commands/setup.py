"""Commands to set up and try statebed: doctor, config, pack, demo, bench."""

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from statebed.cli.options import DEFAULT_STATE, Json
from statebed.present import units

DEMO_STATE = "demo-state"
DEMO_FILES = 12
DEMO_KILLS = 3

app = typer.Typer()


@app.command()
def doctor(
    state: Annotated[str, typer.Option("--state", help="State location to check: a folder or URL.")] = DEFAULT_STATE,
    json: Json = False,
) -> None:
    """Check Java, Python, packages, disk and memory, and whether the state location supports commits."""
    from statebed.cli import output
    from statebed.cli.doctor import Verdict, examine
    from statebed.cli.render import check_line

    console = output.console()
    checks = []
    for check in examine(state):
        checks.append(check)
        if not json:
            console.print(check_line(check))
    failed = [check.name for check in checks if check.verdict is Verdict.FAIL]
    if json:
        listed = [{**dataclasses.asdict(check), "verdict": check.verdict.value} for check in checks]
        output.print_json({"ok": not failed, "checks": listed})
    else:
        console.print(f"failed: {', '.join(failed)}" if failed else "statebed can run here")
    raise typer.Exit(1 if failed else 0)


@app.command("config")
def show_config(json: Json = False) -> None:
    """Show every setting with its value and origin."""
    import os

    from statebed.cli import output
    from statebed.cli.config_table import setting_lines, store_lines

    settings, stores = setting_lines(os.environ, Path.cwd()), store_lines(os.environ)
    if json:
        listed = {"settings": settings, "stores": stores}
        output.print_json({name: [dataclasses.asdict(line) for line in lines] for name, lines in listed.items()})
        return
    rows = [(line.name, line.value, line.source, line.meaning) for line in settings]
    output.print_table(
        output.table("settings", ("setting", "value", "from", "meaning"), rows), (), expendable=("meaning",)
    )
    if stores:
        output.print_table(
            output.table("stores", ("variable", "value"), [(line.name, line.value) for line in stores]), ()
        )


@app.command()
def pack(
    output: Annotated[
        Path | None, typer.Argument(help="Archive to write; default: statebed-env.tar.gz or statebed.zip.")
    ] = None,
    only_statebed: Annotated[
        bool, typer.Option("--only-statebed", help="Pack only statebed, for executors that have its dependencies.")
    ] = False,
    json: Json = False,
) -> None:
    """Create an archive to ship to executors that lack statebed."""
    from statebed.cli import output as printed
    from statebed.cli import pack as packing

    if only_statebed:
        archive = packing.pack_code(output or Path(f"statebed{packing.CODE_SUFFIX}"))
    else:
        archive = packing.pack_environment(output or Path(f"{packing.FOLDER}{packing.ENVIRONMENT_SUFFIX}"))
    if json:
        printed.print_json({"path": str(archive.path), "packages": archive.packages, "usage": archive.usage})
        return
    typer.echo(f"{archive.path}: {units.size(archive.path.stat().st_size)}, {', '.join(archive.packages)}\n")
    typer.echo("\n".join(archive.usage))


@app.command()
def demo(
    state: Annotated[
        str, typer.Option("--state", help="Folder for the demo's events, state and results.")
    ] = DEMO_STATE,
    files: Annotated[
        int | None,
        typer.Option(
            "--files", min=1, help=f"Number of event files to generate, one epoch each; default: {DEMO_FILES}."
        ),
    ] = None,
    events: Annotated[int, typer.Option("--events", min=50, help="Number of events in each file.")] = 50_000,
    crash: Annotated[
        bool, typer.Option("--crash", help="Kill the job in mid-epoch, restart it, and compare the result.")
    ] = False,
    kills: Annotated[
        int | None, typer.Option("--kills", min=1, help=f"With --crash: number of kills; default: {DEMO_KILLS}.")
    ] = None,
) -> None:
    """Run a Nexmark job on local Spark. A second run resumes where the first ended."""
    if crash and files is not None:
        raise typer.BadParameter("--crash makes as many files as it needs", param_hint="--files")
    if kills is not None and not crash:
        raise typer.BadParameter("give --crash too", param_hint="--kills")
    from statebed.cli.extras import require

    require("spark", "duckdb")
    from statebed.cli import demo as shown
    from statebed.demo.job import DemoFolder
    from statebed.java import use_java

    folder = DemoFolder.at(state)
    use_java()
    if crash:
        raise typer.Exit(0 if shown.show_crash(folder, kills=kills or DEMO_KILLS, events_per_file=events) else 1)
    shown.show_run(folder, files=files or DEMO_FILES, events_per_file=events)


@app.command(context_settings={"ignore_unknown_options": True})
def bench(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(help="Benchmark (engine, memory, operators, process, spark, subtask) and its options."),
    ] = None,
) -> None:
    """Run the benchmarks of a source checkout, e.g. `statebed bench engine --quick --json`."""
    from statebed.cli import bench as benchmarks

    raise typer.Exit(benchmarks.run(arguments or ["--help"]))
