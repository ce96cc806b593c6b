"""Change events of databases as changelogs: what an operator behind them finds is the table of the database."""

import random
from typing import Any

import pytest
from effort import examples

import statebed as sb
from statebed.errors import InputError

DEBEZIUM = (
    "before struct<id:bigint,city:string,n:bigint>, after struct<id:bigint,city:string,n:bigint>, op string, "
    "source struct<lsn:bigint>"
)
KINDS = "id bigint, city string, n bigint, row_kind string, lsn bigint"
DELTA = "id bigint, city string, n bigint, _change_type string, _commit_version bigint, _commit_timestamp timestamp"
Row = tuple[int, str, int]


def row_of(row: Row | None) -> dict[str, Any] | None:
    return None if row is None else dict(zip(("id", "city", "n"), row, strict=True))


def debezium(lsn: int, before: Row | None, after: Row | None, *, op: str = "") -> dict[str, Any]:
    kind = op or ("c" if before is None else "d" if after is None else "u")
    return {"before": row_of(before), "after": row_of(after), "op": kind, "source": {"lsn": lsn}}


def row_kinds(lsn: int, before: Row | None, after: Row | None) -> list[dict[str, Any]]:
    if before is None or after is None:
        return [{**(row_of(after or before) or {}), "row_kind": "insert" if after else "delete", "lsn": lsn}]
    named = (("update_before", before), ("update_after", after))
    return [{**(row_of(row) or {}), "row_kind": kind, "lsn": lsn} for kind, row in named]


def delta_changes(version: int, before: Row | None, after: Row | None) -> list[dict[str, Any]]:
    kinds = {
        "insert": "insert",
        "delete": "delete",
        "update_before": "update_preimage",
        "update_after": "update_postimage",
    }
    found = []
    for row in row_kinds(version, before, after):
        kind, position = kinds[row.pop("row_kind")], row.pop("lsn")
        found.append({**row, "_change_type": kind, "_commit_version": position, "_commit_timestamp": None})
    return found


@pytest.mark.parametrize("events_of", ["debezium", "row_kind", "delta_cdf"])
@pytest.mark.parametrize("seed", range(examples(1)))
def test_p6_whatever_is_repeated_or_out_of_order_the_newest_row_of_each_key_counts(events_of: str, seed: int) -> None:
    """A table changes at random; its events arrive in any order and some twice, over crashes and rescaling."""
    rng = random.Random(seed)
    table: dict[int, Row] = {}
    events: list[dict[str, Any]] = []
    for position in range(1, 50):
        key = rng.randrange(8)
        before = table.pop(key, None)
        after = None if before is not None and rng.random() < 0.4 else (key, rng.choice("ab"), position)
        if after is not None:
            table[key] = after
        if events_of == "debezium":
            # Most databases leave the row before an update out, and keep the key of a deleted one only.
            shown = before if before is None or rng.random() < 0.5 else (key, None, None)
            events.append(debezium(position, shown, after))  # type: ignore[arg-type]
        else:
            events += (row_kinds if events_of == "row_kind" else delta_changes)(position, before, after)
    events += rng.choices(events, k=10)
    rng.shuffle(events)
    flow = sb.Flow("cdc")
    columns = {"debezium": DEBEZIUM, "row_kind": KINDS, "delta_cdf": DELTA}[events_of]
    order = "lsn" if events_of == "row_kind" else ()
    rows = flow.source("events", columns).changelog("id", format=events_of, order=order, name="rows")
    rows.key_by("city", name="cities").agg(rows=sb.count(), total=sb.sum("n"), most=sb.max("n"))
    rows.key_by(name="everything").agg(rows=sb.count())
    with sb.testing.run(flow) as test:
        while events:
            count = rng.randint(1, 12)
            test.feed("events", events[:count])
            del events[:count]
            if rng.random() < 0.3:
                test.crash()
            elif rng.random() < 0.3:
                test.rescale(rng.choice([1, 2, 3]))
        assert sorted(tuple(row.values())[:3] for row in test.output("rows")) == sorted(table.values())
        expected = {
            city: (len(values), sum(values), max(values))
            for city in "ab"
            if (values := [n for _, where, n in table.values() if where == city])
        }
        found = {row["city"]: (row["rows"], row["total"], row["most"]) for row in test.output("cities")}
        assert found == expected
        assert test.output("everything") == ([{"rows": len(table)}] if table else [])


def test_a_snapshot_is_the_beginning_and_may_come_again() -> None:
    flow = sb.Flow("cdc")
    flow.source("events", DEBEZIUM).changelog("id", format="debezium", name="rows")
    with sb.testing.run(flow) as test:
        snapshot = [debezium(7, None, (key, "a", key), op="r") for key in range(3)]
        test.feed("events", snapshot)
        test.feed("events", [debezium(9, None, (1, "b", 10)), debezium(10, (2, "", 0), None)])
        test.feed("events", snapshot)
        assert sorted(row["n"] for row in test.output("rows")) == [0, 10]


def test_a_tombstone_of_a_compacted_topic_changes_nothing() -> None:
    flow = sb.Flow("cdc")
    flow.source("events", DEBEZIUM).changelog("id", format="debezium", name="rows")
    with sb.testing.run(flow) as test:
        test.feed(
            "events", [debezium(1, None, (1, "a", 1)), {"before": None, "after": None, "op": None, "source": None}]
        )
        assert [row["id"] for row in test.output("rows")] == [1]


def test_a_delete_and_an_insert_at_one_position_are_a_new_row() -> None:
    flow = sb.Flow("cdc")
    flow.source("events", DELTA).changelog("id", format="delta_cdf", name="rows")
    with sb.testing.run(flow) as test:
        test.feed("events", delta_changes(1, None, (1, "a", 1)))
        test.feed("events", [*delta_changes(2, (1, "a", 1), None), *delta_changes(2, None, (1, "a", 2))])
        assert [row["n"] for row in test.output("rows")] == [2]


def test_a_log_without_a_known_position_is_refused_with_what_to_do() -> None:
    source = sb.Flow("cdc").source("events", "before struct<id:int>, after struct<id:int>, op string, offset bigint")
    with pytest.raises(InputError, match="the position of an event in its log is unknown") as caught:
        source.changelog("id", format="debezium")
    assert "order='offset'" in (caught.value.fix or "")
    assert source.changelog("id", format="debezium", order="offset").columns == ["id"]
    with pytest.raises(InputError, match="do not say which change of a key is newer"):
        sb.Flow("cdc").source("events", "id int, row_kind string").changelog("id", format="row_kind")


@pytest.mark.parametrize(
    ("columns", "key", "given", "words"),
    [
        (KINDS, "id", "avro", "`format` must be one of"),
        (KINDS, "id", "debezium", "have the columns before, after, op, but the source has only"),
        (DEBEZIUM, "no", "debezium", "the key column no is not in `after`"),
        (KINDS, "no", "row_kind", "the key column no is not in the source"),
        ("before string, after string, op string", "id", "debezium", "must be structs of the same type"),
    ],
)
def test_a_mistake_is_refused_at_its_line(columns: str, key: str, given: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        sb.Flow("cdc").source("events", columns).changelog(key, format=given, order="lsn")


def changes_of_orders() -> tuple[sb.Flow, Any]:
    flow = sb.Flow("cdc")
    columns = "id bigint, city string, n bigint, at timestamp, row_kind string, lsn bigint"
    source = flow.source("events", columns, watermark=("at", "10 seconds"))
    return flow, source.changelog("id", format="row_kind", order="lsn", name="rows").select("id", "city", "n", "at")


ACCEPTED = {
    "an aggregate by key": lambda rows: rows.key_by("city").agg(n=sb.sum("n")),
    "an aggregate without key": lambda rows: rows.key_by().agg(n=sb.sum("n"), most=sb.max("n")),
    "a window": lambda rows: rows.group_by("city", sb.tumbling("1 minute")).agg(n=sb.sum("n")),
    "a sliding window": lambda rows: rows.group_by("city", sb.sliding("1 minute", "30 seconds")).agg(n=sb.count()),
    "top-n of a window": lambda rows: rows.group_by("city", sb.tumbling("1 minute")).top(1, "n"),
    "top-n": lambda rows: rows.key_by("city").top(2, "n desc"),
    "an updating join": lambda rows: rows.join(rows.select("id as other", "n as m"), on=sb.eq("id", "other")),
}
REFUSED = {
    "a session": (lambda rows: rows.group_by("city", sb.session("1 minute")).agg(n=sb.sum("n")), "changelog"),
    "deduplication": (lambda rows: rows.deduplicate("city"), "the input is a changelog"),
    "an interval join": (
        lambda rows: rows.join(rows.select("id as other"), on=sb.eq("id", "other"), within=sb.between("0s", "1s")),
        "changelog",
    ),
    "a changelog of a changelog": (
        lambda rows: rows.changelog("id", format="row_kind", order="n"),
        "row_kind|changelog",
    ),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_an_operator_that_can_retract_takes_a_changelog(name: str) -> None:
    _, rows = changes_of_orders()
    assert ACCEPTED[name](rows) is not None


@pytest.mark.parametrize("name", REFUSED)
def test_an_operator_that_cannot_retract_refuses_a_changelog_by_name(name: str) -> None:
    _, rows = changes_of_orders()
    make, words = REFUSED[name]
    with pytest.raises(InputError, match=words):
        make(rows)  # type: ignore[no-untyped-call]


def test_a_window_takes_a_row_back_that_is_deleted_before_it_closes() -> None:
    flow, rows = changes_of_orders()
    rows.group_by("city", sb.tumbling("1 minute"), name="minutes").agg(rows=sb.count(), n=sb.sum("n"))

    def event(lsn: int, kind: str, key: int, n: int, second: int) -> dict[str, Any]:
        at = f"2026-01-01T12:00:{second:02d}Z"
        return {"id": key, "city": "a", "n": n, "at": at, "row_kind": kind, "lsn": lsn}

    with sb.testing.run(flow) as test:
        test.feed("events", [event(1, "insert", 1, 5, 1), event(2, "insert", 2, 7, 2)])
        test.feed("events", [event(3, "delete", 1, 5, 3), event(4, "update_after", 2, 9, 4)])
        test.watermark("2026-01-01T12:02:00Z")
        assert [(row["rows"], row["n"]) for row in test.output("minutes")] == [(1, 9)]
