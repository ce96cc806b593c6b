"""The public names of `statebed`: what completion shows, examples in docstrings that run, and types of parameters."""

import ast
import doctest
import inspect
import subprocess
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import statebed as sb
import statebed.spark
from statebed.expressions.type_text import schema_of
from statebed.flow.grouped import GroupedStream, KeyedStream
from statebed.flow.stream import Stream
from statebed.spark.api.stream import JobStream, Transformed
from statebed.testing import TestRun

WITH_SPARK = {"Query", "explain", "read_table", "stream", "table_files", "write_stream"}
"""Names whose examples need a job on Spark: tests/spark/test_public_examples.py runs them."""
MODULES = {"testing"}


def test_completion_shows_the_public_names_and_nothing_else() -> None:
    assert dir(sb) == sorted(sb.__all__)
    assert {"Job", "Query", "read_state"} <= set(dir(sb))


@pytest.mark.parametrize("name", sorted(set(sb.__all__) - WITH_SPARK - MODULES))
def test_every_public_name_has_an_example_that_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    public = getattr(sb, name)
    finder = doctest.DocTestFinder(recurse=False)
    (example,) = finder.find(public, name, globs={"sb": sb, public.__name__: public})
    assert example.examples, f"sb.{name} has no example in its docstring"
    assert doctest.DocTestRunner().run(example).failed == 0


ANYTHING = {
    "GroupedStream.agg: emit": "a type checker must accept agg(**aggregates) of a dict",
    "GroupedStream.agg: allowed_lateness": "as emit",
    "KeyedStream.agg: ttl": "as emit",
    "KeyedStream.agg: ttl_clock": "as emit",
    "ProcessKey.on_key_timer: key": "a value of a key column",
    "ProcessKey.on_rows: key": "a value of a key column",
    "ProcessKey.on_rows: rows": "a list or a DataFrame, which the subclass declares",
    "StateDiff.keys: keys": "values of key columns",
    "StateTable.keys: keys": "values of key columns",
    "lag: default": "a value of the column",
    "lead: default": "a value of the column",
}
"""Parameters that take any value, and why."""


def public_functions() -> Iterator[tuple[str, typing.Any]]:
    """Yield public functions, and the public methods of public classes and of those that they return."""
    classes = [Stream, GroupedStream, KeyedStream, JobStream, Transformed, TestRun]
    for name in set(sb.__all__) - MODULES:
        public = getattr(sb, name)
        if inspect.isclass(public):
            classes.append(public)
        elif callable(public):
            yield name, public
    for one in set(classes):
        for name in dir(one):
            member = inspect.getattr_static(one, name)
            function = getattr(member, "__func__", member)
            own = inspect.isfunction(function) and function.__module__.startswith("statebed")
            if own and (name == "__init__" or not name.startswith("_")):
                yield f"{one.__name__}.{name}", function


def test_only_parameters_that_take_any_value_are_typed_any() -> None:
    found = set()
    for name, function in public_functions():
        for parameter in inspect.signature(function).parameters.values():
            annotation = parameter.annotation
            union = isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union
            if typing.Any in (typing.get_args(annotation) if union else (annotation,)):
                found.add(f"{name}: {parameter.name}")
    assert found == set(ANYTHING)


def test_a_source_of_a_job_takes_the_arguments_of_a_source_of_a_flow() -> None:
    of_flow, of_job = (list(inspect.signature(one.source).parameters.values()) for one in (sb.Flow, sb.Job))
    shapes = [[(one.kind, one.default) for one in parameters] for parameters in (of_flow, of_job)]
    assert shapes[0] == shapes[1]
    # The first is what the rows are described by: columns or a DataFrame.
    assert [one.name for one in of_flow[2:]] == [one.name for one in of_job[2:]]


COLUMNS = "driver string, ts timestamp"


@pytest.mark.parametrize("columns", [COLUMNS, "driver:string, ts:timestamp", schema_of(COLUMNS)], ids=str)
def test_a_source_takes_its_name_before_or_after_its_columns(columns: str | pa.Schema) -> None:
    for arguments in (("rides", columns), (columns, "rides")):
        flow = sb.Flow()
        assert flow.source(*arguments, watermark=("ts", "1 minute")).columns == ["driver", "ts"]
        assert list(flow.graph.sources) == ["rides"]
    named, unnamed = sb.Flow(), sb.Flow()
    named.source(name="rides", columns=columns)
    unnamed.source(columns)
    assert (list(named.graph.sources), list(unnamed.graph.sources)) == (["rides"], ["source"])


LOADED = """
import sys
{statement}
print(*sorted(name for name in sys.modules if name.partition(".")[0] in {{"statebed", "pyspark", "numpy", "pyarrow"}}))
"""


@pytest.mark.parametrize(
    ("statement", "most"),
    [
        ("import statebed", 2),
        ("import statebed.spark", 3),
        ("import statebed.cli.app", 30),
    ],
)
def test_a_name_is_loaded_when_it_is_first_used(statement: str, most: int) -> None:
    printed = subprocess.run(
        [sys.executable, "-c", LOADED.format(statement=statement)], check=True, capture_output=True, text=True
    )
    loaded = printed.stdout.split()
    assert len(loaded) <= most, loaded
    assert all(name.startswith("statebed") for name in loaded)


def test_type_checkers_see_the_names_that_are_loaded() -> None:
    for package in (sb, statebed.spark):
        source = ast.parse(inspect.getsource(package))
        (checked,) = [node for node in source.body if isinstance(node, ast.If)]
        imported = {
            alias.name: node.module
            for node in checked.body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
            if alias.name not in {"*", "functions", "testing"}
        }
        assert {name: _written(package, module) for name, module in package._MODULE_OF.items()} == imported


def _written(package: types.ModuleType, module: str) -> str:
    return module if package is sb else f"{package.__name__}.{module}"
