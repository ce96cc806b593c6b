"""One server for all jobs of a process, for as long as one of them wants it."""

import socket
import urllib.error
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from statebed.errors import InputError
from statebed.metrics import CONTENT_TYPE, Endpoints, JobMetrics


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - our own server
        assert answer.headers["Content-Type"] == CONTENT_TYPE
        return str(answer.read().decode())


def jobs_at(url: str) -> set[str]:
    return {
        sample.labels["job_name"] for family in text_string_to_metric_families(get(url)) for sample in family.samples
    }


def test_jobs_share_a_server_that_ends_with_the_last() -> None:
    endpoints, one, other = Endpoints(), JobMetrics("one"), JobMetrics("other")
    url = endpoints.join(one, address="127.0.0.1", port=0)
    assert endpoints.join(other, address="127.0.0.1", port=0) == url
    assert url.startswith("http://127.0.0.1:")
    assert jobs_at(url) == {"one", "other"}
    endpoints.leave(one)
    assert jobs_at(url) == {"other"}
    endpoints.leave(other)
    with pytest.raises(urllib.error.URLError):
        get(url)
    endpoints.leave(other)


def test_a_query_that_begins_before_the_one_it_replaces_has_ended_keeps_the_server() -> None:
    endpoints, metrics = Endpoints(), JobMetrics("one")
    url = endpoints.join(metrics, address="127.0.0.1", port=0)
    endpoints.join(metrics, address="127.0.0.1", port=0)
    endpoints.leave(metrics)
    assert jobs_at(url) == {"one"}
    assert get(url).count("# TYPE statebed_events_total counter") == 1
    endpoints.leave(metrics)


def test_only_metrics_are_answered_and_nothing_can_be_written() -> None:
    endpoints, metrics = Endpoints(), JobMetrics("one")
    url = endpoints.join(metrics, address="127.0.0.1", port=0)
    try:
        with pytest.raises(urllib.error.HTTPError) as caught:
            get(url.replace("/metrics", "/other"))
        assert caught.value.code == 404
        caught.value.close()
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(urllib.request.Request(url, data=b"x"), timeout=10)  # noqa: S310 - our own server
        assert caught.value.code == 501
        caught.value.close()
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=10) as answer:  # noqa: S310
            assert answer.read() == b""
    finally:
        endpoints.leave(metrics)


def test_an_address_of_version_6_is_served_too() -> None:
    endpoints, metrics = Endpoints(), JobMetrics("one")
    try:
        url = endpoints.join(metrics, address="::1", port=0)
    except InputError:
        pytest.skip("this machine has no IPv6")
    assert url.startswith("http://[::1]:")
    assert jobs_at(url) == {"one"}
    endpoints.leave(metrics)


def test_a_port_that_is_taken_is_an_error_that_says_so() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(InputError, match="cannot serve metrics") as caught:
            Endpoints().join(JobMetrics("one"), address="127.0.0.1", port=taken.getsockname()[1])
    assert "another metrics_port" in caught.value.fix
