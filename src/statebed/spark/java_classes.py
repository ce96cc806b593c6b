"""Classes of the JVM by name, each looked up once.

For a name, Py4J tries every package that PySpark imports, and each attempt searches all jars: a millisecond of
processor time. PySpark looks up a few names again for every step of a DataFrame, which was an eighth of the work of the
JVM at the start of a job. What is an attribute of Py4J's view of the JVM is not looked up.
"""

from typing import Any

from py4j.java_gateway import JavaClass
from pyspark import SparkContext
from pyspark.sql import SparkSession

_OF_PYSPARK = (
    "PythonErrorUtils",
    "PythonForeachBatchHelper",
    "PythonRDD",
    "PythonSQLUtils",
    "PythonUtils",
    "SimplePythonFunction",
    "functions",
    "org.apache.spark.SparkThrowableHelper",
    "org.apache.spark.sql.catalyst.trees.PySparkCurrentOrigin",
    "org.apache.spark.sql.classic.SparkSession",
    "org.apache.spark.sql.classic.SparkSession$",
    "org.apache.spark.sql.functions",
    "org.apache.spark.sql.internal.SQLConf",
    "org.apache.spark.sql.streaming.Trigger",
    "org.apache.spark.util.Utils",
)
"""Names that PySpark looks up for each expression, step, query, task or error."""


def java_class(of: SparkSession | SparkContext, name: str) -> Any:
    """Return the class of this full name in the JVM of a session or context."""
    view: Any = of._jvm  # noqa: SLF001 - no public way to ask for a class
    known = vars(view)
    if name in known:
        return known[name]
    answer = getattr(view, name)
    if isinstance(answer, JavaClass):  # a name without a class may be imported later
        known[name] = answer
    return answer


def remember_classes(session: SparkSession) -> None:
    """Look up the classes that PySpark needs again and again; it finds them from then on without asking the JVM."""
    for name in _OF_PYSPARK:
        java_class(session, name)
    view: Any = session._jvm  # noqa: SLF001 - no public way to ask for a class
    if "py4j" not in vars(view):
        # PySpark goes from package to package to this class, for each kind of error that an error of the JVM may be.
        package = view.py4j
        package.reflection = package.reflection
        package.reflection.TypeUtil = package.reflection.TypeUtil
        view.py4j = package
