"""Deduplicate readings of many devices with a small memory budget, and show how much of it was used."""

import argparse
from pathlib import Path

import statebed as sb
from examples.devices.job import devices_job
from examples.devices.readings import add_readings

MIB = 1 << 20


def main() -> None:
    """Add sample readings, run the job until it has read them, and print counts and memory of every epoch."""
    parser = argparse.ArgumentParser(prog="python -m examples.devices", description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("devices-demo"), help="input, state and results")
    parser.add_argument("--devices", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=4, help="new files, with a reading of every device; 0 for none")
    parser.add_argument("--memory", default="256m", help="budget of the job on this machine")
    arguments = parser.parse_args()

    readings, out = arguments.folder / "readings", arguments.folder / "out"
    added = add_readings(readings, devices=arguments.devices, rounds=arguments.rounds)
    query = devices_job(readings, arguments.folder / "state", out, memory=arguments.memory).start(available_now=True)
    query.await_termination()

    for epoch in query.recent_progress:
        for host in epoch.figures.hosts:
            print(
                f"epoch {epoch.epoch}: {epoch.rows_in} readings, {epoch.rows_out} new; {epoch.state_rows} remembered, "
                f"state memory {host.peak_bytes / MIB:.0f} of {host.budget_bytes / MIB:.0f} MiB per worker, "
                f"{epoch.duration_us / 1e6:.1f} s"
            )
    print(f"{added} readings sent, {sb.read_table(str(out)).num_rows} in the table, each once")


if __name__ == "__main__":
    main()
