"""`statebed bench` runs the benchmarks of a source checkout. They need other state stores, which an installation of
statebed does not include.
"""

import subprocess
import sys
from pathlib import Path

import statebed
from statebed.errors import InputError

PROJECT = 'name = "statebed"'


def run(arguments: list[str]) -> int:
    """Run `python -m bench` in the checkout and return its exit code."""
    root = find(Path.cwd(), Path(statebed.__file__).resolve().parents[2])
    if root is None:
        raise InputError(
            "the benchmarks are part of the source distribution and are not installed",
            where=str(Path(statebed.__file__).parent),
            fix="unpack the source distribution (pip download --no-binary statebed --no-deps statebed) or a checkout, "
            'and run there: make bench BENCH="engine --quick"',
        )
    done = subprocess.run([sys.executable, "-m", "bench", *arguments], cwd=root, check=False)  # noqa: S603 - our own
    return done.returncode


def find(*places: Path) -> Path | None:
    """Return the first of these folders that is a checkout with benchmarks, or None."""
    for place in places:
        project = place / "pyproject.toml"
        if (place / "bench" / "__main__.py").is_file() and project.is_file() and PROJECT in project.read_text():
            return place
    return None
