"""Compute features per customer, serve them from an online store, and read them offline as of any epoch."""

import argparse
import contextlib
import sqlite3
from pathlib import Path

import statebed as sb
from examples.features.job import FEATURES, features_job, follow
from examples.features.purchases import add_purchases


def main() -> None:
    """Add sample purchases, run the job and its follower, and look a customer up in both stores."""
    parser = argparse.ArgumentParser(prog="python -m examples.features", description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("features-demo"), help="input, state and online store")
    parser.add_argument("--customers", type=int, default=1_000)
    parser.add_argument("--files", type=int, default=3, help="new files of purchases, one hour each; 0 for none")
    parser.add_argument("--customer", default="customer-0", help="whose features are shown")
    arguments = parser.parse_args()

    folder, state = arguments.folder, arguments.folder / "state"
    added = add_purchases(folder / "purchases", customers=arguments.customers, files=arguments.files)
    job = features_job(folder / "purchases", state, folder / "history")
    job.start(available_now=True).await_termination()
    follow(state, folder / "online.db", folder / "follower", spark=job.spark)

    print(f"{added} new purchases")
    with contextlib.closing(sqlite3.connect(folder / "online.db")) as database:
        row = database.execute("select * from features where customer = ?", [arguments.customer]).fetchone()
        print("online: ", dict(zip(("customer", *FEATURES), row or (), strict=False)))
    for epoch in [entry.epoch for entry in job.checkpoints(limit=3) if entry.kind == "epoch"]:
        features = sb.read_state(str(state), operator="features", results=True, epoch=epoch)
        print(f"offline, epoch {epoch}:", features.keys(arguments.customer).to_arrow().to_pylist())


if __name__ == "__main__":
    main()
