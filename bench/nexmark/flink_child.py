"""The same SQL text on Flink: RocksDB, incremental checkpoints, two slots. Runs in Flink's own Python environment.

Arguments: the query, a folder with its SQL text, a folder with events (beside it, in `small`, lie some to warm up
with), a folder of its own, and jars, divided by semicolons. Flink runs inside this process tree. When it is warm, it
says so and waits for a line; then it prints the seconds that the job took, as JSON, and waits for a line again. Results
go to a sink that drops them: Flink's files take no changelogs.
"""

import json
import os
import re
import sys
from pathlib import Path

from pyflink.common import Configuration
from pyflink.table import EnvironmentSettings, TableEnvironment

COLUMNS = {
    "person": "id BIGINT, name STRING, email_address STRING, credit_card STRING, city STRING, state STRING, "
    "date_time TIMESTAMP_LTZ(3), extra STRING",
    "auction": "id BIGINT, item_name STRING, description STRING, initial_bid BIGINT, reserve BIGINT, "
    "date_time TIMESTAMP_LTZ(3), expires TIMESTAMP_LTZ(3), seller BIGINT, category BIGINT, extra STRING",
    "bid": "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, date_time TIMESTAMP_LTZ(3), "
    "extra STRING",
}
SETTINGS = {
    "parallelism.default": "2",
    "taskmanager.numberOfTaskSlots": "2",
    "taskmanager.memory.managed.size": "1g",
    "state.backend.type": "rocksdb",
    "execution.checkpointing.incremental": "true",
    "execution.checkpointing.interval": "1 s",
    # Rows are aggregated in small batches before they reach the state, which Flink recommends for throughput.
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.allow-latency": "1 s",
    "table.exec.mini-batch.size": "50000",
    "table.local-time-zone": "UTC",
}

_RESERVED = re.compile(r"\bAS (day|minute)\b")
"""Names that Flink takes for words of its own."""


def main() -> None:
    query, texts, events, own, jars = sys.argv[1], *map(Path, sys.argv[2:5]), sys.argv[5]
    says = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Flink logs to stdout
    settings = SETTINGS | {
        "pipeline.jars": ";".join(f"file://{jar}" for jar in jars.split(";")),
        "execution.checkpointing.dir": f"file://{own}/checkpoints",
        "io.tmp.dirs": str(own),
    }
    configuration = Configuration()
    for name, value in settings.items():
        configuration.set_string(name, value)
    text = _RESERVED.sub(r"AS `\1`", (texts / f"{query}.sql").read_text())
    for folder in (events.parent / "small", events):
        seconds = _run(configuration, text, folder)
        says.write(json.dumps({"seconds": seconds}) + "\n")
        says.flush()
        sys.stdin.readline()


def _run(configuration: Configuration, text: str, folder: Path) -> float:
    """Run the query over all files of a folder; the seconds that the job took."""
    tables = TableEnvironment.create(
        EnvironmentSettings.new_instance().in_streaming_mode().with_configuration(configuration).build()
    )
    for source in folder.iterdir():
        files = f"'connector' = 'filesystem', 'format' = 'parquet', 'path' = '{source}'"
        tables.execute_sql(f"CREATE TABLE {source.name} ({COLUMNS[source.name]}) WITH ({files})")
    job = tables.execute_sql(f"CREATE TABLE results WITH ('connector' = 'blackhole') AS {text}").get_job_client()
    milliseconds = job.get_job_execution_result().result().get_net_runtime()
    return float(milliseconds) / 1e3


if __name__ == "__main__":
    main()
