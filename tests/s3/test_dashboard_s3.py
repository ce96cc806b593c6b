"""The dashboard over a real S3 server: while a job writes, and with a long log."""

import time

import pytest
from dashboard_client import DashboardClient
from dashboard_jobs import written
from large_job import write_large_job
from s3.server import S3Server

from statebed.storage import ObjectStore, get_storage_provider

pytestmark = pytest.mark.s3
WITHIN_SECONDS = 1.0


@pytest.fixture
def as_users_do(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials in the environment."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("as_users_do")
def test_a_job_on_s3_is_shown_while_it_writes(s3_url: str) -> None:
    with written(get_storage_provider(s3_url)) as writer:
        writer.epochs(3)
        client = DashboardClient(s3_url)
        assert ">4</a>" in client.get("/jobs/rides").text
        writer.epochs(1)
        page = client.get("/jobs/rides").text
        assert ">5</a>" in page
        assert "Epoch durations" in page
        rows = client.get("/jobs/rides/operators/earned/tables/groups/rows", params={"key0": "driver 7"})
        assert "<bdi>driver 7</bdi>" in rows.text
        changes = client.get("/jobs/rides/operators/earned/tables/groups/changes?epoch=5")
        assert "update after" in changes.text
    assert client.get("/jobs/nobody").status_code == 404


@pytest.mark.usefixtures("as_users_do")
@pytest.mark.parametrize("epochs", [1_500, pytest.param(10_000, marks=pytest.mark.long)])
def test_a_long_log_on_s3_opens_within_a_second(s3_store: ObjectStore, s3_url: str, epochs: int) -> None:
    write_large_job(s3_store.put, epochs=epochs)

    def seconds() -> float:
        client = DashboardClient(s3_url)
        begin = time.perf_counter()
        answer = client.get("/jobs/large")
        took = time.perf_counter() - begin
        assert f">{epochs:,}</a>" in answer.text
        return took

    assert any(seconds() < WITHIN_SECONDS for _ in range(3))  # the machine may have other work


@pytest.mark.usefixtures("as_users_do")
def test_a_bucket_that_is_not_there_is_explained() -> None:
    answer = DashboardClient("s3://nowhere-at-all/state").get("/")
    assert answer.status_code == 404
    assert "bucket" in answer.text
