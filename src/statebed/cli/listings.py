"""`statebed ls`: lists jobs, or the epochs, runs, lineages or savepoints of one job. Only the newest are read by
default, to stay fast.
"""

import time
from collections.abc import Sequence

from statebed.cli import output, render
from statebed.inspect.given_up import given_up_lines
from statebed.inspect.jobs import open_log, summarise_jobs
from statebed.inspect.lineages import summarise_lineages, summarise_runs, with_reports
from statebed.inspect.records import newest_readable, summarise_epochs
from statebed.inspect.run_states import RunReport, newest_run, run_reports
from statebed.inspect.savepoints import summarise_savepoints

MAX_RUNS = 1000
"""Maximum number of runs whose status is read."""


def print_jobs(state: str, *, as_json: bool) -> None:
    jobs = summarise_jobs(state)
    if as_json:
        _print_json(jobs)
    elif jobs:
        given_up = [f"job {job.job}: {line}" for job in jobs for line in job.given_up]
        problems = [*render.problems(jobs), *given_up]
        output.print_table(render.jobs_table(jobs, where=state), problems, expendable=render.EXPENDABLE_JOB_COLUMNS)
    else:
        output.say(f"no job has state at {state}")


def print_epochs(state: str, job: str | None, *, limit: int | None, before: int | None, as_json: bool) -> None:
    log = open_log(state, job)
    epochs = summarise_epochs(log, limit=limit, before=before)
    if as_json:
        _print_json(epochs)
        return
    if not epochs:
        output.say(f"{log.job_id} has no epoch{f' before {before}' if before else ''} at {state}")
        return
    shown = render.epochs_table(epochs, title=f"epochs of {log.job_id} at {state}")
    head = newest_readable(log) if before is None else None
    report = newest_run(log, head, now_us=_now_us()) if head else None
    failure = [render.failure(report)] if report is not None and report.is_problem else []
    given_up = given_up_lines(log, head) if head else []
    output.print_table(
        shown, [*render.problems(epochs), *given_up, *failure], expendable=render.EXPENDABLE_EPOCH_COLUMNS
    )
    first = epochs[0].epoch
    if limit is not None and len(epochs) >= limit and any(number < first for number in log.numbers()):
        output.say(f"for older epochs pass --before {first}; for all, --limit 0")


def print_runs(state: str, job: str | None, *, limit: int | None, as_json: bool) -> None:
    log = open_log(state, job)
    head = newest_readable(log)
    # The status of a run may outlive its records. List all runs that did not end cleanly, newest last.
    reports = run_reports(log, head, now_us=_now_us(), limit=limit or MAX_RUNS)[::-1] if head else []
    runs = with_reports(summarise_runs(log, limit=limit), reports)
    if as_json:
        _print_json(runs)
        return
    shown = render.runs_table(runs, title=f"runs of {log.job_id} at {state}")
    output.print_table(
        shown, map(render.failure, filter(_is_problem, reports)), expendable=render.EXPENDABLE_RUN_COLUMNS
    )


def print_lineages(state: str, job: str | None, *, limit: int | None, as_json: bool) -> None:
    log = open_log(state, job)
    lineages = summarise_lineages(log, limit=limit)
    if as_json:
        _print_json(lineages)
    else:
        output.print_table(render.lineages_table(lineages, title=f"lineages of {log.job_id} at {state}"), ())


def print_savepoints(state: str, job: str | None, *, as_json: bool) -> None:
    log = open_log(state, job)
    savepoints = summarise_savepoints(log, newest_readable(log))
    if as_json:
        _print_json(savepoints)
    elif savepoints:
        shown = render.savepoints_table(savepoints, title=f"savepoints of {log.job_id} at {state}")
        output.print_table(shown, render.problems(savepoints))
    else:
        output.say(f"{log.job_id} has no savepoints at {state}")


def _is_problem(report: RunReport) -> bool:
    return report.is_problem


def _now_us() -> int:
    return time.time_ns() // 1000


def _print_json(summaries: Sequence[object]) -> None:
    output.print_json([output.with_times(summary) for summary in summaries])
