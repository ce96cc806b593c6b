"""Window functions of the SQL standard, Flink and Arroyo, as Spark's `window` and `session_window`.

| text | rows |
|---|---|
| `TABLE(TUMBLE(TABLE bids, DESCRIPTOR(ts), INTERVAL '1' MINUTE))` | the table with window_start and window_end |
| `TUMBLE(bids, ts, '1 minute')` after FROM or JOIN | the same |
| `GROUP BY TUMBLE(ts, INTERVAL '1' MINUTE)`, `TUMBLE_START(...)` | groups of older Flink SQL |
| `GROUP BY tumble(interval '1 minute')` | groups of Arroyo, by the event time of the table |
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from statebed.quantities import duration_text
from statebed.sql.rewritten_text import TextBuilder
from statebed.sql.source_text import SqlSpan, SqlText
from statebed.sql.sql_tokens import SqlToken, SqlTokenKind
from statebed.sql.token_cursor import TokenCursor

WINDOW = "__window"
"""Column of a table function's window before its parts are taken."""
SESSION = "__window_session"
"""Beginning of the same column of SESSION, followed by the names in PARTITION BY as JSON."""
CUMULATE = "__window_cumulate_"
"""Beginning of the same column of CUMULATE, followed by the step in microseconds."""


@dataclass(frozen=True)
class StandardWindow:
    """A window function: durations in the order of their arguments, and examples of its use."""

    durations: tuple[str, ...]
    table_example: str
    group_example: str


FUNCTIONS = {
    "TUMBLE": StandardWindow(
        ("SIZE",),
        "TABLE(TUMBLE(TABLE bids, DESCRIPTOR(ts), INTERVAL '1' MINUTE))",
        "TUMBLE(ts, INTERVAL '1' MINUTE)",
    ),
    "HOP": StandardWindow(
        ("SLIDE", "SIZE"),
        "TABLE(HOP(TABLE bids, DESCRIPTOR(ts), INTERVAL '10' SECONDS, INTERVAL '1' MINUTE))",
        "HOP(ts, INTERVAL '10' SECONDS, INTERVAL '1' MINUTE)",
    ),
    "CUMULATE": StandardWindow(
        ("STEP", "SIZE"),
        "TABLE(CUMULATE(TABLE bids, DESCRIPTOR(ts), INTERVAL '1' HOUR, INTERVAL '1' DAY))",
        "",
    ),
    "SESSION": StandardWindow(
        ("GAP",),
        "TABLE(SESSION(TABLE bids PARTITION BY auction, DESCRIPTOR(ts), INTERVAL '5' MINUTES))",
        "SESSION(ts, INTERVAL '5' MINUTES)",
    ),
}
_MICROSECOND = "INTERVAL '0.000001' SECOND"
_PARTS = {"_START": ".start", "_END": ".end", "_ROWTIME": ""}
"""Suffixes of functions of older Flink SQL that return a part of the window."""


def group_function(token: SqlToken) -> tuple[str, str] | None:
    """Return the function and the part that a word such as TUMBLE or HOP_START names, or None."""
    if token.kind is not SqlTokenKind.WORD:
        return None
    for suffix in ("", *_PARTS):
        name = token.value.removesuffix(suffix) if suffix else token.value
        if name in FUNCTIONS and name + suffix == token.value:
            return name, suffix
    return None


@dataclass(frozen=True)
class WindowFunctionCall:
    """A call of a window function in a text, from its name to the closing parenthesis."""

    source: SqlText
    name: str
    tokens: Sequence[SqlToken]

    @property
    def span(self) -> SqlSpan:
        return self.tokens[0].span.to(self.tokens[-1].span)

    @property
    def _function(self) -> StandardWindow:
        return FUNCTIONS[self.name]

    def table(self, builder: TextBuilder, *, add_query: Callable[[Sequence[SqlToken]], None], is_timed: bool) -> None:
        """Write the rows of a table with the columns of their windows.

        `add_query` writes the rewritten tokens of a subquery. With `is_timed` there is a column window_time, too.
        """
        example = f"write {self._function.table_example}"
        arguments = self._arguments(("DATA", "TIMECOL", *self._function.durations), example)
        time = self._time(arguments["TIMECOL"], example)
        durations = {name: self._duration(arguments[name]) for name in self._function.durations}
        offset = self._duration(arguments["OFFSET"]) if "OFFSET" in arguments else 0
        self._check(durations)
        column = WINDOW
        if self.name == "CUMULATE":
            column = f"{CUMULATE}{durations['STEP']}"
        elif self.name == "SESSION":
            names = json.dumps(self._partition(arguments["DATA"], example), ensure_ascii=False)
            column = f"`{SESSION}{names.replace('`', '``')}`"
        timed = f", window_time({column}) AS window_time" if is_timed else ""
        columns = f"* EXCEPT ({column}), {column}.start AS window_start, {column}.end AS window_end{timed}"
        builder.write(f"(SELECT {columns} FROM (SELECT *, ", self.span)  # noqa: S608 - names are generated
        self._window(builder, durations, offset, lambda: builder.copy(time))
        builder.write(f" AS {column} FROM ", self.span)
        self._data(builder, arguments["DATA"], example, add_query)
        builder.write("))", self.span)

    def group(self, builder: TextBuilder, part: str, *, event_time: Callable[[], str | None]) -> None:
        """Write the window of a row, or a part of it. `event_time` returns the time column if the call has none."""
        example = f"write {self._function.group_example}" if self._function.group_example else ""
        if self.name == "CUMULATE":
            raise self.source.mistake(
                "CUMULATE is a table function", self.span, fix=f"write FROM {self._function.table_example}"
            )
        names = self._function.durations
        supplied = self._split()
        if len(supplied) == len(names) and all(argument[0].is_word("INTERVAL") for argument in supplied):
            column = event_time()
            if column is None:
                raise self.source.mistake(
                    f"{self.name} has no time column, and the rows after FROM have no event time",
                    self.span,
                    fix=example,
                )
            arguments = dict(zip(names, supplied, strict=True))
            durations = {name: self._duration(arguments[name]) for name in names}
            self._check(durations)
            self._part(builder, part, durations, 0, lambda: builder.write(f"`{column}`", self.span))
            return
        arguments = self._arguments(("TIMECOL", *names), example)
        durations = {name: self._duration(arguments[name]) for name in names}
        offset = self._duration(arguments["OFFSET"]) if "OFFSET" in arguments else 0
        self._check(durations)
        time = arguments["TIMECOL"]
        span = time[0].span.to(time[-1].span)
        self._part(builder, part, durations, offset, lambda: builder.copy(span))

    def _part(
        self,
        builder: TextBuilder,
        part: str,
        durations: dict[str, int],
        offset: int,
        write_time: Callable[[], None],
    ) -> None:
        # Spark does not find a window inside window_time() among the groups.
        is_time = part == "_ROWTIME"
        if is_time:
            builder.write("(", self.span)
        self._window(builder, durations, offset, write_time)
        builder.write(f".end - {_MICROSECOND})" if is_time else _PARTS.get(part, ""), self.span)

    def _window(
        self, builder: TextBuilder, durations: dict[str, int], offset: int, write_time: Callable[[], None]
    ) -> None:
        size = durations.get("SIZE") or durations["GAP"]
        lengths = [size] if self.name != "HOP" else [size, durations["SLIDE"]]
        if offset:
            lengths = [lengths[0], lengths[-1], offset]
        builder.write("session_window(" if self.name == "SESSION" else "window(", self.span)
        write_time()
        builder.write("".join(f", '{duration_text(length)}'" for length in lengths) + ")", self.span)

    def _check(self, durations: dict[str, int]) -> None:
        for name, length in durations.items():
            if length <= 0:
                raise self.source.mistake(
                    f"the {name.lower()} of {self.name} must be longer than 0, got {duration_text(length)!r}",
                    self.span,
                    fix=f"write {self._function.table_example}",
                )
        first, last = durations[self._function.durations[0]], durations[self._function.durations[-1]]
        if first > last:
            what = self._function.durations[0].lower()
            raise self.source.mistake(
                f"the {what} of {self.name} ({duration_text(first)}) must not be longer than its size "
                f"({duration_text(last)})",
                self.span,
                fix=f"the {what} comes first: {self._function.table_example}",
            )
        if self.name == "CUMULATE" and last % first:
            raise self.source.mistake(
                f"the size of CUMULATE ({duration_text(last)}) must be a multiple of its step ({duration_text(first)})",
                self.span,
                fix=f"write {self._function.table_example}",
            )

    def _split(self) -> list[Sequence[SqlToken]]:
        """Return the tokens of each argument."""
        result: list[list[SqlToken]] = [[]]
        depth = 0
        for token in self.tokens[2:-1]:
            if depth == 0 and token.is_symbol(","):
                result.append([])
                continue
            depth += token.is_symbol("(") - token.is_symbol(")")
            result[-1].append(token)
        if any(not argument for argument in result):
            raise self.source.mistake(
                f"{self.name} lacks an argument", self.span, fix=f"write {self._function.table_example}"
            )
        return list(result)

    def _arguments(self, names: Sequence[str], fix: str) -> dict[str, Sequence[SqlToken]]:
        """Return the arguments by name; OFFSET may be missing."""
        result: dict[str, Sequence[SqlToken]] = {}
        allowed = [*names, "OFFSET"] if self.name != "SESSION" else list(names)
        for place, argument in enumerate(self._split()):
            if len(argument) > 1 and argument[1].is_symbol("=>"):
                name, value = argument[0].value, argument[2:]
            else:
                name, value = (allowed[place] if place < len(allowed) else ""), argument
            if name not in allowed or name in result or not value:
                raise self.source.mistake(
                    f"{self.name} does not take this argument", argument[0].span.to(argument[-1].span), fix=fix
                )
            result[name] = value
        missing = [name for name in names if name not in result]
        if missing:
            raise self.source.mistake(f"{self.name} lacks its {missing[0].lower()}", self.span, fix=fix)
        return result

    def _duration(self, tokens: Sequence[SqlToken]) -> int:
        cursor = TokenCursor(self.source, tokens)
        length = cursor.duration_us(example="INTERVAL '1' MINUTE")
        cursor.expect_end(fix="write INTERVAL '1' MINUTE")
        return length

    def _time(self, tokens: Sequence[SqlToken], fix: str) -> SqlSpan:
        cursor = TokenCursor(self.source, tokens)
        if cursor.accept("DESCRIPTOR"):
            cursor.expect_symbol("(", fix=fix)
            span = cursor.expect_name("the time column", fix=fix).span
            cursor.expect_symbol(")", fix=fix)
        else:
            span = cursor.expect_name("the time column", fix=fix).span
        cursor.expect_end(fix=fix)
        return span

    def _data(
        self,
        builder: TextBuilder,
        tokens: Sequence[SqlToken],
        fix: str,
        add_query: Callable[[Sequence[SqlToken]], None],
    ) -> None:
        cursor = TokenCursor(self.source, tokens)
        cursor.accept("TABLE")
        if cursor.at_symbol("("):
            end = cursor.closing()
            add_query(tokens[cursor.place : end + 1])
            cursor.place = end + 1
        else:
            builder.copy(cursor.expect_name("a table", fix=fix).span)
        if self.name != "SESSION" or not cursor.at_words("PARTITION", "BY"):
            cursor.expect_end(fix=fix)

    def _partition(self, tokens: Sequence[SqlToken], fix: str) -> list[str]:
        """Return the columns of PARTITION BY, whose rows share sessions."""
        cursor = TokenCursor(self.source, tokens)
        depth = 0
        while not cursor.is_done and not (depth == 0 and cursor.at_words("PARTITION", "BY")):
            token = cursor.take()
            depth += token.is_symbol("(") - token.is_symbol(")")
        if not cursor.accept("PARTITION", "BY"):
            return []
        is_list = cursor.accept_symbol("(")
        names = [cursor.name_of(cursor.expect_name("a column", fix=fix))]
        while is_list and cursor.accept_symbol(","):
            names.append(cursor.name_of(cursor.expect_name("a column", fix=fix)))
        if is_list:
            cursor.expect_symbol(")", fix=fix)
        cursor.expect_end(fix=fix)
        return names
