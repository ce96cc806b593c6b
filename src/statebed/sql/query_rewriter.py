"""Rewrites a query for Spark's parser: window functions, temporal joins, dollar quotes and NAME hints.

Everything else is copied, so that Spark's positions lead back to the user's text.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from statebed.sql.query_blocks import QueryBlock, blocks_of, is_name_hint
from statebed.sql.rewritten_text import RewrittenText, TextBuilder
from statebed.sql.source_text import SqlSpan, SqlText
from statebed.sql.sql_tokens import SqlToken, SqlTokenKind
from statebed.sql.statements import QueryText
from statebed.sql.token_cursor import TokenCursor
from statebed.sql.window_functions import FUNCTIONS, WindowFunctionCall, group_function

AS_OF = "__as_of"
"""Alias of the versioned table of a temporal join, inside the subquery that takes its place."""
_TEMPORAL_JOIN = "write a JOIN b FOR SYSTEM_TIME AS OF a.ts ON a.key = b.key"
_CLAUSES = ("SELECT", "FROM", "WHERE", "GROUP", "HAVING", "ORDER", "WINDOW", "LIMIT", "UNION", "ON")


@dataclass(frozen=True)
class SparkQuery:
    """A query as Spark parses it, and the blocks of the user's text."""

    rewritten: RewrittenText
    blocks: tuple[QueryBlock, ...]

    @property
    def text(self) -> str:
        return self.rewritten.text


def rewrite_query(
    source: SqlText, query: QueryText, *, label: str, event_times: Mapping[str, str | None] | None = None
) -> SparkQuery:
    """Rewrite a query. `label` names the operators of its outermost block.

    `event_times` has the event-time column of each known table, in lower case, for window functions without one.
    """
    is_timed = any(token.is_word("WINDOW_TIME") for token in query.tokens)
    rewriter = _Rewriter(source, event_times or {}, is_timed)
    rewriter.add(query.tokens)
    return SparkQuery(RewrittenText(source, rewriter.builder.pieces), blocks_of(source, query.tokens, label=label))


@dataclass
class _Rewriter:
    source: SqlText
    event_times: Mapping[str, str | None]
    is_timed: bool
    """Whether the query reads a column window_time."""
    builder: TextBuilder = field(init=False)

    def __post_init__(self) -> None:
        self.builder = TextBuilder(self.source)

    def add(self, tokens: Sequence[SqlToken]) -> None:
        """Write rewritten tokens, and what stands between them."""
        place, end = 0, tokens[0].span.start
        clauses = [""]
        while place < len(tokens):
            token = tokens[place]
            self.builder.copy(SqlSpan(end, token.span.start))
            following = self._construct(tokens, place, clauses)
            if following == place:
                self.builder.copy(token.span)
                following = place + 1
                if token.is_symbol("("):
                    clauses.append("")
                elif token.is_symbol(")") and len(clauses) > 1:
                    clauses.pop()
                elif token.is_word(*_CLAUSES):
                    clauses[-1] = token.value
            place, end = following, tokens[following - 1].span.end

    def _construct(self, tokens: Sequence[SqlToken], place: int, clauses: Sequence[str]) -> int:
        """Write what is rewritten at this place, and return the place after it; the same place if it is copied."""
        token = tokens[place]
        replaced = _replaced(tokens, place, clauses[-1])
        if replaced is not None:
            self.builder.write(replaced, token.span)
            return place + 1
        if token.is_name and _is_temporal(tokens, place + 1):
            return self._temporal_join(TokenCursor(self.source, tokens, place))
        if not _called(tokens, place) or (place > 0 and tokens[place - 1].is_symbol(".")):
            return place
        closing = TokenCursor(self.source, tokens, place + 1).closing()
        first = _epoch_argument(tokens, place)
        if first is not None and first < closing:
            self.builder.write("CAST(unix_micros(", token.span.to(tokens[first - 1].span))
            self.add(tokens[first:closing])
            self.builder.write(") / 1000000BD AS DECIMAL(20, 6))", tokens[closing].span)
            return closing + 1
        function = group_function(token)
        if token.is_word("TABLE") and _is_function(tokens, place + 2):
            self._table_function(tokens[place + 2 : closing])
        elif function is None:
            return place
        elif token.value in FUNCTIONS and _is_table_position(tokens, place, clauses):
            self._table_function(tokens[place : closing + 1])
        else:
            call = WindowFunctionCall(self.source, function[0], tokens[place : closing + 1])
            call.group(self.builder, function[1], event_time=self._event_time(tokens, place))
        return closing + 1

    def _table_function(self, call: Sequence[SqlToken]) -> None:
        depth = 0
        for number, token in enumerate(call):
            depth += token.is_symbol("(") - token.is_symbol(")")
            if depth == 0 and number > 0 and number < len(call) - 1:
                rest = call[number + 1].span.to(call[-1].span)
                raise self.source.mistake("expected )", rest, fix=f"write {FUNCTIONS[call[0].value].table_example}")
        WindowFunctionCall(self.source, call[0].value, call).table(
            self.builder,
            add_query=self.add,
            is_timed=self.is_timed,
        )

    def _temporal_join(self, cursor: TokenCursor) -> int:
        """Mark the versioned table by an alias of its own, and the time by a condition on it."""
        table = cursor.take()
        first = cursor.here
        cursor.expect("FOR", "SYSTEM_TIME", "AS", "OF", fix=_TEMPORAL_JOIN)
        time = cursor.expect_name("the event-time column of the left side", fix=_TEMPORAL_JOIN).span
        while cursor.accept_symbol("."):
            time = time.to(cursor.expect_name("a column", fix=_TEMPORAL_JOIN).span)
        clause = first.to(time)
        self.builder.write("(SELECT * FROM ", clause)
        self.builder.copy(table.span)
        self.builder.write(f" AS {AS_OF}) AS ", clause)
        cursor.accept("AS")
        alias = cursor.peek()
        if alias is not None and alias.is_name and not alias.is_word("ON"):
            self.builder.copy(cursor.take().span)
        else:
            self.builder.copy(table.span)
        cursor.expect("ON", fix=_TEMPORAL_JOIN)
        self.builder.write(" ON ", clause)
        self.builder.copy(time)
        self.builder.write(" IS NOT NULL AND", clause)
        return cursor.place

    def _event_time(self, tokens: Sequence[SqlToken], place: int) -> Callable[[], str | None]:
        def result() -> str | None:
            name = _from_name(tokens, place)
            return None if name is None else self.event_times.get(self._name(name).lower())

        return result

    def _name(self, token: SqlToken) -> str:
        return TokenCursor(self.source, ()).name_of(token)


def _replaced(tokens: Sequence[SqlToken], place: int, clause: str) -> str | None:
    """Return the text that takes the place of one token, or None."""
    token = tokens[place]
    if is_name_hint(token):
        return " " * (token.span.end - token.span.start)
    if token.is_dollar:
        escaped = token.value.replace("\\", "\\\\").replace("'", "\\'")
        return f"'{escaped}'"
    if token.is_word("UNNEST") and _called(tokens, place):
        return "LATERAL explode" if clause in {"FROM", "JOIN"} else "explode"
    is_type = place > 0 and tokens[place - 1].is_word("AS") and not _called(tokens, place)
    return "STRING" if is_type and token.is_word("VARCHAR") else None


def _epoch_argument(tokens: Sequence[SqlToken], place: int) -> int | None:
    """Return the place of the time in `extract(epoch FROM ts)` or `date_part('epoch', ts)`, which Spark does not have;
    None if it is another call.
    """
    match tokens[place : place + 4]:
        case [name, _, field_name, separator]:
            is_extract = name.is_word("EXTRACT") and field_name.is_word("EPOCH") and separator.is_word("FROM")
            is_epoch = field_name.kind is SqlTokenKind.STRING and field_name.value.lower() == "epoch"
            is_part = name.is_word("DATE_PART") and is_epoch and separator.is_symbol(",")
            return place + 4 if is_extract or is_part else None
    return None


def _called(tokens: Sequence[SqlToken], place: int) -> bool:
    return place + 1 < len(tokens) and tokens[place + 1].is_symbol("(")


def _is_function(tokens: Sequence[SqlToken], place: int) -> bool:
    return place < len(tokens) and tokens[place].is_word(*FUNCTIONS) and _called(tokens, place)


def _is_table_position(tokens: Sequence[SqlToken], place: int, clauses: Sequence[str]) -> bool:
    if place == 0:
        return False
    before = tokens[place - 1]
    return before.is_word("FROM", "JOIN", "LATERAL") or (before.is_symbol(",") and clauses[-1] == "FROM")


def _is_temporal(tokens: Sequence[SqlToken], place: int) -> bool:
    return place + 1 < len(tokens) and tokens[place].is_word("FOR") and tokens[place + 1].is_word("SYSTEM_TIME")


def _from_name(tokens: Sequence[SqlToken], place: int) -> SqlToken | None:
    """Return the table after FROM in the block of a place, or None if there is none or another one after a comma."""
    for step in (1, -1):
        depth, here = 0, place
        while 0 <= here < len(tokens):
            token = tokens[here]
            depth += step * (token.is_symbol("(") - token.is_symbol(")"))
            if depth < 0:
                break
            if depth == 0 and token.is_word("FROM") and here + 1 < len(tokens) and tokens[here + 1].is_name:
                return tokens[here + 1]
            if depth == 0 and step < 0 and token.is_word("SELECT"):
                break
            here += step
    return None
