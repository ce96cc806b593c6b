"""`statebed verify` checks the tables of sinks, too, and names every damaged file of them."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import Call
from unit.sinks.publishing import JOB, commit, make_sink, open_run

from statebed.checkpoint import Publisher
from statebed.protocol.sink_history import AcceptedLoss
from statebed.sinks.manifest import verify_table
from statebed.sinks.manifest.table_state import TAIL_ENTRIES
from statebed.storage import LocalStore

EPOCHS = TAIL_ENTRIES + 2


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job and its table, long enough to have pages."""
    folder = tmp_path_factory.mktemp("template")
    run = open_run(LocalStore(folder / "state"))
    publisher = Publisher(run, [make_sink("parquet", str(folder / "table"))])
    publisher.open()
    for _ in range(EPOCHS):
        commit(run)
        publisher.publish_pending()
    return folder


@pytest.fixture
def state(template: Path, tmp_path: Path) -> str:
    shutil.copytree(template / "state", tmp_path / "state")
    return str(tmp_path / "state")


@pytest.fixture
def table(template: Path, tmp_path: Path) -> Path:
    shutil.copytree(template / "table", tmp_path / "table")
    return tmp_path / "table"


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def test_p7_verify_checks_tables_that_are_named(statebed: Call, state: str, table: Path) -> None:
    whole = statebed("verify", state, JOB, "--table", str(table))
    assert whole.code == 0
    assert f"of counts/out: {2 * EPOCHS} files" in whole.out
    assert f"up to epoch {EPOCHS + 1}: intact\n" in whole.out
    damaged, missing = (next(table.glob(f"epoch=*{epoch:03d}/*.parquet")) for epoch in (5, 40))
    flip(damaged)
    missing.unlink()
    told = statebed("verify", state, JOB, "--table", str(table))
    assert told.code == 1
    assert f"{damaged}\n" in told.out
    assert f"{missing}\n" in told.out
    assert "2 objects damaged or missing" in told.out
    told = statebed("verify", state, JOB, "--no-sinks", "--table", str(table), "--json")
    [found] = json.loads(told.out)["tables"]
    assert [Path(one["where"]).name for one in found["findings"]] == [damaged.name, missing.name]


def test_p7_verify_finds_the_tables_of_a_job_in_its_newest_record(statebed: Call, template: Path) -> None:
    state, table = str(template / "state"), template / "table"
    assert f"table {table} of counts/out: {2 * EPOCHS} files" in statebed("verify", state, JOB).out
    assert "table" not in statebed("verify", state, JOB, "--no-sinks").out
    assert "table" not in statebed("verify", state, JOB, "--epoch", str(EPOCHS)).out
    damaged = next(table.glob("epoch=*005/*.parquet"))
    good = damaged.read_bytes()
    flip(damaged)
    told = statebed("verify", state, JOB)
    damaged.write_bytes(good)
    assert (told.code, str(damaged) in told.out) == (1, True)
    assert statebed("verify", state, JOB, "--no-sinks").code == 0


def test_p7_verify_misses_a_table_that_had_epochs(statebed: Call, template: Path) -> None:
    shutil.move(template / "table", template / "moved")
    told = statebed("verify", str(template / "state"), JOB)
    moved = statebed("verify", str(template / "state"), JOB, "--no-sinks", "--table", str(template / "moved"))
    shutil.move(template / "moved", template / "table")
    assert told.code == 1
    assert f"the table is missing; the job published epoch {EPOCHS + 1}" in told.out
    assert moved.code == 0


def job_with_table(folder: Path, epochs: int) -> Iterator[int]:
    run = open_run(LocalStore(folder / "state"))
    publisher = Publisher(run, [make_sink("parquet", str(folder / "table"))])
    publisher.open()
    for _ in range(epochs):
        commit(run)
        publisher.publish_pending()
        yield run.head.epoch


def test_p7_verify_misses_the_only_epoch_of_a_table(statebed: Call, tmp_path: Path) -> None:
    [epoch] = job_with_table(tmp_path, 1)
    assert statebed("verify", str(tmp_path / "state"), JOB).code == 0
    shutil.rmtree(tmp_path / "table")
    told = statebed("verify", str(tmp_path / "state"), JOB)
    assert told.code == 1
    assert f"the table is missing; the job published epoch {epoch} to it" in told.out


def test_p7_verify_misses_epochs_of_a_table_from_an_older_backup(statebed: Call, tmp_path: Path) -> None:
    epochs = []
    for epoch in job_with_table(tmp_path, 3):
        epochs.append(epoch)
        shutil.copytree(tmp_path / "table", tmp_path / f"backup{epoch}")
    for backup in epochs[:2]:
        shutil.rmtree(tmp_path / "table")
        shutil.copytree(tmp_path / f"backup{backup}", tmp_path / "table")
        told = statebed("verify", str(tmp_path / "state"), JOB)
        assert told.code == 1
        assert f"the table ends at epoch {backup}, but the job published epoch {epochs[2]} to it" in told.out
    named = verify_table(str(tmp_path / "table"), published=epochs[2], accepted=AcceptedLoss(epochs[1], epochs[2]))
    assert named.whole


def test_p7_verify_does_not_miss_an_epoch_that_is_not_published_yet(statebed: Call, tmp_path: Path) -> None:
    run = open_run(LocalStore(tmp_path / "state"))
    publisher = Publisher(run, [make_sink("parquet", str(tmp_path / "table"))])
    publisher.open()
    for is_published in (True, False, False):
        commit(run)
        if is_published:
            publisher.publish_pending()
    assert statebed("verify", str(tmp_path / "state"), JOB).code == 0


def test_p7_verify_names_damaged_pages_and_entries(table: Path) -> None:
    [page] = (table / "_statebed" / "pages").iterdir()
    good = page.read_bytes()
    flip(page)
    found = verify_table(str(table))
    assert [Path(one.where).name for one in found.findings] == [page.name]
    assert 0 < found.files < 2 * EPOCHS  # those that no page lists
    page.write_bytes(good)
    entry = max((table / "_statebed").glob("*.json"))
    flip(entry)
    [damage] = verify_table(str(table)).findings
    assert damage.where.endswith(entry.name)
    assert "checksum" in damage.problem
