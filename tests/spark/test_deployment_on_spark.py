"""The program and the entrypoint of deploy/, on the Spark that is installed."""

import datetime as dt
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyspark
import pytest

ROOT = Path(__file__).parents[2]
ENTRYPOINT = ROOT / "deploy" / "entrypoint.sh"
SPARK_HOME = Path(pyspark.__file__).parent


def test_the_executor_of_this_spark_takes_the_options_that_the_entrypoint_passes() -> None:
    java = shutil.which("java", path=f"{os.environ.get('JAVA_HOME', '')}/bin:{os.environ['PATH']}")
    assert java is not None
    command = [java, "-cp", f"{SPARK_HOME}/jars/*", "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"]
    shown = subprocess.run([*command, "--no-such-option"], capture_output=True, text=True, check=False).stderr
    known = set(re.findall(r"--[A-Za-z-]+", shown))
    passed = set(re.findall(r"^ +(--[A-Za-z-]+) ", ENTRYPOINT.read_text("utf-8"), flags=re.MULTILINE)) - {"--conf"}
    assert "--driver-url" in passed
    assert passed <= known


@pytest.mark.long
def test_the_program_runs_through_the_entrypoint(tmp_path: Path) -> None:
    start = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    rides = pa.table(
        {
            "driver": [f"d{number % 3}" for number in range(60)],
            "fare": [float(number) for number in range(60)],
            "ts": pa.array([start + dt.timedelta(seconds=10 * number) for number in range(60)]),
        }
    )
    (tmp_path / "rides").mkdir()
    pq.write_table(
        rides.cast(pa.schema([("driver", "string"), ("fare", "double"), ("ts", pa.timestamp("us", "UTC"))])),
        tmp_path / "rides" / "0.parquet",
    )
    where = {
        name: f"--{name}={tmp_path / folder}"
        for name, folder in (("input", "rides"), ("output", "minutes"), ("state", "state"))
    }
    environment = os.environ | {
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_DRIVER_BIND_ADDRESS": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    command = [
        str(ENTRYPOINT),
        "driver",
        "--master",
        "local[2]",
        "--conf",
        "spark.ui.enabled=false",
        str(ROOT / "deploy" / "rides.py"),
        *where.values(),
        "--memory=256 MiB",
        "--available-now",
        f"--cache-folder={tmp_path / 'cache'}",
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    written = pa.concat_tables([pq.read_table(path) for path in (tmp_path / "minutes").rglob("*.parquet")])
    closed = rides.filter(pc.less(rides["ts"], start + dt.timedelta(minutes=8)))  # watermark: 08:50
    assert pc.sum(written["trips"]) == pa.scalar(closed.num_rows)
    assert pc.sum(written["fares"]) == pc.sum(closed["fare"])
