"""Metrics of jobs live as long as the process, and labels stay unique."""

from statebed.metrics.job_metrics import job_metrics


def test_a_job_that_starts_again_goes_on_with_its_counters() -> None:
    first = job_metrics("again", "/a")
    first.begin()
    first.end()
    assert job_metrics("again", "/a") is first


def test_two_jobs_of_one_name_that_run_at_once_have_different_labels() -> None:
    first = job_metrics("twice", "/a")
    first.begin()
    second = job_metrics("twice", "/b")
    assert first.job == "twice"
    assert second.job.startswith("twice at ")
    first.end()
    assert job_metrics("twice", "/c").job == "twice"
