"""Runs when a Python process of Spark's tests starts: PySpark is imported from where it is installed.

Processes in which Spark plans data sources are not started by statebed, and would compile PySpark's sources each time.
"""

import contextlib
import sys

with contextlib.suppress(ImportError):  # tests also start Pythons without statebed
    from statebed.spark.installed_pyspark import prefer_installed

    prefer_installed(sys.path)
