"""Jobs of a state location and their status, with clear errors for a location that is not one."""

import difflib
import shlex
import time
from dataclasses import dataclass
from pathlib import Path

from statebed.checkpoint.log import CheckpointLog
from statebed.errors import BrokenLogError, InputError, InvalidNameError, JobNotFoundError, NewerFormatError
from statebed.format import names
from statebed.inspect.given_up import given_up_lines
from statebed.inspect.records import DAMAGED, NEWER, slowest_watermark
from statebed.inspect.run_states import RunReport, newest_run, problem_lines, state_of_job
from statebed.inspect.sizes import state_bytes
from statebed.storage import LocalStore, ObjectStore, ScopedStore, get_storage_provider

NEVER = "never committed"


@dataclass(frozen=True)
class JobSummary:
    """One job of a state location."""

    job: str
    records: int
    head: int | None
    """Newest record number, whether the record is readable or not."""
    lineage: str | None
    status: str
    finish_time_us: int | None
    duration_us: int | None = None
    """Duration of the newest epoch."""
    watermark_us: int | None = None
    bytes: int | None = None
    """Bytes of the data files of the newest state."""
    savepoints: int = 0
    problem: str = ""
    run: RunReport | None = None
    """State of the newest run."""
    given_up: tuple[str, ...] = ()
    """Rows that sinks did not get at the user's request, described by sink."""


def open_log(state: str, job: str | None) -> CheckpointLog:
    """Open the log of an existing job; without a name, that of the only job."""
    store = get_storage_provider(state)
    if job is None:
        job = _only_job(store, state)
    log = CheckpointLog(ScopedStore(store, names.job_folder(job)), job)
    if not log.numbers():
        jobs = job_names(store)
        if not jobs:
            check_location(store)
        close = difflib.get_close_matches(job, jobs, n=1)
        raise JobNotFoundError(
            f"the job {job!r} has no record (jobs here: {', '.join(jobs) or 'none'})",
            where=store.url,
            fix=f"did you mean {close[0]!r}?"
            if close
            else f"`statebed ls {shlex.quote(state)}` lists the jobs of this location",
        )
    return log


def _only_job(store: ObjectStore, state: str) -> str:
    jobs = job_names(store)
    if not jobs:
        check_location(store)
        raise JobNotFoundError(
            "no job has state here", where=store.url, fix="pass the folder or URL that the job uses as state="
        )
    if len(jobs) > 1:
        raise InputError(
            f"several jobs have state here: {', '.join(jobs)}",
            where=store.url,
            fix=f"add the name of one after the location: {shlex.quote(state)} {jobs[0]}",
        )
    return jobs[0]


def job_names(store: ObjectStore) -> list[str]:
    """Return the folders of the location that contain a log. Folders whose names no job can have are ignored."""
    return [
        name
        for name in store.list_level("").folders
        if _can_be_a_job(name) and store.list_level(f"{name}/{names.CHECKPOINTS}").folders
    ]


def summarise_jobs(state: str, *, now_us: int | None = None) -> list[JobSummary]:
    """Return every job of the location, sorted by name. A job that cannot be read does not hide the others."""
    store = get_storage_provider(state)
    jobs = job_names(store)
    if not jobs:
        check_location(store)
    now_us = time.time_ns() // 1000 if now_us is None else now_us
    return [summarise_job(CheckpointLog(ScopedStore(store, name), name), now_us=now_us) for name in jobs]


def summarise_job(log: CheckpointLog, *, now_us: int) -> JobSummary:
    """Summarise a job from its newest record and the status of its newest run."""
    records = len(log.numbers())
    try:
        recovery = log.recover()
    except NewerFormatError as error:
        return JobSummary(log.job_id, records, None, None, NEWER, None, problem=error.what)
    except BrokenLogError as error:
        return JobSummary(log.job_id, records, None, None, DAMAGED, None, problem=error.what)
    if recovery.damaged:
        problem = "; ".join(f"record {skipped.epoch}: {skipped.reason}" for skipped in recovery.skipped)
        return JobSummary(log.job_id, records, recovery.last_number, None, DAMAGED, None, problem=problem)
    head = recovery.head
    if head is None:
        return JobSummary(log.job_id, records, None, None, NEVER, None)
    run = newest_run(log, head, now_us=now_us)
    return JobSummary(
        job=log.job_id,
        records=records,
        head=head.epoch,
        lineage=head.lineage,
        status=state_of_job(head, run),
        finish_time_us=head.finish_time_us,
        duration_us=head.finish_time_us - head.start_time_us,
        watermark_us=slowest_watermark(head),
        bytes=state_bytes(log, head),
        savepoints=len(head.pins),
        problem="\n".join(problem_lines(run)) if run.is_problem else "",
        run=run,
        given_up=tuple(given_up_lines(log, head)),
    )


def check_location(store: ObjectStore) -> None:
    """Raise InputError if the location does not exist or is the folder of a job, to distinguish a typo from a location
    without jobs.
    """
    if isinstance(store, LocalStore) and not Path(store.url).is_dir():
        what = "is a file, not a folder" if Path(store.url).exists() else "does not exist"
        raise InputError(
            f"the state location {what}", where=store.url, fix="pass the folder or URL that the job uses as state="
        )
    if names.CHECKPOINTS in store.list_level("").folders:
        location, _, job = store.url.rpartition("/")
        raise InputError(
            "this is the folder of a job, not a state location",
            where=store.url,
            fix=f"pass its parent folder, then the job: `statebed ls {shlex.quote(location)} {job}`",
        )


def _can_be_a_job(name: str) -> bool:
    try:
        names.job_folder(name)
    except InvalidNameError:
        return False
    return True
