"""CREATE FUNCTION name AS 'module:function': Python functions that SQL text calls.

A module is imported from the folder of the text, or from the environment. Modules of that folder are sent to Spark's
workers as one archive, together with the modules of the folder that they import.
"""

import hashlib
import importlib
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from statebed.errors import InputError, error_text
from statebed.expressions import FUNCTIONS
from statebed.expressions.type_text import type_of
from statebed.expressions.user_functions import UserFunction
from statebed.queries.text.spark_errors import nearest
from statebed.spark.api.job import Job
from statebed.spark.java_classes import java_class
from statebed.sql.source_text import SqlText
from statebed.sql.statements import CreateFunction

_ZIP_TIME = (2026, 1, 1, 0, 0, 0)
"""Time of every entry of an archive, so that equal modules give equal archives."""


def create_function(job: Job, source: SqlText, statement: CreateFunction) -> None:
    """Register the function of a statement in a job and its Spark session; raise InputError at the place of a
    mistake.
    """
    name = statement.name.text
    _check_name(job, source, statement)
    folder = _folder_of(source)
    function = _loaded(source, statement, folder)
    returns = _result_type(source, statement)
    if returns is None and not isinstance(function, UserFunction):
        raise source.mistake(
            f"the function {statement.target} declares no type for its result",
            statement.target.span,
            fix=f"decorate it with @sb.udf(returns='double'), or write CREATE FUNCTION {name} RETURNS DOUBLE AS ...",
        )
    _ship(job.spark, statement.target.text.partition(":")[0], folder)
    try:
        job.register_function(name, function, returns=returns)
    except InputError as error:
        raise source.mistake(error.what, statement.name.span, fix=error.fix) from error


def _check_name(job: Job, source: SqlText, statement: CreateFunction) -> None:
    name = statement.name.text
    if name.lower() in job.graph.functions:
        raise source.mistake(
            f"there is a function {name!r} already", statement.name.span, fix="choose another name, or remove one"
        )
    # The catalogue also has functions that earlier jobs registered.
    known = java_class(job.spark, "org.apache.spark.sql.catalyst.analysis.FunctionRegistry").builtin()
    identifier = java_class(job.spark, "org.apache.spark.sql.catalyst.FunctionIdentifier")(name.lower())
    if name.lower() in FUNCTIONS or known.functionExists(identifier):
        raise source.mistake(
            f"{name!r} is a function of Spark SQL", statement.name.span, fix=f"choose another name, such as my_{name}"
        )


def _folder_of(source: SqlText) -> Path:
    """Return the folder of the file that the text comes from, or the working directory."""
    file = Path(source.name)
    return (file.parent if file.is_file() else Path.cwd()).resolve()


def _loaded(source: SqlText, statement: CreateFunction, folder: Path) -> Callable[..., Any]:
    """Import the function."""
    module_name, _, function_name = statement.target.text.partition(":")
    span = statement.target.span
    with _importable(folder):
        try:
            module = importlib.import_module(module_name)
        except Exception as error:
            is_absent = isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}.")
            what = (
                f"there is no module {error.name!r}"  # type: ignore[attr-defined]  # a ModuleNotFoundError
                if is_absent
                else f"the module {module_name!r} cannot be imported: {error_text(error)}"
            )
            fix = f"put {error.name}.py into {folder}, or install it" if is_absent else "correct the module"  # type: ignore[attr-defined]
            raise source.mistake(what, span, fix=fix) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        what = "has no function" if function is None else "has something that is not a function under the name"
        names = [name for name, value in vars(module).items() if _is_own_function(value, module_name)]
        raise source.mistake(
            f"the module {module_name!r} {what} {function_name!r}",
            span,
            fix=nearest(function_name, names, what="functions of the module"),
        )
    result: Callable[..., Any] = function
    return result


def _is_own_function(value: object, module: str) -> bool:
    function = value.function if isinstance(value, UserFunction) else value
    return callable(function) and getattr(function, "__module__", None) == module


def _result_type(source: SqlText, statement: CreateFunction) -> Any:
    """Return the type after RETURNS, or None."""
    if statement.returns is None:
        return None
    try:
        return type_of(statement.returns.text.lower(), where="RETURNS")
    except InputError as error:
        raise source.mistake(error.what, statement.returns.span, fix=error.fix) from error


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Let modules be imported from a folder, for the rest of the process: functions may import more when called."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    yield


def _ship(spark: SparkSession, module: str, folder: Path) -> None:
    """Send a module to Spark's workers, with all modules of its folder that are imported here; nothing if it is
    installed.
    """
    files = sorted(set(_local_files(folder)))
    top = module.partition(".")[0]
    if not any(name.partition("/")[0].removesuffix(".py") == top for name, _ in files):
        return
    contents = [(name, path.read_bytes()) for name, path in files]
    digest = hashlib.sha256()
    for name, content in contents:
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    context: Any = spark.sparkContext
    # Spark refuses a second file under a name that it has, so the name depends on the contents.
    archive = Path(context._temp_dir) / f"functions_{digest.hexdigest()[:16]}.zip"  # noqa: SLF001 - removed with Spark
    if archive.exists():
        return
    with zipfile.ZipFile(archive, "w") as written:
        for name, content in contents:
            written.writestr(zipfile.ZipInfo(name, _ZIP_TIME), content)
    context.addPyFile(str(archive))


def _local_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield path in the archive and file of every imported module of a folder, and whole packages."""
    for module in list(sys.modules.values()):
        name = getattr(module, "__file__", None)
        if not name or not name.endswith(".py"):
            continue
        path = Path(name).resolve()
        if not path.is_relative_to(folder) or "site-packages" in path.parts:
            continue
        relative = path.relative_to(folder)
        if getattr(module, "__name__", "").partition(".")[0] != relative.parts[0].removesuffix(".py"):
            continue
        if len(relative.parts) == 1:
            yield relative.name, path
            continue
        package = folder / relative.parts[0]
        yield from ((entry.relative_to(folder).as_posix(), entry) for entry in package.rglob("*.py"))
