"""doctor: each check says ok, warn or fail, and what to do."""

import json
import os
import stat
import subprocess
from pathlib import Path

import pytest
from command_line import Call

from statebed.cli import machine
from statebed.cli.doctor import local_folder
from statebed.errors import JavaMissingError
from statebed.java import find_java, use_java

WITH_JAVA = Path(__file__).parents[3] / "scripts" / "with-java"


def fake_java(home: Path, version: str) -> Path:
    binary = home / "bin" / "java"
    binary.parent.mkdir(parents=True)
    # As a real one, it does not start with options that it does not know.
    binary.write_text(
        '#!/bin/sh\n[ -z "$JAVA_TOOL_OPTIONS" ] || { echo Unrecognized VM option >&2; exit 1; }\n'
        f"echo 'openjdk version \"{version}\" 2024-01-01' >&2\n"
    )
    binary.chmod(binary.stat().st_mode | stat.S_IXUSR)
    return home


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Neither JAVA_HOME nor the PATH name a Java; gives the folder that stands for the system's."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    return tmp_path / "jvm"


def test_every_check_has_a_verdict_and_failures_have_a_fix(statebed: Call, tmp_path: Path) -> None:
    done = statebed("doctor", "--json", "--state", tmp_path / "state")
    report = json.loads(done.out)
    names = [check["name"] for check in report["checks"]]
    for name in ("python", "pyarrow", "pyspark", "java", "cores", "memory", "disk space", "disk speed"):
        assert name in names
    assert {check["verdict"] for check in report["checks"]} <= {"ok", "warn", "fail"}
    assert all(check["fix"] for check in report["checks"] if check["verdict"] != "ok")
    failed = [check["name"] for check in report["checks"] if check["verdict"] == "fail"]
    assert report["ok"] is (not failed)
    assert done.code == (1 if failed else 0)
    probe = next(check for check in report["checks"] if check["name"] == "put-if-absent")
    assert probe["verdict"] == "ok"


def test_the_probe_leaves_no_folder_behind(statebed: Call, tmp_path: Path) -> None:
    statebed("doctor", "--json", "--state", tmp_path / "state")
    assert list(tmp_path.iterdir()) == []


def test_an_impossible_state_location_fails_with_a_fix(statebed: Call, tmp_path: Path) -> None:
    blocked = tmp_path / "a-file"
    blocked.write_text("in the way")
    done = statebed("doctor", "--json", "--state", blocked / "state")
    assert done.code == 1
    probe = next(c for c in json.loads(done.out)["checks"] if c["name"] == "put-if-absent")
    assert probe["verdict"] == "fail"
    assert probe["fix"]
    assert blocked.read_text() == "in the way"


def test_words_for_people_end_in_one_verdict(statebed: Call, tmp_path: Path) -> None:
    done = statebed("doctor", "--state", tmp_path)
    assert ("statebed can run here" in done.out) is (done.code == 0)


@pytest.mark.parametrize(("spark", "verdict"), [(True, "fail"), (False, "warn")])
def test_a_missing_java_fails_only_where_spark_is_installed(
    statebed: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: bool, verdict: str
) -> None:
    monkeypatch.setattr("statebed.cli.doctor.find_java", lambda: None)
    monkeypatch.setattr("statebed.cli.doctor.is_installed", lambda _: spark)
    report = json.loads(statebed("doctor", "--json", "--state", tmp_path / "state").out)
    assert {check["name"]: check["verdict"] for check in report["checks"]}["java"] == verdict


def test_java_home_goes_before_the_system(no_java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(no_java / "a-21", "21.0.1")
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "mine", "17.0.9")))
    found = find_java(no_java)
    assert found is not None
    assert (found.major, found.home) == (17, tmp_path / "mine")


def test_an_old_java_is_stepped_over(no_java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "1.8.0_402")))
    assert find_java(no_java) is None
    fake_java(no_java / "b-25", "25")
    found = find_java(no_java)
    assert found is not None
    assert found.major == 25


def test_options_that_java_refuses_do_not_make_it_missing(
    no_java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-XX:NoSuchOption")
    fake_java(no_java / "a-21", "21.0.1")
    assert find_java(no_java) is not None
    # The script would install a Java, or replace the present one with a newer.
    called = tmp_path / "called"
    installer = tmp_path / "bin" / "apt-get"
    installer.parent.mkdir()
    installer.write_text(f"#!/bin/sh\ntouch {called}\nexit 1\n")
    installer.chmod(0o755)
    environment = {"JAVA_TOOL_OPTIONS": "-XX:NoSuchOption", "PATH": f"{installer.parent}:/usr/bin:/bin"}
    environment["JAVA_HOME"] = str(no_java / "a-21")
    done = subprocess.run(
        [WITH_JAVA, "sh", "-c", "echo $JAVA_HOME"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.strip() == environment["JAVA_HOME"], done.stderr
    assert not called.exists()


def test_without_java_one_line_says_how_to_get_it(no_java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("statebed.java.find_java", lambda: None)
    with pytest.raises(JavaMissingError) as raised:
        use_java()
    assert "apt-get install" in raised.value.fix


def test_the_machine_is_measured(tmp_path: Path) -> None:
    assert 0 < machine.cores() <= (os.cpu_count() or 1)
    assert machine.memory_bytes() > 100_000_000
    speed = machine.disk_speed(tmp_path)
    assert speed.bytes_per_second > 0
    assert speed.small_write_seconds > 0
    assert list(tmp_path.iterdir()) == []


def test_a_location_is_a_folder_or_an_object_store(tmp_path: Path) -> None:
    assert local_folder("some/folder") == Path("some/folder")
    assert local_folder("file:///a%20b") == Path("/a b")
    assert local_folder("s3://bucket/state") is None
