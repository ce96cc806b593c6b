"""Windows in SQL text: which grouping sets close, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
from spark.sql_tables import BIDS, check_mistake

import statebed as sb
from statebed.errors import InputError
from statebed.format.stream_schema import Changes

HOP = "HOP(ts, INTERVAL '10' SECONDS, INTERVAL '1' MINUTE)"
HOPS = "TABLE(HOP(TABLE bids, DESCRIPTOR(ts), INTERVAL '10' SECONDS, INTERVAL '1' MINUTE))"
SESSIONS = "TABLE(SESSION(TABLE bids PARTITION BY auction, DESCRIPTOR(ts), INTERVAL '1' MINUTE))"
NOT_IN_ALL_SETS = (
    "ROLLUP, CUBE or GROUPING SETS cannot run on statebed: a sliding, cumulative or session window, or a part of it, "
    "is not in all of the grouping sets"
)
CUMULATED_TABLE = HOPS.replace("HOP", "CUMULATE")
MISTAKES = {
    f"SELECT note, count(*) AS n FROM {HOPS}\nGROUP BY window_start, ROLLUP(window_end, note)": (
        NOT_IN_ALL_SETS,
        "GROUP BY window_start",
        "GROUP BY window_start, window_end, ROLLUP(k); or group by the function: ROLLUP(HOP(ts",
    ),
    f"SELECT note, count(*) AS n FROM {CUMULATED_TABLE}\nGROUP BY CUBE(window_start, note)": (
        NOT_IN_ALL_SETS,
        "GROUP BY CUBE",
        "GROUP BY window_start, window_end, ROLLUP(k)",
    ),
    f"SELECT note, count(*) AS n FROM {SESSIONS}\nGROUP BY GROUPING SETS ((window_start, note), (note))": (
        NOT_IN_ALL_SETS,
        "GROUP BY GROUPING SETS",
        "keep the session outside: GROUP BY SESSION(ts, INTERVAL '5' MINUTES), ROLLUP(k)",
    ),
    "SELECT count(*) FROM bids\nGROUP BY ROLLUP(SESSION(ts, INTERVAL '5' MINUTES), note)": (
        NOT_IN_ALL_SETS,
        "GROUP BY ROLLUP",
        "keep the session outside: GROUP BY SESSION(ts, INTERVAL '5' MINUTES), ROLLUP(k)",
    ),
    "WITH d AS (SELECT DISTINCT note, ts FROM bids)\n"
    "SELECT count(*) FROM d GROUP BY CUBE(SESSION(ts, '5 minutes'), note)": (
        "SESSION or CUMULATE is a key of rollup, cube or grouping sets",
        "GROUP BY CUBE",
        "GROUP BY window_start, window_end, ROLLUP(k)",
    ),
    # Rows alone do not tell what the session of a row is.
    f"SELECT window_start, price FROM {SESSIONS}": (
        "SELECT cannot run on statebed: a window is used in the result before its aggregation",
        "SELECT window_start",
        "GROUP BY window_start, window_end",
    ),
    f"WITH s AS (SELECT * FROM {SESSIONS}) SELECT window_start, price\nFROM s": (
        "SELECT cannot run on statebed: a window is used in the result before its aggregation",
        "WITH s AS",
        "GROUP BY window_start, window_end",
    ),
    f"SELECT auction, count(*) FROM {SESSIONS}\nWHERE window_end > TIMESTAMP '2024-01-01 00:00:00'\n"
    "GROUP BY auction, window_start, window_end": (
        "a window is used before its aggregation",
        "window_end > TIMESTAMP",
        "HAVING window_start >= ...",
    ),
    f"SELECT auction, count(*) FROM {SESSIONS}\nWHERE price > 3 GROUP BY auction, window_start, window_end": (
        "SESSION has found the sessions of all rows, and the condition removes some of them",
        "price > 3",
        "TABLE(SESSION(TABLE (SELECT * FROM bids WHERE price > 3) PARTITION BY auction",
    ),
    f"SELECT count(*) FROM {HOPS} GROUP BY\n date_trunc('HOUR', window_start)": (
        "it groups by date_trunc('HOUR', window_start), which reads a window before its aggregation",
        "GROUP BY",
        "GROUP BY window_start, window_end",
    ),
    "SELECT SESSION_START(at, INTERVAL '5' MINUTES) FROM (SELECT timestamp_millis(price) AS at FROM bids)": (
        "SESSION and CUMULATE are windows over the event time of the rows",
        "SELECT SESSION_START",
        "WATERMARK FOR ts",
    ),
    f"SELECT note, max(window_end) AS n FROM {SESSIONS}\nGROUP BY note": (
        "GROUP BY cannot run on statebed: max(window_end) reads a window before its aggregation",
        "GROUP BY note",
        "select the window itself",
    ),
    f"SELECT DISTINCT window_start FROM {SESSIONS}": (
        "a window is used in",
        "SELECT DISTINCT",
        "GROUP BY window_start, window_end",
    ),
    "SELECT note, SESSION_START(ts, INTERVAL '5' MINUTES) AS s, price FROM bids": (
        "a window is used in the result before its aggregation",
        "SELECT note",
        "GROUP BY window_start, window_end",
    ),
    "SELECT count(*) FROM bids GROUP BY session_window(ts, if(price > 3, '5 seconds', '1 minute'))": (
        "which differs from row to row",
        "GROUP BY session_window",
        "SESSION(ts, INTERVAL '5' MINUTES)",
    ),
    f"SELECT count(*) FROM bids GROUP BY TUMBLE(ts, INTERVAL '1' MINUTE), {HOP}": (
        "Multiple time/session window expressions would result in a cartesian product of rows",
        "GROUP BY TUMBLE",
        "group by one of the windows, and by the other in another query",
    ),
    f"SELECT window_start, count(*) AS n FROM {HOPS}\nWHERE window_start > TIMESTAMP '2024-01-01 00:00:00'\n"
    "GROUP BY window_start, window_end": (
        "a condition cannot run on statebed: (window_start > ",
        "window_start > TIMESTAMP",
        "HAVING window_start >= ...",
    ),
    f"SELECT note, min(window_start) AS n FROM {HOPS}\nGROUP BY window_start, ROLLUP(note)": (
        "GROUP BY cannot run on statebed: min(window_start) reads a window before its aggregation",
        "GROUP BY window_start",
        "select the window itself",
    ),
    f"SELECT auction, note, count(*) FROM {SESSIONS}\nGROUP BY auction, note, window_start, window_end": (
        "SESSION gives rows the sessions of its PARTITION BY",
        "GROUP BY auction, note",
        "name the same columns in both",
    ),
    f"SELECT auction, count(*) FROM {SESSIONS.replace('PARTITION BY auction', '')}\n"
    "GROUP BY auction, window_start, window_end": (
        "SESSION gives rows the sessions of its PARTITION BY",
        "GROUP BY auction",
        "PARTITION BY auction",
    ),
    f"SELECT count(*) FROM {SESSIONS.replace('BY auction', 'BY auktion')} GROUP BY window_start, window_end": (
        "there is no column auktion, by which SESSION partitions the rows",
        "SESSION",
        "the columns are auction, price",
    ),
    "SELECT count(*) FROM TABLE(SESSION(TABLE (SELECT *, current_timestamp() AS now FROM bids), DESCRIPTOR(now), "
    "INTERVAL '1' MINUTE)) GROUP BY window_start, window_end": ("over the event time", "SESSION", "WATERMARK FOR"),
    f"SELECT note, count(*) FROM {SESSIONS}\nGROUP BY note, window_start, window_end": (
        "SESSION gives rows the sessions of its PARTITION BY, but GROUP BY has other columns",
        "GROUP BY note",
        "name the same columns in both",
    ),
    "SELECT count(*) FROM (SELECT w, window(ts, '2 minutes') AS v "
    "FROM (SELECT ts, window(ts, '1 minute') AS w FROM bids))\nGROUP BY w, v": (
        "it groups by two windows",
        "GROUP BY w, v",
        "group by one window",
    ),
    f"SELECT count(*) FROM {CUMULATED_TABLE.replace('10', '7')} GROUP BY window_start": (
        "the size of CUMULATE (1 minute) must be a multiple of its step (7 seconds)",
        "CUMULATE",
        "write TABLE(CUMULATE",
    ),
    "SELECT count(*) FROM bids GROUP BY TUMBLE(ts, )": ("TUMBLE lacks an argument", "TUMBLE", "DESCRIPTOR(ts)"),
    "SELECT count(*) FROM bids GROUP BY window(ts, '1 minute', '2 minutes')": (
        "The `slide_duration`(120000000L) must be <= the `window_duration`",
        "",
        "change one of the arguments",
    ),
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_with_a_window_is_shown_in_the_text(spark: Any, tmp_path: Path, text: str) -> None:
    what, place, fix = MISTAKES[text]
    check_mistake(spark, tmp_path, text, what=what, place=place, fix=fix)


@pytest.mark.parametrize(
    ("query", "operator"),
    [
        (
            "SELECT sum(price) AS s FROM TUMBLE(bids, ts, '1 minute') GROUP BY window_start, window_end, ROLLUP(note)",
            "sql_window",
        ),
        ("SELECT count(*) AS n FROM bids GROUP BY TUMBLE(ts, INTERVAL '1' MINUTE), CUBE(note, auction)", "sql_window"),
        (f"SELECT count(*) AS n FROM bids GROUP BY {HOP}, CUBE(note, auction)", "sql_window"),
        (f"SELECT count(*) AS n FROM bids GROUP BY GROUPING SETS (({HOP}, note), ({HOP}))", "sql_window"),
        (f"SELECT count(*) AS n FROM {HOPS} GROUP BY window_start, window_end, CUBE(note)", "sql_window"),
        (
            f"SELECT count(*) AS n FROM {HOPS.replace('HOP', 'CUMULATE')} GROUP BY window_start, CUBE(note)",
            "sql_window",
        ),
        ("SELECT count(*) AS n FROM bids GROUP BY ROLLUP(window(ts, '1 minute'), note)", "sql_aggregate"),
        (f"SELECT count(*) AS n FROM bids GROUP BY CUBE({HOP}, note)", "sql_aggregate"),
    ],
)
def test_windows_in_all_grouping_sets_close(spark: Any, tmp_path: Path, query: str, operator: str) -> None:
    job = sb.Job("sets", state=tmp_path, spark=spark)
    job.execute(BIDS)
    stream = job.sql(query)
    assert list(job.graph.operators) == [operator]
    assert stream.output.changes is (Changes.APPEND if operator == "sql_window" else Changes.CHANGELOG)


@pytest.mark.parametrize(
    ("query", "mode", "what", "fix"),
    [
        (
            f"SELECT count(*) FROM {CUMULATED_TABLE} GROUP BY window_start, window_end",
            "complete",
            "it groups by window_start, a window over results of another operator, in complete mode",
            "use mode='append'",
        ),
        (
            f"SELECT count(*) FROM {SESSIONS} GROUP BY auction, window_start, window_end",
            "complete",
            "it groups by window_start, a session window, in complete mode",
            "use no mode or mode='append'",
        ),
        (
            f"SELECT count(*) FROM {HOPS} GROUP BY window_start, window_end, CUBE(note)",
            "update",
            "a sliding, cumulative or session window, or a part of it, is a key of grouping sets",
            "and use no mode instead of mode='update'; or group by the function: ROLLUP(HOP(ts",
        ),
        (
            "SELECT count(*) FROM (SELECT a.ts, b.ts AS at FROM bids a JOIN bids b USING (price)) GROUP BY ts, at",
            "update",
            "it groups by two event times, ts and at",
            "group by one of them",
        ),
        (
            "SELECT count(*) FROM bids GROUP BY note",
            "append",
            "it groups by no window over the event time",
            "use mode='update' or 'complete', or group by a window over a column with WATERMARK FOR",
        ),
        (
            "SELECT a.price FROM bids a LEFT JOIN bids b ON a.auction = b.auction",
            "append",
            "its results are never final",
            "or call job.sql without a mode",
        ),
    ],
)
def test_a_mode_that_does_not_suit_a_query_is_refused(
    spark: Any, tmp_path: Path, *, query: str, mode: str, what: str, fix: str
) -> None:
    job = sb.Job("modes", state=tmp_path, spark=spark)
    job.execute(BIDS)
    with pytest.raises(InputError) as raised:
        job.sql(query, mode=mode)
    assert what in raised.value.what
    assert fix in raised.value.fix
    assert "^" in raised.value.where
