"""A job on Spark that commits two epochs and fails in the third: `python failing_job.py FOLDER`."""

import datetime as dt
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

import statebed as sb

START = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)


def write_rides(folder: Path, files: int = 4, rows: int = 400) -> None:
    folder.mkdir(parents=True)
    for number in range(files):
        times = [START + dt.timedelta(minutes=number, seconds=row % 60) for row in range(rows)]
        table = pa.table({"driver": [f"driver {row % 37}" for row in range(rows)], "ts": times})
        pq.write_table(table, folder / f"{number}.parquet")


def send_mail(df: DataFrame, epoch: int) -> None:
    if epoch > 3:
        addresses: dict[str, str] = {}
        df.foreach(print)
        addresses["driver 7"].upper()


def main() -> None:
    folder = Path(sys.argv[1])
    write_rides(folder / "in")
    job = sb.Job("rides", state=folder / "state", parallelism=2)
    reader = job.spark.readStream.schema("driver string, ts timestamp").option("maxFilesPerTrigger", 1)
    rides = job.source(reader.parquet(str(folder / "in")), name="rides", watermark=("ts", "10 seconds"))
    per_minute = rides.group_by("driver", sb.tumbling("1 minute"), name="per_minute").agg(trips=sb.count())
    per_minute.write("parquet", path=str(folder / "out"), name="minutes")
    per_minute.write(send_mail, name="mail")
    with sb.exit_codes():
        job.start(available_now=True).await_termination(300)


if __name__ == "__main__":
    main()
