"""A driver of the job of rides on a cluster, with the given Python and archive.

python packed_driver.py FOLDER MASTER ARCHIVE PY_FILE    ("-" for none; PYSPARK_PYTHON is the executors' Python)
"""

import importlib.util
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import statebed as sb


def main() -> None:
    folder, master, archive, py_file = sys.argv[1:]
    spec = importlib.util.spec_from_file_location("rides_world", Path(__file__).with_name("conftest.py"))
    assert spec is not None
    assert spec.loader is not None
    world = importlib.util.module_from_spec(spec)
    sys.modules["rides_world"] = world
    spec.loader.exec_module(world)
    builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.executor.memory", "512m")
    if archive != "-":
        builder = builder.config("spark.archives", archive)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    if py_file != "-":
        spark.sparkContext.addPyFile(py_file)
    job = world.Rides(spark, Path(folder)).job()
    with sb.exit_codes():
        job.start(available_now=True).await_termination(200)


if __name__ == "__main__":
    main()
