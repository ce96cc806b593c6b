"""The memory of a host, divided by what runs there."""

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebed.config import Settings, resolve
from statebed.errors import InputError
from statebed.spark.plan.host_memory import (
    MIN_PER_TASK,
    Executor,
    TaskShare,
    cache_path,
    check_shares,
    host_budget,
    host_memory,
    host_slots,
    in_memory,
)

GIB = 1 << 30
MIB = 1 << 20


@given(st.integers(1, 1 << 44), st.integers(1, 512), st.floats(0, 0.9))
def test_p4_cache_and_tasks_together_never_exceed_the_memory_of_the_host(memory: int, slots: int, share: float) -> None:
    try:
        budget = host_budget(memory, slots, cache_share=share)
    except InputError as refused:
        assert memory - int(memory * share) < MIN_PER_TASK * slots
        least = int(refused.fix.partition("memory='")[2].partition("m'")[0]) * MIB
        assert least > memory
        assert host_budget(least, slots, cache_share=share).per_task_bytes >= MIN_PER_TASK
        return
    assert budget.cache_bytes + slots * budget.per_task_bytes <= memory
    assert budget.per_task_bytes >= MIN_PER_TASK


def test_the_budget_is_told_in_words() -> None:
    assert host_budget(2 * GIB, 2).described() == (
        "2 GiB per host: 1 GiB for the host cache, 512 MiB for each of 2 task slots"
    )
    assert host_budget(GIB, 1, cache_share=0).described().endswith("1 GiB for the only task slot")


def test_too_little_is_refused_with_the_least_that_works() -> None:
    with pytest.raises(InputError, match="leaves 8 MiB for each of 4 task slots") as caught:
        host_budget(64 * MIB, 4)
    assert "memory='128m'" in caught.value.fix
    assert host_budget(128 * MIB, 4).per_task_bytes == MIN_PER_TASK


@pytest.mark.parametrize(
    ("available", "slots", "memory"),
    [
        (8 * GIB, 4, 2 * GIB),  # a laptop: a quarter
        (64 * GIB, 4, 4 * GIB),  # a large one: no more than it needs
        (512 * GIB, 128, 64 * GIB),  # a large host with many slots: enough for each
        (GIB, 2, GIB // 4),
    ],
)
def test_the_default_is_a_fraction_of_what_the_host_has(available: int, slots: int, memory: int) -> None:
    assert host_memory(None, available=available, slots=slots) == memory
    assert host_budget(memory, slots).per_task_bytes >= MIN_PER_TASK


def test_more_than_the_host_has_is_refused() -> None:
    assert host_memory(3 * GIB, available=4 * GIB, slots=2) == 3 * GIB
    with pytest.raises(InputError, match=r"memory=5 GiB is more than a host has: 4 GiB") as caught:
        host_memory(5 * GIB, available=4 * GIB, slots=2)
    assert "memory='1024m'" in caught.value.fix


def test_executors_of_one_host_are_added_up_and_the_fullest_host_counts() -> None:
    executors = [Executor("1", "a", 4), Executor("2", "b", 2), Executor("3", "a", 4)]
    assert host_slots(executors, {}) == 8


def test_before_any_executor_has_come_the_configuration_says_what_one_has() -> None:
    assert host_slots([], {"spark.executor.cores": "8", "spark.task.cpus": "2"}) == 4
    assert host_slots([], {"spark.executor.cores": "2", "spark.task.cpus": "4"}) == 1
    assert host_slots([], {}) == 1


def place(folder: Path, host: dict[str, str], **places: dict[str, str]) -> Path:
    """Return the cache folder of a host with this environment, for a job with this setting."""
    keywords, spark, environ = (places.get(name, {}) for name in ("keywords", "spark", "environ"))
    settings = resolve(keywords, spark_conf=spark, environ=environ, folder=folder)
    share = TaskShare.of(host_budget(GIB, 2), settings)
    return cache_path(share.cache_folder, firm=share.cache_folder_is_firm, environ=host)


def test_the_folder_of_the_cache_is_the_hosts_own_unless_the_job_insists(tmp_path: Path) -> None:
    host = {"STATEBED_CACHE_FOLDER": "/of/host", "XDG_CACHE_HOME": "/of/user"}
    driver = {"STATEBED_CACHE_FOLDER": "/of/driver"}
    assert place(tmp_path, host) == Path("/of/host")
    assert place(tmp_path, host, environ=driver) == Path("/of/host")
    assert place(tmp_path, {}, environ=driver) == Path("/of/driver")
    assert place(tmp_path, host, keywords={"cache_folder": "/of/job"}) == Path("/of/job")
    assert place(tmp_path, host, spark={"spark.statebed.cache_folder": "/of/spark"}) == Path("/of/spark")
    assert place(tmp_path, {}, keywords={"cache_folder": "~/fast"}) == Path.home() / "fast"


def test_without_a_word_the_cache_is_in_the_users_cache_folder_or_among_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert place(tmp_path, {"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "statebed" / "host-cache"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert place(tmp_path, {}) == tmp_path / ".cache" / "statebed" / "host-cache"
    # A user without a home, as executors often have.
    (tmp_path / "no-folder").touch()
    found = place(tmp_path, {"XDG_CACHE_HOME": str(tmp_path / "no-folder")})
    assert found == Path(tempfile.gettempdir(), f"statebed-{os.getuid()}", "host-cache")


def test_a_task_opens_the_cache_of_its_host(tmp_path: Path) -> None:
    settings = Settings(cache_folder=str(tmp_path / "cache"), cache_limit=3 * MIB)
    cache = TaskShare.of(host_budget(GIB, 2), settings).open_cache()
    assert (cache.folder, cache.limit_bytes) == (tmp_path / "cache", 3 * MIB)


def test_a_cache_in_memory_is_limited_by_the_memory_of_the_host(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"disk / ext4 rw 0 0\ntmpfs {tmp_path}/shm tmpfs rw 0 0\n")
    found = TaskShare.of(host_budget(GIB, 2), Settings(cache_limit=600 * MIB))
    assert found.cache_limit_at(tmp_path / "shm" / "deep", mounts) == 512 * MIB
    assert found.cache_limit_at(tmp_path / "cache", mounts) == 600 * MIB
    assert not in_memory(tmp_path, tmp_path / "no such file")


def test_shares_of_memory_travel_with_tasks() -> None:
    settings = resolve({"memory_shares": {"joined": "40%"}}, spark_conf={}, environ={}, folder=Path("/"))
    share = TaskShare.of(host_budget(2 * GIB, 2), settings)
    assert share.memory_controller().snapshot().guarantees == {"joined": int(0.4 * share.memory_bytes)}


def test_a_share_of_an_operator_that_the_job_does_not_have_is_refused() -> None:
    settings = resolve({"memory_shares": {"joind": "40%"}}, spark_conf={}, environ={}, folder=Path("/"))
    with pytest.raises(InputError, match="memory_shares names 'joind'") as caught:
        check_shares(settings, [], where="job rides")
    assert caught.value.where == "job rides, keyword memory_shares="
