"""Build the packages of a release, check them as a user would get them, and print what is left to do.

    python scripts/release.py            everything
    python scripts/release.py --quick    without the tutorial, which needs Java

Nothing is uploaded or tagged. The wheel is installed into an empty environment, outside of the checkout, and the
tutorial is run there: what works only in a checkout fails here.
"""

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
DIST = ROOT / "artifacts" / "dist"
NEEDED = ("statebed/py.typed", "statebed/format/checkpoint.proto", "statebed/ui/static/", "statebed/ui/templates/")
"""Files and folders of the wheel that no import would miss."""
ALLOWED = ("statebed/", "pyspark_statebed/")
EXTRAS = "spark,cli,duckdb,polars"
"""Extras that the tutorial needs."""


def main() -> int:
    """Run all checks; 1 if one failed."""
    parser = argparse.ArgumentParser(description="Build and check the packages of a release.")
    parser.add_argument("--quick", action="store_true", help="skip the tutorial")
    args = parser.parse_args()
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    for old in DIST.glob("*"):
        old.unlink()
    run([BIN / "uv", "build", "-q", "--no-build-isolation", "--python", sys.executable, "-o", DIST])
    (wheel,), (source,) = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
    run([BIN / "twine", "check", "--strict", wheel, source])
    problems = [*wheel_problems(wheel), *source_problems(source)]
    with tempfile.TemporaryDirectory(prefix="statebed-release-") as folder:
        problems += try_wheel(wheel, Path(folder), version, tutorial=not args.quick)
    for problem in problems:
        print(f"problem: {problem}")
    if not problems:
        print(next_steps(version, [wheel, source]))
    return 1 if problems else 0


def wheel_problems(wheel: Path) -> list[str]:
    """Return what is wrong with the files of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    missing = [need for need in NEEDED if not any(name.startswith(need) for name in names)]
    foreign = [name for name in names if not name.startswith(ALLOWED) and ".dist-info/" not in name]
    kept = [name for name in names if "__pycache__" in name or name.endswith(".pyc")]
    return [
        *(f"the wheel lacks {name}" for name in missing),
        *(f"the wheel contains {name}" for name in [*foreign, *kept]),
    ]


def source_problems(source: Path) -> list[str]:
    """Return what is wrong with the files of a source distribution: `make test` must work in it."""
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = ("Makefile", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "tests/docs/run_document.py")
    return [f"the source distribution lacks {name}" for name in needed if name not in names]


def try_wheel(wheel: Path, folder: Path, version: str, *, tutorial: bool) -> list[str]:
    """Install the wheel into an empty environment and use it from an empty folder; return what went wrong."""
    environment, work = folder / "environment", folder / "work"
    work.mkdir()
    run([BIN / "uv", "venv", "-q", "--python", sys.executable, environment])
    python = environment / "bin" / "python"
    run([BIN / "uv", "pip", "install", "-q", "--python", python, f"{wheel}[{EXTRAS}]"])
    outside = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    problems = []
    printed = output([environment / "bin" / "statebed", "--version"], cwd=work, env=outside)
    if version not in printed:
        problems.append(f"`statebed --version` prints {printed.strip()!r}, not {version}")
    where = output([python, "-c", "import statebed; print(statebed.__file__)"], cwd=work, env=outside).strip()
    if not where.startswith(str(environment)):
        problems.append(f"statebed is imported from {where}, not from the installed wheel")
    if tutorial:
        problems += [f"the tutorial: {line}" for line in run_tutorial(python, work, outside)]
    return problems


def run_tutorial(python: Path, work: Path, environment: dict[str, str]) -> list[str]:
    """Run the blocks of the tutorial with the installed wheel; return the last lines of what it printed if it fails."""
    listed = output(
        [BIN / "python", "-c", _STEPS, python.parent],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}"},
    )
    done = subprocess.run(
        [ROOT / "scripts" / "with-java", python, ROOT / "tests" / "docs" / "run_document.py"],
        input=listed,
        cwd=work,
        env=environment | {"PYSPARK_PYTHON": str(python)},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    return [] if done.returncode == 0 else (done.stdout + done.stderr).splitlines()[-15:]


_STEPS = """
import json, pathlib, sys
from docs import test_code_blocks
test_code_blocks.BIN = pathlib.Path(sys.argv[1])
print(json.dumps(test_code_blocks.steps(test_code_blocks.ROOT / "docs" / "tutorial.md")))
"""


def next_steps(version: str, packages: Sequence[Path]) -> str:
    """Describe what a maintainer does with the checked packages."""
    names = "\n".join(f"  {path.relative_to(ROOT)}  ({path.stat().st_size:,} bytes)" for path in packages)
    todo = [
        "run `make test` and `make test-long` on a fresh clone of the same commit",
        f"commit, and tag the commit v{version}",
        "upload both packages with a token that is limited to the project: twine upload artifacts/dist/*",
        "create a release from the tag, with the section of CHANGELOG.md as its text",
        "upload artifacts/site (make docs) as the documentation",
        "set the version to the next .dev0",
    ]
    if "dev" in version:
        todo.insert(0, f"{version} is a development version: set `version` in pyproject.toml, and run this again")
    steps = "\n".join(f"  {number}. {text}" for number, text in enumerate(todo, 1))
    return f"checked:\n{names}\nnext (docs/contributing/releasing.md):\n{steps}"


def run(command: Sequence[str | Path]) -> None:
    """Run a command; end the program if it fails."""
    done = subprocess.run([str(word) for word in command], cwd=ROOT, check=False)
    if done.returncode:
        raise SystemExit(f"failed with exit code {done.returncode}: {' '.join(map(str, command))}")


def output(command: Sequence[str | Path], *, cwd: Path, env: dict[str, str]) -> str:
    """Return what a command prints; end the program if it fails."""
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"failed with exit code {done.returncode}: {' '.join(words)}\n{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
