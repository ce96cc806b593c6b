"""The script that resolves pinned jars: what it downloads, verifies and refuses, with a Maven that copies files."""

import hashlib
import os
from pathlib import Path

import pytest

from scripts import jars
from scripts.jars import Artefact, JarsError, read_sets, resolve

MAVEN = """#!/usr/bin/env bash
echo run >> {log}
{failure}
pom="${{@: -2:1}}"
folder=$(sed -E 's/.*<outputDirectory>([^<]*).*/\\1/' "$pom")
grep -oE '<artifactId>[^<]*</artifactId><version>[^<]*' "$pom" | sed -E 's/<[^>]*>/ /g' | while read -r name version; do
  [ "$name" = jars ] || printf '%s' "{content}" > "$folder/$name-$version.jar"
done
"""


@pytest.fixture
def maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a Maven that writes "jar" into each file first on the path; its log has one line per run."""
    log = tmp_path / "maven.log"
    install(tmp_path, MAVEN.format(log=log, failure="", content="jar"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("MAVEN_HOME", raising=False)
    monkeypatch.setenv("STATEBED_JARS", str(tmp_path / "cache"))
    monkeypatch.setattr(jars, "SETS", tmp_path / "jars.toml")
    return log


def install(folder: Path, script: str) -> None:
    program = folder / "bin" / "mvn"
    program.parent.mkdir(exist_ok=True)
    program.write_text(script)
    program.chmod(0o755)


def write_sets(tmp_path: Path, digest: str) -> None:
    (tmp_path / "jars.toml").write_text(f'[one]\n"org.example:tool_2.13:1.0" = "{digest}"\n')


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_a_jar_is_downloaded_once_and_found_in_the_cache_afterwards(tmp_path: Path, maven: Path) -> None:
    write_sets(tmp_path, sha256(b"jar"))
    for _ in range(2):
        assert resolve(["one"]) == [tmp_path / "cache" / "tool_2.13-1.0.jar"]
    assert maven.read_text() == "run\n"
    assert not [path for path in (tmp_path / "cache").iterdir() if path.is_dir()], "no scratch folder is left behind"


def test_p7_a_jar_with_another_checksum_is_refused_and_never_installed(tmp_path: Path, maven: Path) -> None:
    write_sets(tmp_path, sha256(b"another"))
    with pytest.raises(JarsError, match=r"tool_2\.13:1\.0 has SHA-256 .* but jars\.toml pins"):
        resolve(["one"])
    assert not list((tmp_path / "cache").glob("*.jar"))


def test_p7_a_damaged_jar_of_the_cache_is_refused_by_name(tmp_path: Path, maven: Path) -> None:
    write_sets(tmp_path, sha256(b"jar"))
    (file,) = resolve(["one"])
    file.write_bytes(b"jaR")
    with pytest.raises(JarsError, match=r"tool_2\.13-1\.0\.jar is damaged, delete it"):
        resolve(["one"])


def test_an_artefact_without_a_checksum_is_refused_until_it_is_locked(tmp_path: Path, maven: Path) -> None:
    write_sets(tmp_path, "")
    with pytest.raises(JarsError, match="pins none"):
        resolve(["one"])
    jars.lock("one")
    assert read_sets()["one"] == [Artefact("org.example", "tool_2.13", "1.0", sha256(b"jar"))]
    assert resolve(["one"])


def test_an_unreachable_registry_ends_with_status_69_and_mavens_reason(
    tmp_path: Path, maven: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_sets(tmp_path, sha256(b"jar"))
    install(tmp_path, MAVEN.format(log=maven, failure="echo '[ERROR] Unknown host registry'; exit 1", content=""))
    monkeypatch.setattr("sys.argv", ["jars.py", "one"])
    assert jars.main() == 69
    assert "Maven failed: Unknown host registry" in capsys.readouterr().err


def test_an_unknown_set_is_refused_with_the_known_ones(tmp_path: Path, maven: Path) -> None:
    write_sets(tmp_path, sha256(b"jar"))
    with pytest.raises(JarsError, match=r"unknown set 'two'; jars\.toml has one"):
        resolve(["two"])


def test_every_pinned_artefact_has_a_checksum() -> None:
    sets = read_sets()
    assert {"kafka-source", "kafka-broker"} <= set(sets)
    assert [a.coordinates for artefacts in sets.values() for a in artefacts if len(a.sha256) != 64] == []
