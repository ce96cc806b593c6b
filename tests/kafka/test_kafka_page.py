"""The page docs/howto/kafka.md: its blocks run against a real broker, and print what the page says."""

import json
import os
import subprocess
import sys
from pathlib import Path

from docs.markdown import ROOT
from docs.test_code_blocks import RUNNER, steps
from kafka.server import Broker, class_path


def test_the_blocks_of_the_page_run(broker: Broker, tmp_path: Path) -> None:
    page = ROOT / "docs" / "howto" / "kafka.md"
    broker.new_topic(name="rides")
    jars = class_path("kafka-source", separator=",")
    done = subprocess.run(
        [sys.executable, str(RUNNER)],
        input=json.dumps(steps(page)),
        cwd=tmp_path,
        env={
            **os.environ,
            "KAFKA_SERVERS": broker.servers,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_SUBMIT_ARGS": f"--master local[2] --conf spark.ui.enabled=false --jars {jars} pyspark-shell",
        },
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-8000:]}"
