"""Imports point downwards only, and the core needs neither Spark nor Java."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from architecture.source_facts import facts_of

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
LAYERS = [
    "errors",
    "argument_checks",
    "logs",
    "java",
    "quantities",
    "present",
    "arrays",
    "format",
    "storage",
    "expressions",
    "aggregates",
    "protocol",
    "checkpoint",
    "state",
    "operators",
    "subtasks",
    "inspect",
    "flow",
    "testing",
    "sinks",
    "config",
    "maintain",
    "metrics",
    "sql",
    "spark",
    "queries",
    "ui",
    "demo",
    "cli",
]
"""Layers from the lowest to the highest; a module imports from its own layer and lower ones."""
INNER_LAYERS = {
    "state": [
        "memory",
        "tiers",
        "host_cache",
        "live",
        "evolution",
        "global_keyed",
        "keyed",
        "time_keyed",
        "manager",
    ],
    "operators": ["updating", "windows", "joins", "process", "finished_results"],
    "spark": ["plan", "analysed", "scan", "checkpoint", "probe", "compaction", "epoch", "api"],
}
"""Parts of the large packages, in the same order. Modules beside them are shared: they import none of these parts."""
SHARED = "(shared)"
FREE_TO_IMPORT = {"state"}
"""Packages whose shared modules define interfaces of the parts, and may import them."""
PUBLIC = "statebed"
"""The package itself: its exports come from everywhere, so only the layers above all others may import it."""
CORE = LAYERS[: LAYERS.index("spark")]
WITH_SPARK = {"spark", "queries", "ui", "demo", "cli", PUBLIC}
MODULES = sorted(path for path in (SOURCE / "statebed").rglob("*.py") if not path.name.endswith("_pb2.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else PUBLIC


def test_every_module_belongs_to_a_layer() -> None:
    found = {layer_of(module_name(path)) for path in MODULES}
    assert {"errors", "format", "storage"} <= found
    assert found <= {*LAYERS, PUBLIC}


def test_imports_point_downwards_only() -> None:
    wrong = [line for path in MODULES for line in upward_imports(path)]
    assert not wrong, "\n".join(wrong)


def upward_imports(path: Path) -> Iterator[str]:
    layer = layer_of(module_name(path))
    allowed = {*LAYERS, PUBLIC} if layer == PUBLIC else set(LAYERS[: LAYERS.index(layer) + 1])
    if layer in {"demo", "cli"}:
        allowed |= {PUBLIC}
    for line, name in facts_of(path).imports:
        if name.split(".")[0] == "statebed":
            target = layer_of(name)
            target = target if target in LAYERS else PUBLIC
            if target not in allowed:
                yield f"{path.relative_to(ROOT)}:{line}: {layer} imports {name}"


@pytest.mark.parametrize("package", INNER_LAYERS)
def test_parts_of_a_package_import_downwards_only(package: str) -> None:
    order = [SHARED, *INNER_LAYERS[package]]
    modules = [path for path in MODULES if layer_of(module_name(path)) == package and module_name(path).count(".") > 1]
    assert {part_of(module_name(path), order) for path in modules} >= set(INNER_LAYERS[package])
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {part} imports {name}"
        for path in modules
        if (part := part_of(module_name(path), order)) != SHARED or package not in FREE_TO_IMPORT
        for line, name in facts_of(path).imports
        if name.startswith(f"statebed.{package}.") and order.index(part_of(name, order)) > order.index(part)
    ]
    assert not wrong, "\n".join(wrong)


def part_of(module: str, order: list[str]) -> str:
    name = module.split(".")[2]
    return name if name in order else SHARED


def test_only_the_layers_above_the_core_import_pyspark() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: imports {name}"
        for path in MODULES
        if layer_of(module_name(path)) not in WITH_SPARK
        for line, name in facts_of(path).imports
        if name.split(".")[0] in {"pyspark", "py4j"}
    ]
    assert not wrong, "\n".join(wrong)


BLOCKED = """
import importlib, sys

EXTRAS = "pyspark py4j pandas duckdb polars typer rich psycopg starlette uvicorn jinja2 prometheus_client opentelemetry"

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in EXTRAS.split():
            raise ModuleNotFoundError(f"{name} is blocked", name=name)

sys.meta_path.insert(0, Block())
for name in sys.argv[1:]:
    importlib.import_module(name)
print("imported", len(sys.argv) - 1)
"""


def test_the_core_is_imported_without_java_pyspark_and_extras() -> None:
    core = [module_name(path) for path in MODULES if layer_of(module_name(path)) in {*CORE, PUBLIC}]
    child = subprocess.run(
        [sys.executable, "-c", BLOCKED, *core],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={"PATH": "/nonexistent", "PYTHONPATH": str(SOURCE)},
    )
    assert child.returncode == 0, child.stderr
    assert child.stdout.strip() == f"imported {len(core)}"
