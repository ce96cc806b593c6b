"""Entry point of `spark.read.format("statebed")`: Spark looks into packages named `pyspark_...` for a DefaultSource.

Spark imports this in every session that uses any Python data source, so what is missing here must not stop those.
"""

import contextlib

with contextlib.suppress(ImportError):
    from statebed.spark.api.state_source import StateSource as DefaultSource

__all__ = ["DefaultSource"]
