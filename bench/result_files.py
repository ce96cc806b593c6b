"""Results of benchmarks in files: rounds of one command, with the machine and the versions that they were measured on.

`python -m bench NAME --rounds 3 --save` writes `bench/results/NAME.json`; `make bench-docs` writes the pages from it.
With `--case`, results of other cases stay in the file, and a remark lists them.
"""

import itertools
import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bench.report import Figure, Result

FOLDER = Path(__file__).parent / "results"
PACKAGES = ("statebed", "pyarrow", "numpy", "numba", "duckdb", "pandas", "pyspark", "rocksdict", "lmdb")


@dataclass(frozen=True)
class Measured:
    """Rounds of one benchmark."""

    benchmark: str
    command: str
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    rounds: Sequence[Sequence[Mapping[str, Any]]]
    """Results and figures of each round; a round may lack some of them."""
    remark: str = ""


def machine() -> dict[str, str]:
    """Describe this machine, without anything that identifies it."""
    return {
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / (1 << 30):.0f} GiB",
        "system": f"{platform.system()} {platform.machine()}",
        "load": f"{os.getloadavg()[1]:.0f}",
    }


def versions() -> dict[str, str]:
    """Return the versions of Python and of what is measured."""
    result = {"Python": platform.python_version()}
    for name in PACKAGES:
        try:
            result[name] = version(name)
        except PackageNotFoundError:
            continue
    return result


def save(name: str, rounds: Sequence[Sequence[Result | Figure]], *, only: str = "", folder: Path = FOLDER) -> Path:
    """Write the rounds of a benchmark to its file; with `only` some cases, keep those of others that it has."""
    command = " ".join(["python -m bench", *(word for word in sys.argv[1:] if word not in {"--save", "--json"})])
    kept = [[asdict(result) for result in results] for results in rounds]
    measured = Measured(name, command, machine(), versions(), kept)
    path = folder / f"{name}.json"
    if only and path.exists():
        measured = with_other_cases(measured, _read(path))
    return write(measured, folder)


def with_other_cases(measured: Measured, earlier: Measured) -> Measured:
    """Return new results, and earlier ones of cases that were not measured again, in the order of the earlier ones."""
    new = _cases(measured)
    others = [case for case in _cases(earlier) if case not in new]
    order = {case: place for place, case in enumerate(dict.fromkeys([*_cases(earlier), *new]))}
    rounds = [
        sorted(
            [*(result for result in old if result["case"] in others), *fresh], key=lambda result: order[result["case"]]
        )
        for old, fresh in itertools.zip_longest(earlier.rounds, measured.rounds, fillvalue=())
    ]
    remark = f"From earlier runs: {', '.join(others)}." if others else ""
    return replace(measured, rounds=rounds, remark=remark)


def _cases(measured: Measured) -> list[str]:
    """Return the names of the cases, each once."""
    return list(dict.fromkeys(str(result["case"]) for results in measured.rounds for result in results))


def write(measured: Measured, folder: Path = FOLDER) -> Path:
    """Write results to a file named after the benchmark."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{measured.benchmark}.json"
    path.write_text(json.dumps(asdict(measured), indent=1) + "\n")
    return path


def read(folder: Path = FOLDER) -> list[Measured]:
    """Return the results of all files, by name."""
    return [_read(path) for path in sorted(folder.glob("*.json"))]


def _read(path: Path) -> Measured:
    return Measured(**json.loads(path.read_text()))


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.partition(":")[2].strip() for line in lines if line.lower().startswith("model name")]
    return names[0] if names else platform.machine()
