"""A job to deploy: fares by driver and minute, from a folder of Parquet files to a table of Parquet files.

    python rides.py --input s3a://bucket/rides --output s3://bucket/minutes --state s3://bucket/state

Spark reads the input, and needs hadoop-aws for s3a://. State and table are read and written without it.

Its exit code is 86 if another run of the job took over: do not start it again then. After any other failure, do.
"""

import argparse

from pyspark.sql import SparkSession

import statebed as sb


def main() -> None:
    """Run the job until it is stopped."""
    parser = argparse.ArgumentParser(description="Fares by driver and minute.")
    parser.add_argument("--input", required=True, help="folder of Parquet files")
    parser.add_argument("--output", required=True, help="folder of the table")
    parser.add_argument("--state", required=True, help="where state is kept")
    parser.add_argument("--parallelism", type=int, default=4)
    parser.add_argument("--memory", default="2 GiB", help="memory for state per host")
    parser.add_argument("--cache-folder", default=None, help="folder on a local disk")
    parser.add_argument("--metrics-port", type=int, default=None, help="port of the Prometheus endpoint")
    parser.add_argument("--available-now", action="store_true", help="process what is there, then end")
    args = parser.parse_args()

    settings: dict[str, object] = {}
    if args.cache_folder is not None:
        settings["cache_folder"] = args.cache_folder
    if args.metrics_port is not None:
        settings |= {"metrics_port": args.metrics_port, "metrics_address": "0.0.0.0"}  # noqa: S104 - scraped from other pods
    spark = SparkSession.builder.appName("rides").getOrCreate()
    job = sb.Job(
        "rides", state=args.state, memory=args.memory, parallelism=args.parallelism, spark=spark, settings=settings
    )
    frame = spark.readStream.schema("driver string, fare double, ts timestamp").parquet(args.input)
    rides = job.source(frame, name="rides", watermark=("ts", "1 minute"))
    minutes = rides.group_by("driver", sb.tumbling("1 minute"), name="per_minute").agg(
        trips=sb.count(), fares=sb.sum("fare")
    )
    minutes.write("parquet", path=args.output, name="minutes")
    with sb.exit_codes():
        query = job.start(available_now=True) if args.available_now else job.start(processing_time="10 seconds")
        query.await_termination()


if __name__ == "__main__":
    main()
