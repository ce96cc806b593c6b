"""Archives for executors: the same bytes for the same content, and a Python that finds what is in them."""

import importlib.metadata
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

import statebed as sb
from statebed.cli import pack
from statebed.errors import InputError, MissingDependencyError
from statebed.spark.probe.probe_task import code_digest

BASE = Path(getattr(sys, "_base_executable", sys.executable)).resolve()


def run(program: Path, *arguments: str, path: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [program, *arguments], capture_output=True, text=True, timeout=120, check=False, env={"PATH": path}
    )


@pytest.fixture
def few_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what is large."""
    everything = pack.closure("statebed")
    few = [package for package in everything if package.name in {"statebed", "msgspec"}]
    monkeypatch.setattr(pack, "closure", lambda _: few)


def test_everything_that_a_subtask_imports_is_packed_and_nothing_of_spark() -> None:
    names = {package.name for package in pack.closure("statebed")}
    assert {"statebed", "numpy", "pandas", "pyarrow", "obstore", "protobuf", "msgspec", "google-crc32c"} <= names
    assert "python-dateutil" in names  # what pandas needs is needed, too
    assert not names & {"pyspark", "py4j", "duckdb", "polars", "typer", "pytest"}


def test_a_package_that_is_missing_here_cannot_be_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = pack._installed
    monkeypatch.setattr(pack, "_installed", lambda name: None if name == "msgspec" else found(name))
    with pytest.raises(MissingDependencyError, match="msgspec"):
        pack.closure("statebed")


@pytest.mark.usefixtures("few_packages")
def test_the_environment_starts_the_hosts_python_with_its_packages(tmp_path: Path) -> None:
    made = pack.pack_environment(tmp_path / "env.tar.gz")
    assert [one.split()[0] for one in made.packages] == ["msgspec", "statebed"]
    with tarfile.open(made.path) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    python = tmp_path / "unpacked" / "bin" / "python"
    # The package's own __init__ needs what this small archive lacks.
    code = (
        "import importlib.metadata as m, importlib.util as u, msgspec, os;"
        "print(m.version('statebed'), u.find_spec('statebed').origin, msgspec.__file__, os.environ['PYTHONPATH'])"
    )
    done = run(python, "-c", code, path=f"{BASE.parent}:/usr/bin:/bin")
    assert done.returncode == 0, done.stderr
    version, *places = done.stdout.split()
    assert version == importlib.metadata.version("statebed")
    assert all(place.startswith(str(tmp_path / "unpacked" / "lib")) for place in places)


@pytest.mark.usefixtures("few_packages")
def test_a_host_without_this_python_is_told_so(tmp_path: Path) -> None:
    made = pack.pack_environment(tmp_path / "env.tar.gz")
    with tarfile.open(made.path) as archive:
        archive.extractall(tmp_path, filter="data")
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("sh", "dirname"):
        (tools / tool).symlink_to(f"/bin/{tool}" if Path(f"/bin/{tool}").exists() else f"/usr/bin/{tool}")
    done = run(tmp_path / "bin" / "python", "-V", path=str(tools))
    assert done.returncode == 69
    assert f"needs Python {sys.version_info.major}.{sys.version_info.minor}" in done.stderr


@pytest.mark.usefixtures("few_packages")
def test_the_same_content_is_the_same_bytes(tmp_path: Path) -> None:
    first, second = tmp_path / "a.tar.gz", tmp_path / "b" / "other.tar.gz"
    pack.pack_environment(first)
    pack.pack_environment(second)
    assert first.read_bytes() == second.read_bytes()
    assert pack.pack_code(tmp_path / "a.zip").path.read_bytes() == pack.pack_code(tmp_path / "b.zip").path.read_bytes()


def test_statebed_alone_is_imported_from_its_archive_with_its_version(tmp_path: Path) -> None:
    made = pack.pack_code(tmp_path / "statebed.zip")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import statebed, importlib.metadata as m;"
        "from statebed.spark.probe.probe_task import code_digest, identity;"
        "print(statebed.__file__, m.version('statebed'), identity()['code'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, made.path], capture_output=True, text=True, timeout=120, check=True
    )
    file, version, digest = done.stdout.split()
    assert file.startswith(str(made.path))
    assert version == importlib.metadata.version("statebed")
    assert digest == code_digest(sb)
    with zipfile.ZipFile(made.path) as archive:
        assert not [name for name in archive.namelist() if "__pycache__" in name]


def test_an_archive_is_named_so_that_spark_unpacks_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"must end in \.tar\.gz"):
        pack.pack_environment(tmp_path / "env.rar")
    with pytest.raises(InputError, match=r"must end in \.zip"):
        pack.pack_code(tmp_path / "env.tar.gz")


def test_a_place_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "statebed.zip").mkdir()
    with pytest.raises(InputError, match="cannot be written"):
        pack.pack_code(tmp_path / "statebed.zip")
    assert [path.name for path in tmp_path.iterdir()] == ["statebed.zip"]


@pytest.mark.usefixtures("few_packages")
def test_the_command_says_how_the_archive_is_used(statebed: Any, tmp_path: Path) -> None:
    done = statebed("pack", tmp_path / "env.tar.gz")
    assert done.code == 0
    assert f"--archives '{tmp_path / 'env.tar.gz'}#statebed-env'" in done.out
    assert 'os.environ["PYSPARK_PYTHON"] = "./statebed-env/bin/python"' in done.out
    done = statebed("pack", "--only-statebed", tmp_path / "s.zip", "--json")
    assert f'addPyFile(\\"{tmp_path / "s.zip"}\\")' in done.out
