"""Turn clicks into sessions in an Iceberg table. Run it again: it reads only the new clicks."""

import argparse
from pathlib import Path

import pyarrow.compute as pc

from examples.clickstream.clicks import add_clicks
from examples.clickstream.job import TABLE, sessions_job
from statebed.sinks.lake import folder_catalog


def main() -> None:
    """Add sample clicks, run the job until it has read them, and show some sessions."""
    parser = argparse.ArgumentParser(prog="python -m examples.clickstream", description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("clickstream-demo"), help="input, state and table")
    parser.add_argument("--users", type=int, default=2_000)
    parser.add_argument("--files", type=int, default=6, help="new files of clicks, two hours each; 0 for none")
    arguments = parser.parse_args()

    clicks, lake = arguments.folder / "clicks", arguments.folder / "lake"
    added = add_clicks(clicks, users=arguments.users, files=arguments.files)
    sessions_job(clicks, arguments.folder / "state", lake).start(available_now=True).await_termination()

    table = folder_catalog(str(lake)).load().load_table(TABLE)
    rows = table.scan().to_arrow()
    buyers = rows.filter(pc.field("bought") > 0).num_rows
    print(f"{added} new clicks; {rows.num_rows} sessions in {TABLE}, {buyers} with a purchase")
    for row in rows.sort_by([("clicks", "descending"), ("user_id", "ascending")]).slice(0, 3).to_pylist():
        print(f"  {row['user_id']}: {row['clicks']} clicks from {row['landing_page']} to {row['exit_page']}")


if __name__ == "__main__":
    main()
