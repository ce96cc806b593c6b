"""Probe that checks, before a run opens, whether every executor can run subtasks of the job.

Each executor must have the same statebed, Python and pyarrow as the driver: files are named by their bytes, which
depend on pyarrow. It must read what the driver wrote to the state, and the driver must read what it writes. It must
have a folder for the host cache. Local Spark on the driver's own Python can only differ in the folder, and is not
probed.

The task is pickled by value, because the executor may lack statebed. Executors that are added after the start are not
probed; a subtask that fails there reports why.
"""

import functools
import importlib.metadata
import os
import re
import secrets
import shutil
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark import InheritableThread, SparkContext, cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from statebed.config import Settings, SettingSource
from statebed.errors import ExecutorError, InputError, StatebedError
from statebed.logs import id_logger
from statebed.spark.causes import cause_of
from statebed.spark.plan.host_memory import Executor, executors_of
from statebed.spark.probe import probe_task
from statebed.spark.session import WORKER_DAEMON
from statebed.state.memory.budget import available_memory
from statebed.storage import ObjectStore
from statebed.storage.probe import PROBE_FOLDER

_logger = id_logger(__name__)

SKEW_SECONDS = 5.0
"""Clock skew above which a warning is logged. Clocks only affect times that people read."""
_WAVES = 3
_LINGER_SECONDS = 0.2
_MAX_TASKS = 2048
_PACK = "or ship it: `statebed pack` creates an archive and prints how to use it"
_LOST = re.compile(r"\(TID \d+\) \((\S+) executor (\w+)\)")
_NO_PROGRAM = re.compile(r'Cannot run program "([^"]*)"')
Answer = Mapping[str, Any]


@dataclass(frozen=True)
class ProbeReport:
    """Answers of the executors."""

    answers: tuple[Answer, ...]
    """One answer per executor; empty if Spark runs in this process and Python."""
    unreached: tuple[str, ...]
    """Executors that no task reached in time."""
    min_memory: int
    """Memory of the smallest host, in bytes."""
    skew_seconds: float
    """Largest clock skew between the driver and any executor."""


def probe_executors(session: SparkSession, store: ObjectStore, *, settings: Settings, job_id: str) -> ProbeReport:
    """Probe every executor. Raise an ExecutorError that names those that cannot work, and why."""
    firm = settings.place_of("cache_folder").source in (SettingSource.KEYWORD, SettingSource.SPARK_CONF)
    marker = f"{PROBE_FOLDER}/{secrets.token_hex(8)}-driver"
    wanted = {
        "state_url": store.url,
        "marker": marker,
        "cache_folder": settings.cache_folder,
        "cache_folder_is_firm": firm,
        "linger_seconds": 0.0,
    }
    if is_this_process(session.sparkContext):
        _check_cache_here(wanted, job_id=job_id)
        return ProbeReport((), (), available_memory(), 0.0)
    store.put(marker, b"statebed")
    try:
        began = time.time()
        timeout = settings.probe_timeout.total_seconds()
        answers = _probe_all(session, wanted, deadline=time.monotonic() + timeout, timeout=timeout, job_id=job_id)
        took = time.time() - began
        answers = [_seen_here(answer, store) for answer in answers]
    finally:
        _clean(store, marker)
    refuse(answers, here=probe_task.identity(), state=store.url, job_id=job_id)
    reached = {answer["executor_id"] for answer in answers}
    unreached = tuple(executor.executor_id for executor in executors_of(session) if executor.executor_id not in reached)
    if unreached and all(reached):
        _logger.about(job=job_id).warning("job %s: executors %s were busy and not probed", job_id, ", ".join(unreached))
    skew = max((skew_of(answer["time_us"] / 1e6, began, began + took) for answer in answers), key=abs, default=0.0)
    if abs(skew) > SKEW_SECONDS:
        logger = _logger.about(job=job_id)
        logger.warning(
            "job %s: the clock of an executor is off by %.1f s, and so are the times that it writes", job_id, skew
        )
    return ProbeReport(tuple(answers), unreached, min(answer["memory"] for answer in answers), skew)


def is_this_process(context: SparkContext) -> bool:
    """Return whether tasks run on this machine, in the driver's own Python, where statebed is installed."""
    master = context.master or ""
    if not master.startswith("local") or master.startswith("local-cluster"):
        return False
    worker = shutil.which(context.pythonExec)
    same = worker is not None and Path(worker).parent.absolute() == Path(sys.executable).parent.absolute()
    try:
        importlib.metadata.distribution("statebed")
    except importlib.metadata.PackageNotFoundError:
        return False  # on the driver's path in another way, which workers may not share
    return same and os.path.realpath(worker or "") == os.path.realpath(sys.executable)


def skew_of(seen: float, began: float, ended: float) -> float:
    """Return the minimum skew of a clock that showed `seen` between the driver times `began` and `ended`."""
    return min(0.0, seen - began) or max(0.0, seen - ended)


# ---- probing -------------------------------------------------------------------------------------------------


def _probe_all(
    session: SparkSession, wanted: dict[str, Any], *, deadline: float, timeout: float, job_id: str
) -> list[Answer]:
    """Return one answer per executor; repeat the probe while there are executors that no task has reached."""
    by_executor: dict[tuple[str, str], Answer] = {}
    for wave in range(_WAVES):
        known = executors_of(session)
        tasks = min(_MAX_TASKS, max(1, sum(executor.slots for executor in known)))
        wanted = {**wanted, "linger_seconds": _LINGER_SECONDS * min(wave, 1)}
        try:
            answers = _run_tasks(
                session.sparkContext, wanted, tasks=tasks, timeout=max(0.0, deadline - time.monotonic())
            )
        except TimeoutError as error:
            if by_executor:
                break
            raise _no_answer(known, timeout, job_id=job_id) from error
        for answer in answers:
            by_executor.setdefault((answer["executor_id"], answer["host"]), answer)
        if len(by_executor) >= len(executors_of(session)):
            break
    return list(by_executor.values())


def _run_tasks(context: SparkContext, wanted: dict[str, Any], *, tasks: int, timeout: float) -> list[Answer]:
    """Run `tasks` tasks at once. Raise a TimeoutError after `timeout` seconds."""
    group = f"statebed-probe-{uuid.uuid4().hex}"
    answers: list[Answer] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            context.setJobGroup(group, "statebed: can the executors run the job?", interruptOnCancel=True)
            with _by_value():
                task = functools.partial(probe_task.answers, wanted=wanted)
                answers.extend(context.parallelize(range(tasks), tasks).mapPartitions(task).collect())
        except (PySparkException, Py4JError) as error:
            failures.append(error)

    thread = InheritableThread(target=run, daemon=True)
    thread.start()
    thread.join(timeout)
    if thread.is_alive():
        context.cancelJobGroup(group)
        raise TimeoutError
    if failures:
        raise _failed(failures[0], str(context.pythonExec)) from failures[0]
    return answers


@contextmanager
def _by_value() -> Iterator[None]:
    cloudpickle.register_pickle_by_value(probe_task)  # type: ignore[no-untyped-call]  # Spark's copy has no types
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(probe_task)  # type: ignore[no-untyped-call]


def _failed(error: BaseException, python: str) -> ExecutorError:
    text = str(error)
    what, fix = cause_of(error), "see the executors' logs: a task that needs nothing but Python must run there"
    missing, lost = _NO_PROGRAM.search(text), _LOST.search(text)
    if "PYTHON_VERSION_MISMATCH" in text:
        fix = f"use Python {sys.version_info.major}.{sys.version_info.minor} on the executors, too"
    elif missing is not None:
        what = f"there is no program {missing[1]!r}"
        fix = f"set PYSPARK_PYTHON to a Python that every executor has, {_PACK}"
    elif WORKER_DAEMON in text:
        what = f"their Python, {python}, cannot load {WORKER_DAEMON}"
        fix = f"install statebed in that Python, {_PACK}; or leave spark.python.daemon.module out"
    return ExecutorError(
        f"the executors cannot run Python tasks: {what}",
        where=f"executor {lost[2]} on {lost[1]}" if lost else "executors",
        fix=fix,
    )


def _no_answer(known: list[Executor], timeout: float, *, job_id: str) -> ExecutorError:
    what = f"{len(known)} executors exist, but none had a free slot" if known else "Spark has no executor"
    return ExecutorError(
        f"no executor answered within {timeout:g} s: {what}",
        where=f"job {job_id}",
        fix="look for free workers in Spark's master, or set a longer probe_timeout",
    )


# ---- judging -------------------------------------------------------------------------------------------------


def refuse(answers: list[Answer], *, here: Mapping[str, str], state: str, job_id: str) -> None:
    """Raise an error that names every executor that cannot work, with the fix for the first reason."""
    refused = [(name_of(answer), *problem) for answer in answers if (problem := problem_of(answer, here, state=state))]
    if refused:
        count = f"{len(refused)} of {len(answers)} executors" if len(answers) > 1 else "the executor"
        raise ExecutorError(
            f"{count} cannot run the job: " + "; ".join(f"{name}: {what}" for name, what, _ in refused),
            where=f"job {job_id}",
            fix=refused[0][2],
        )


def name_of(answer: Answer) -> str:
    """Return the name of an executor for messages."""
    named = f"executor {answer['executor_id']}" if answer["executor_id"] else "the Python worker"
    return f"{named} on {answer['host']}"


def problem_of(answer: Answer, here: Mapping[str, str], *, state: str) -> tuple[str, str] | None:
    """Return the most important problem of an executor and its fix, or None."""
    return _of_packages(answer, here) or _of_places(answer, state=state)


def _of_packages(answer: Answer, here: Mapping[str, str]) -> tuple[str, str] | None:
    version = here["statebed"] or "of the driver"
    if "import" in answer["problems"]:
        return (
            f"statebed cannot be imported by {answer['executable']} ({answer['problems']['import']})",
            f"install statebed {version} with the extra 'spark' on every host, {_PACK}",
        )
    differing = [
        f"it has {name} {answer[name] or 'of unknown version'}, the driver has {here[name]}"
        for name in ("statebed", "pyarrow")
        if answer[name] != here[name]
    ]
    if differing:
        return "; ".join(differing), f"install the same versions on every host, {_PACK}"
    if answer["code"] != here["code"]:
        return (
            f"its statebed {version} has different code ({answer['code']}, the driver {here['code']})",
            f"install the same statebed on every host, {_PACK}",
        )
    if not answer["pandas"]:
        return "it has no pandas, which Spark needs for Arrow", f"pip install 'pandas>=2.2,<3' on every host, {_PACK}"
    return None


def _of_places(answer: Answer, *, state: str) -> tuple[str, str] | None:
    problems = answer["problems"]
    if "state" in problems:
        fix = "put the state where every executor reaches it, for example state='s3://bucket/state'"
        return f"it cannot use the state at {state}: {problems['state']}", f"{fix}, and give them its credentials"
    if "cache" in problems:
        return (
            f"user {answer['user']} cannot use the folder of the host cache: {problems['cache']}",
            "set cache_folder to a folder on a local disk that this user can write to",
        )
    return None


def _seen_here(answer: Answer, store: ObjectStore) -> Answer:
    """Return the answer, with a problem added if the driver cannot see what the executor wrote."""
    written = answer.get("written")
    if not written:
        return answer
    if store.head(written) is None:
        return {**answer, "problems": {**answer["problems"], "state": "the driver cannot see what it wrote there"}}
    return answer


def _clean(store: ObjectStore, marker: str) -> None:
    """Remove what the driver and executors wrote; leftovers do no harm."""
    with suppress(StatebedError):
        for written in store.list_level(PROBE_FOLDER).objects:
            if written.path.startswith(marker):
                store.delete(written.path)


def _check_cache_here(wanted: Mapping[str, Any], *, job_id: str) -> None:
    try:
        probe_task.try_cache(wanted["cache_folder"], firm=wanted["cache_folder_is_firm"])
    except OSError as error:
        raise InputError(
            f"cannot use the folder of the host cache: {error}",
            where=f"job {job_id}",
            fix="set cache_folder to a folder on a local disk that this user can write to",
        ) from error
