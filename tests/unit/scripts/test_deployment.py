"""Image and manifests for Kubernetes, as far as they can be checked without a cluster."""

import itertools
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from statebed.quantities import parse_bytes

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
FENCED = 86
DOCKER = re.compile(r"^(FROM|WORKDIR|COPY|RUN|ENV|USER|VOLUME|ENTRYPOINT) ")


def manifests(name: str) -> dict[str, dict[str, Any]]:
    """Return the objects of a manifest by kind."""
    return {one["kind"]: one for one in yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text("utf-8"))}


def options(arguments: list[str]) -> dict[str, str]:
    """Return the Spark settings among the arguments of spark-submit."""
    pairs = [text for flag, text in itertools.pairwise(arguments) if flag == "--conf"]
    return dict(pair.split("=", 1) for pair in pairs)


def program_arguments(arguments: list[str]) -> dict[str, str]:
    return dict(text.removeprefix("--").split("=", 1) for text in arguments if re.match(r"--[a-z-]+=", text))


def test_a_fenced_driver_is_not_started_again_but_any_other_is() -> None:
    job = manifests("rides-job.yaml")["Job"]["spec"]
    assert job["podFailurePolicy"]["rules"] == [
        {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [FENCED]}}
    ]
    assert job["backoffLimit"] >= 100
    assert job["template"]["spec"]["restartPolicy"] == "Never"  # pod failure policies require it


def test_the_objects_of_the_job_refer_to_one_another() -> None:
    found = manifests("rides-job.yaml")
    account = found["ServiceAccount"]["metadata"]["name"]
    pod = found["Job"]["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    conf = options(container["args"])
    assert pod["spec"]["serviceAccountName"] == account
    assert found["RoleBinding"]["subjects"][0]["name"] == account
    assert found["RoleBinding"]["roleRef"]["name"] == found["Role"]["metadata"]["name"]
    assert conf["spark.kubernetes.authenticate.executor.serviceAccountName"] == account
    service = found["Service"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert conf["spark.driver.host"].startswith(service["metadata"]["name"] + ".")
    ports = {one["name"]: one["port"] for one in service["spec"]["ports"]}
    assert int(conf["spark.driver.port"]) == ports["driver"]
    assert int(conf["spark.driver.blockManager.port"]) == ports["blocks"]
    assert int(program_arguments(container["args"])["metrics-port"]) == ports["metrics"]
    assert conf["spark.kubernetes.container.image"] == container["image"]
    assert container["args"][0] == "driver"
    (mount,) = container["volumeMounts"]
    assert program_arguments(container["args"])["cache-folder"] == mount["mountPath"]
    assert conf["spark.kubernetes.executor.volumes.emptyDir.cache.mount.path"] == mount["mountPath"]


def test_executors_have_room_for_the_state_beside_the_jvm() -> None:
    job = manifests("rides-job.yaml")["Job"]["spec"]["template"]["spec"]["containers"][0]["args"]
    application = manifests("rides-spark-application.yaml")["SparkApplication"]["spec"]
    given = [
        (options(job)["spark.executor.memoryOverhead"], program_arguments(job)["memory"]),
        (application["executor"]["memoryOverhead"], program_arguments(application["arguments"])["memory"]),
    ]
    for overhead, state in given:
        assert parse_bytes(overhead.replace("g", " GiB"), where="overhead") > parse_bytes(state, where="memory")


def test_both_manifests_start_the_same_program() -> None:
    job = manifests("rides-job.yaml")["Job"]["spec"]["template"]["spec"]["containers"][0]["args"]
    application = manifests("rides-spark-application.yaml")["SparkApplication"]["spec"]
    assert application["mainApplicationFile"] in job
    assert program_arguments(job) == program_arguments(application["arguments"])


def test_the_image_copies_files_that_exist_and_does_not_run_as_root() -> None:
    text = (DEPLOY / "Dockerfile").read_text("utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert all(DOCKER.match(line) for line in lines), lines
    for line in lines:
        words = line.split()
        if words[0] == "COPY" and not words[1].startswith("--from"):
            assert all((ROOT / name).exists() for name in words[1:-1]), line
    users = [line for line in lines if line.startswith("USER")]
    assert users
    assert users[-1] != "USER root"
    (entrypoint,) = [line for line in lines if line.startswith("ENTRYPOINT")]
    assert json.loads(entrypoint.removeprefix("ENTRYPOINT "))[-1] == "/opt/statebed/entrypoint.sh"
    program = manifests("rides-spark-application.yaml")["SparkApplication"]["spec"]["mainApplicationFile"]
    assert f"COPY deploy/rides.py {program.removeprefix('local://')}" in lines


@pytest.fixture
def recorded(tmp_path: Path) -> dict[str, str]:
    """Return an environment in which Java and spark-submit print their arguments."""
    for path in ("java/bin/java", "spark/bin/spark-submit"):
        program = tmp_path / path
        program.parent.mkdir(parents=True)
        program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
        program.chmod(0o755)
    return {
        "PATH": os.environ["PATH"],
        "JAVA_HOME": str(tmp_path / "java"),
        "SPARK_HOME": str(tmp_path / "spark"),
        "SPARK_EXECUTOR_MEMORY": "2048m",
        "SPARK_DRIVER_URL": "spark://driver:7078",
        "SPARK_EXECUTOR_ID": "3",
        "SPARK_EXECUTOR_CORES": "2",
        "SPARK_APPLICATION_ID": "spark-application-1",
        "SPARK_EXECUTOR_POD_IP": "127.0.0.1",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_EXECUTOR_POD_NAME": "rides-exec-3",
    }


def started(environment: dict[str, str], *arguments: str) -> list[str]:
    command = [str(DEPLOY / "entrypoint.sh"), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()


def test_the_entrypoint_passes_an_executor_what_spark_has_set(recorded: dict[str, str]) -> None:
    java_options = {"SPARK_JAVA_OPT_0": "-Da=1 2", "SPARK_JAVA_OPT_1": "-Db=3"}
    words = started(recorded | java_options, "executor")
    assert words[:4] == ["-Da=1 2", "-Db=3", "-Xms2048m", "-Xmx2048m"]
    given = dict(itertools.pairwise(words))
    assert given["--executor-id"] == "3"
    assert given["--podName"] == "rides-exec-3"
    assert started(recorded, "executor")[0] == "-Xms2048m"


def test_the_entrypoint_runs_the_driver_in_client_mode_and_other_commands_as_they_are(recorded: dict[str, str]) -> None:
    words = started(recorded, "driver", "--master", "local", "job.py", "two words")
    assert words[:2] == ["--deploy-mode", "client"]
    assert words[-2:] == ["job.py", "two words"]
    assert started(recorded, "echo", "hello") == ["hello"]
