"""Names of objects: validated, distinct, and parsed back."""

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebed.errors import InvalidNameError
from statebed.format import names

BAD = {
    "empty": "",
    "separator": "a/b",
    "backslash": "a\\b",
    "parent folder": "..",
    "hidden parent folder": "a..b",
    "dot": ".",
    "leading dot": ".a",
    "closing dot": "a.",
    "leading dash": "-a",
    "space": "a b",
    "newline": "a\n",
    "tabulator": "a\tb",
    "null character": "a\0b",
    "control character": "a\x1bb",
    "umlaut": "ä",
    "full-width digit": "\uff11",
    "kelvin sign that lowers to k": "\u212a",
    "long s that uppers to S": "\u017f",
    "right-to-left mark": "a\u202eb",
    "percent escape": "a%2Fb",
    "wildcard": "a*",
    "too long": "a" * (names.MAX_NAME_LENGTH + 1),
}
DIGEST = "0123456789abcdef" * 2

ids = st.from_regex(r"[A-Za-z0-9_]{1,8}", fullmatch=True)
free_names = st.from_regex(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,4}[.]?[A-Za-z0-9_]{1,3})?", fullmatch=True)
epochs = st.integers(1, 10**names.EPOCH_DIGITS - 1)
digests = st.from_regex(r"[0-9a-f]{32}", fullmatch=True)
indices = st.integers(0, 1 << 16)


@pytest.mark.parametrize("why", BAD)
@pytest.mark.parametrize("kind", ["job", "operator", "table", "sink", "savepoint"])
def test_a_name_that_cannot_be_part_of_an_object_name_is_refused(kind: str, why: str) -> None:
    with pytest.raises(InvalidNameError) as caught:
        names.check_name(kind, BAD[why])
    assert kind in caught.value.what
    assert "for example" in caught.value.fix
    assert len(caught.value.what) < 250


def test_a_name_of_another_type_is_refused() -> None:
    with pytest.raises(InvalidNameError):
        names.check_name("job", 7)  # type: ignore[arg-type]  # what this is about


@pytest.mark.parametrize("name", ["a", "A", "0", "_", "rides_per_minute", "x" * names.MAX_NAME_LENGTH, "v1.2-b"])
def test_ordinary_names_are_taken(name: str) -> None:
    assert names.check_name("job", name) == name


@pytest.mark.parametrize("name", ["a-b", "a.b"])
def test_separators_inside_operator_table_and_request_names_are_refused_with_a_proposal(name: str) -> None:
    makers: list[Callable[[], str]] = [
        lambda: names.operator_metadata(1, name, 0, DIGEST),
        lambda: names.data_file(1, "op", name, 0, DIGEST),
        lambda: names.outbox_file(1, "op", name, 0, DIGEST),
        lambda: names.request(name),
    ]
    for make in makers:
        with pytest.raises(InvalidNameError, match="'a_b'"):
            make()


@pytest.mark.parametrize("number", [0, -1, 10**names.EPOCH_DIGITS])
def test_numbers_outside_the_log_have_no_name(number: int) -> None:
    with pytest.raises(InvalidNameError):
        names.epoch_folder(number)


def test_one_more_object_with_the_same_bytes_has_a_name_of_its_own() -> None:
    first = names.data_file(7, "op", "t", 3, DIGEST)
    second, third = names.another(first, 2), names.another(first, 3)
    assert len({first, second, third}) == 3
    assert {names.digest_of(path) for path in (first, second, third)} == {DIGEST}
    assert {names.epoch_of(path) for path in (first, second, third)} == {7}
    assert second.startswith("checkpoints/000000000007/data/op-t-3.")


def test_a_negative_subtask_has_no_name() -> None:
    with pytest.raises(InvalidNameError):
        names.data_file(1, "op", "t", -1, DIGEST)


def test_names_are_those_of_the_specification() -> None:
    assert names.record(42) == "checkpoints/000000000042/checkpoint.metadata"
    assert (
        names.operator_metadata(42, "per_minute", 3, DIGEST)
        == f"checkpoints/000000000042/operator-per_minute-3.{DIGEST}.metadata"
    )
    assert (
        names.data_file(42, "per_minute", "windows", 3, DIGEST)
        == f"checkpoints/000000000042/data/per_minute-windows-3.{DIGEST}.parquet"
    )
    assert (
        names.outbox_file(42, "per_minute", "", 3, DIGEST)
        == f"checkpoints/000000000042/outbox/per_minute-3.{DIGEST}.parquet"
    )
    assert (
        names.outbox_file(42, "per_minute", "late", 3, DIGEST)
        == f"checkpoints/000000000042/outbox/per_minute-late-3.{DIGEST}.parquet"
    )
    assert names.published(42, "minutes") == "checkpoints/000000000042/published-minutes"
    assert (
        names.compacted_file(7, "per_minute", "windows", 3, DIGEST)
        == f"compactions/000000000007/per_minute-windows-3.{DIGEST}.parquet"
    )
    assert (
        names.savepoint(42, "before-upgrade", DIGEST)
        == f"checkpoints/000000000042/savepoint-before-upgrade.{DIGEST}.metadata"
    )
    assert names.answer("r1") == "requests/r1.answer"


@given(epochs, epochs)
def test_the_order_of_names_is_the_order_of_numbers(one: int, other: int) -> None:
    assert (names.record(one) < names.record(other)) == (one < other)


arguments = st.one_of(
    st.tuples(st.just("record"), epochs),
    st.tuples(st.just("operator_metadata"), epochs, ids, indices, digests),
    st.tuples(st.just("data_file"), epochs, ids, ids, indices, digests),
    st.tuples(st.just("outbox_file"), epochs, ids, st.one_of(st.just(""), ids), indices, digests),
    st.tuples(st.just("source_log"), epochs, digests),
    st.tuples(st.just("published"), epochs, free_names),
    st.tuples(st.just("compacted_file"), epochs, ids, ids, indices, digests),
    st.tuples(st.just("savepoint"), epochs, free_names, digests),
    st.tuples(st.just("request"), ids),
    st.tuples(st.just("answer"), ids),
    st.tuples(st.just("spark_folder"), epochs),
)


def make(call: tuple[object, ...]) -> str:
    name: str = getattr(names, str(call[0]))(*call[1:])
    return name


@given(st.sets(arguments, min_size=2, max_size=40))
def test_distinct_inputs_give_distinct_names(calls: set[tuple[object, ...]]) -> None:
    made = {call: make(call) for call in calls}
    for one, other in itertools.combinations(made, 2):
        assert made[one] != made[other], (one, other)


@given(arguments)
def test_names_stay_inside_the_jobs_folder(call: tuple[object, ...]) -> None:
    parts = make(call).split("/")
    assert all(part and part not in {".", ".."} for part in parts)


@given(arguments)
def test_the_epoch_the_run_and_the_sink_are_read_back_from_a_name(call: tuple[object, ...]) -> None:
    path = make(call)
    in_checkpoints = call[0] not in {"compacted_file", "request", "answer", "spark_folder"}
    assert names.epoch_of(path) == (call[1] if in_checkpoints else None)
    assert names.run_of_compaction(path) == (call[1] if call[0] == "compacted_file" else None)
    assert names.sink_of_marker(path) == (call[2] if call[0] == "published" else None)


@pytest.mark.parametrize(
    "path",
    [
        "checkpoints/0000000000421/checkpoint.metadata",
        "checkpoints/42/checkpoint.metadata",
        "checkpoints/٠٠٠٠٠٠٠٠٠٠٤٢/checkpoint.metadata",
        "xcheckpoints/000000000042/a",
        "checkpoints",
    ],
)
def test_a_strange_path_is_of_no_epoch(path: str) -> None:
    assert names.epoch_of(path) is None


def test_any_name_has_a_stored_form_of_its_own() -> None:
    for name in ("rides", "rides-per.minute", "_x"):
        assert names.stored_name(name) == name
    others = ["Überweisungen", "Uberweisungen ", "日本", "本日", "order items", "..", "", "x" * 500]
    stored = [names.stored_name(name) for name in others]
    assert len(set(stored)) == len(others)
    assert all(names.check_name("operator", name) == name for name in stored)
    assert stored[0] == "Uberweisungen_4d4c000f", "stored names never change"
