"""Writes src/statebed/spark/analysed/function_classes.py: the function of each expression class of the installed Spark.

`python tests/function_classes.py` starts Spark and replaces the module.
"""

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from statebed.expressions import FUNCTIONS
from statebed.java import use_java

MODULE = Path(__file__).resolve().parents[1] / "src" / "statebed" / "spark" / "analysed" / "function_classes.py"
SYNTAX = {"and", "between", "div", "in", "like", "not", "or", "rlike", "window"}
"""Functions that are operators in SQL, or a shape of their own."""
HEAD = '''"""Functions of statebed's expressions by the class of their expression in Spark.

This module is generated from Spark's registry of functions by `python tests/function_classes.py`.
"""

FUNCTION_CLASSES = {
'''


def function_classes(session: SparkSession) -> dict[str, str]:
    """Return a function of statebed's expressions for each class that Spark registers for one.

    A name that a class is called after is preferred: `length`, not `char_length`, for `Length`.
    """
    jvm: Any = session._jvm
    catalog = session._jsparkSession.sessionState().catalog()
    names: dict[str, list[str]] = {}
    for (name,) in session.sql("show functions").collect():
        if name in FUNCTIONS and name.isidentifier() and name not in SYNTAX:
            info = catalog.lookupFunctionInfo(jvm.org.apache.spark.sql.catalyst.FunctionIdentifier(name))
            names.setdefault(str(info.getClassName()).rpartition(".")[2], []).append(str(name))
    return {
        kind: min(aliases, key=lambda alias: (alias.replace("_", "") != kind.lower(), alias))
        for kind, aliases in sorted(names.items())
        if not kind.endswith("Builder") and kind != "Cast"
    }


def module(classes: dict[str, str]) -> str:
    """Return the text of the module."""
    return HEAD + "".join(f'    "{kind}": "{name}",\n' for kind, name in classes.items()) + "}\n"


def main() -> None:
    use_java()
    session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    MODULE.write_text(module(function_classes(session)), encoding="utf-8")
    session.stop()


if __name__ == "__main__":
    main()
