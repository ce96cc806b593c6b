"""An argument of the wrong kind is refused by statebed, with the value as the user wrote it and what to do."""

import contextlib
import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest

import statebed as sb
from statebed.errors import InputError, StatebedError
from statebed.flow import Stream
from statebed.operators.window_definition import Window

ROWS = "k string, c bigint, tags array<string>, ts timestamp"
CHANGES = "k string, row_kind string, c bigint, ts timestamp"
WINDOW = sb.tumbling("1 minute")


def rows(columns: str = ROWS) -> Stream:
    return sb.Flow("shop").source("rows", columns, watermark=("ts", "1 minute"))


def joined(**terms: Any) -> Any:
    flow = sb.Flow("shop")
    left, right = (flow.source(name, ROWS, watermark=("ts", "1 minute")) for name in ("left", "right"))
    return left.join(right, **{"on": "k", "within": sb.between("0s", "1 minute"), **terms})


def looked_up(**terms: Any) -> Any:
    flow = sb.Flow("shop")
    left, right = (flow.source(name, ROWS, watermark=("ts", "1 minute")) for name in ("left", "right"))
    return left.lookup(right.broadcast("k"), **{"on": "k", **terms})


def grouped() -> Any:
    return rows().group_by("k", WINDOW)


def keyed() -> Any:
    return rows().key_by("k")


class Forwards(sb.Process):
    output = "k string"

    def on_batch(self, rows: Any, ctx: sb.Context) -> Any:
        return rows


Call = Callable[[Any], Any]
CALLS: dict[str, Call] = {
    "register_function name": lambda value: sb.Flow("f").register_function(value, len, returns="bigint"),
    "register_function": lambda value: sb.Flow("f").register_function("f", value, returns="bigint"),
    "where": lambda value: rows().where(value),
    "select": lambda value: rows().select(value),
    "explode names": lambda value: rows().explode("tags", value),
    "explode position": lambda value: rows().explode("tags", position=value),
    "side": lambda value: rows().side(value),
    "key_by": lambda value: rows().key_by(value),
    "deduplicate": lambda value: rows().deduplicate(value, ttl="1 day"),
    "deduplicate ttl": lambda value: rows().deduplicate("k", ttl=value),
    "changelog key": lambda value: rows(CHANGES).changelog(value, format="row_kind", order="c"),
    "changelog order": lambda value: rows(CHANGES).changelog("k", format="row_kind", order=value),
    "join on": lambda value: joined(on=value),
    "join suffixes": lambda value: joined(suffixes=value),
    "lookup on": lambda value: looked_up(on=value),
    "lookup suffixes": lambda value: looked_up(suffixes=value),
    "emit": lambda value: grouped().agg(n=sb.count(), emit=value),
    "over": lambda value: grouped().over("c", n=value),
    "lag rows": lambda value: grouped().over("c", n=sb.lag("c", value)),
    "ntile": lambda value: grouped().over("c", n=sb.ntile(value)),
    "top by": lambda value: keyed().top(1, value),
    "top number": lambda value: keyed().top(1, "c", number=value),
    "window top number": lambda value: grouped().top(1, "c", number=value),
    "ttl": lambda value: keyed().agg(n=sb.count(), ttl=value),
    "ttl_clock": lambda value: keyed().agg(n=sb.count(), ttl="1 day", ttl_clock=value),
    "process tables": lambda value: keyed().process(Forwards(), tables=value),
    "collect_list keep": lambda value: keyed().agg(n=sb.collect_list("c", limit=2, keep=value)),
    "precision": lambda value: keyed().agg(n=sb.approx_count_distinct("c", precision=value)),
    "accuracy": lambda value: keyed().agg(n=sb.approx_percentile("c", 0.5, accuracy=value)),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("value", [WINDOW, sb.session("1 minute"), {"k": 1}, sb.count(), ["k", 3]], ids=repr)
def test_a_value_of_the_wrong_kind_is_an_error_of_statebed_that_shows_what_was_written(call: Call, value: Any) -> None:
    with pytest.raises(InputError) as refused:
        call(value)
    assert refused.value.fix
    assert not any(internal in str(refused.value) for internal in ("width_us", "gap_us", "WindowShape", "Function("))


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("value", [None, 7, dt.timedelta(minutes=1), []], ids=repr)
def test_no_kind_of_value_raises_an_error_of_python(call: Call, value: Any) -> None:
    with contextlib.suppress(StatebedError):  # some of these values are valid
        call(value)


@pytest.mark.parametrize("name", ["where", "select", "key_by", "deduplicate", "ttl", "deduplicate ttl", "top by"])
def test_a_window_in_another_method_is_shown_as_written_and_belongs_to_group_by(name: str) -> None:
    with pytest.raises(InputError, match=r"tumbling\('1 minute'\)") as refused:
        CALLS[name](WINDOW)
    assert "pass the window to group_by" in refused.value.fix


def test_aggregates_and_window_functions_say_which_method_takes_them() -> None:
    with pytest.raises(InputError, match=r"got sum\('c', where='c > 1'\)\n(.*\n)*.*pass the aggregate to agg"):
        rows().where(sb.sum("c", where="c > 1"))  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"lag\('c', 2\) is not a statebed aggregate\n(.*\n)*.*over\("):
        keyed().agg(n=sb.lag("c", 2))
    with pytest.raises(InputError, match=r"count\(\) is not a window function\n(.*\n)*.*pass the aggregate to agg"):
        grouped().over("c", n=sb.count())


@pytest.mark.parametrize(
    "text",
    [
        "tumbling('1 minute')",
        "tumbling('1 hour', offset='10 minutes', on='ts')",
        "sliding('1 hour', '10 minutes')",
        "cumulative('1 day', '1 hour')",
        "session('5 minutes', on='ts')",
    ],
)
def test_a_window_is_shown_as_the_call_that_makes_it(text: str) -> None:
    names = {name: getattr(sb, name) for name in ("tumbling", "sliding", "cumulative", "session")}
    window = eval(text, names)  # noqa: S307 - texts of this test
    assert repr(window) == text
    assert eval(repr(window), names) == window  # noqa: S307
    assert not isinstance(window, Window) or Window.from_data(window.as_data()) == window


# ---- operators without a name ----------------------------------------------------------------------------------


def test_a_stream_without_a_name_is_shown_as_the_calls_that_make_it() -> None:
    counts = grouped().agg(n=sb.count())
    assert repr(counts).startswith("<Stream of group_by(k, tumbling window of 1 minute).agg: k string")
    assert repr(counts.late).startswith("<Stream of group_by(k, tumbling window of 1 minute).agg.late: ")
    assert repr(counts.where("n > 1")).startswith("<Stream of where n > 1 (group_by(k, tumbling window of 1 minute)")
    named = rows().group_by("k", WINDOW, name="per_minute").agg(n=sb.count())
    assert repr(named).startswith("<Stream of per_minute: ")


def test_the_same_operator_twice_is_named_by_its_calls() -> None:
    stream = rows()
    stream.group_by("k", WINDOW).agg(n=sb.count())
    with pytest.raises(InputError, match=r"has group_by\(k, tumbling window of 1 minute\)\.agg twice") as refused:
        stream.group_by("k", WINDOW).agg(n=sb.count())
    assert "name='other'" in refused.value.fix


def test_a_name_of_the_user_that_is_taken_is_shown_even_if_it_is_a_kind_of_operator() -> None:
    stream = rows()
    stream.group_by("k", WINDOW, name="window").agg(n=sb.count())
    with pytest.raises(InputError, match="two parts of the flow are called 'window'"):
        stream.group_by("k", WINDOW, name="window").agg(n=sb.sum("c"))
