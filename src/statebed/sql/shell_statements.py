"""Statements that only the shell has: SHOW, DESCRIBE, EXPLAIN, ATTACH, DETACH, STOP JOB, DROP, RESET, QUIT and HELP."""

import enum
from dataclasses import dataclass

from statebed.sql.source_text import SqlSpan, SqlText
from statebed.sql.sql_tokens import SqlToken, SqlTokenKind
from statebed.sql.statement_parser import name_or_string, parse_statements, split_statements
from statebed.sql.statements import InsertInto, PlacedText, QueryText, SelectQuery, Statement
from statebed.sql.token_cursor import TokenCursor


class ShownList(enum.Enum):
    """Lists of SHOW."""

    TABLES = "TABLES"
    VIEWS = "VIEWS"
    FUNCTIONS = "FUNCTIONS"
    JOBS = "JOBS"
    SETTINGS = "SETTINGS"
    STATES = "STATES"


class Droppable(enum.Enum):
    """Objects that DROP removes from the shell."""

    TABLE = "TABLE"
    VIEW = "VIEW"
    FUNCTION = "FUNCTION"


@dataclass(frozen=True)
class ShowList:
    """`SHOW TABLES [LIKE 'b*']`."""

    listing: ShownList
    pattern: str | None


@dataclass(frozen=True)
class DescribeTable:
    """`DESCRIBE bids`, or a state table: `DESCRIBE job.operator.table`."""

    name: tuple[str, ...]
    span: SqlSpan


@dataclass(frozen=True)
class ExplainStatement:
    """`EXPLAIN SELECT ...` or `EXPLAIN INSERT INTO ...`."""

    statement: SelectQuery | InsertInto


@dataclass(frozen=True)
class AttachState:
    """`ATTACH 's3://bucket/state'`."""

    location: PlacedText


@dataclass(frozen=True)
class DetachState:
    """`DETACH 's3://bucket/state'`."""

    location: PlacedText


@dataclass(frozen=True)
class StopJob:
    """`STOP JOB name [WITH DRAIN]`."""

    name: PlacedText
    drain: bool


@dataclass(frozen=True)
class DropDefinition:
    """`DROP VIEW [IF EXISTS] name`."""

    kind: Droppable
    name: PlacedText
    if_exists: bool


@dataclass(frozen=True)
class ResetOption:
    """`RESET 'parallelism'`, or `RESET` for all settings."""

    name: PlacedText | None


@dataclass(frozen=True)
class ShowHelp:
    """`HELP`."""


@dataclass(frozen=True)
class QuitShell:
    """`QUIT` or `EXIT`."""


ShellStatement = (
    ShowList
    | DescribeTable
    | ExplainStatement
    | AttachState
    | DetachState
    | StopJob
    | DropDefinition
    | ResetOption
    | ShowHelp
    | QuitShell
)


def parse_shell_text(source: SqlText) -> ShellStatement | list[Statement]:
    """Return the statement of the shell that a text is, or the statements of SQL that it contains.

    Several statements are those of one statement set.
    """
    tokens = split_statements(source)
    if len(tokens) == 1:
        result = _shell_statement(TokenCursor(source, tokens[0]))
        if result is not None:
            return result
    return parse_statements(source)


def _shell_statement(cursor: TokenCursor) -> ShellStatement | None:  # noqa: PLR0911, C901 - one for each statement
    if cursor.accept("SHOW"):
        return _show(cursor)
    if cursor.accept("DESCRIBE") or cursor.accept("DESC"):
        return _describe(cursor)
    if cursor.accept("EXPLAIN"):
        return _explain(cursor)
    if cursor.accept("ATTACH"):
        return AttachState(_location(cursor, "ATTACH"))
    if cursor.accept("DETACH"):
        return DetachState(_location(cursor, "DETACH"))
    if cursor.accept("STOP"):
        return _stop(cursor)
    if cursor.accept("DROP"):
        return _drop(cursor)
    if cursor.accept("RESET"):
        return _reset(cursor)
    if cursor.at_words("SET") and len(cursor.tokens) == 1:
        return ShowList(ShownList.SETTINGS, None)
    if len(cursor.tokens) == 1 and (cursor.accept("QUIT") or cursor.accept("EXIT")):
        return QuitShell()
    if len(cursor.tokens) == 1 and cursor.accept("HELP"):
        return ShowHelp()
    return None


def _show(cursor: TokenCursor) -> ShowList:
    names = ", ".join(listing.value for listing in ShownList)
    fix = f"write SHOW followed by one of {names}"
    listing = next((known for known in ShownList if cursor.accept(known.value)), None)
    if listing is None:
        raise cursor.expected(f"one of {names}", fix=fix)
    pattern = None
    if cursor.accept("LIKE") or (not cursor.is_done and cursor.tokens[cursor.place].kind is SqlTokenKind.STRING):
        pattern = cursor.expect_string("a pattern", fix="write SHOW TABLES LIKE 'b*'").value
    cursor.expect_end(fix=fix)
    return ShowList(listing, pattern)


def _describe(cursor: TokenCursor) -> DescribeTable:
    fix = "write DESCRIBE table"
    cursor.accept("TABLE")
    first = cursor.expect_name("the name of a table", fix=fix)
    parts, last = [cursor.name_of(first)], first
    while cursor.accept_symbol("."):
        last = cursor.expect_name("the name of a table", fix=fix)
        parts.append(cursor.name_of(last))
    cursor.expect_end(fix=fix)
    return DescribeTable(tuple(parts), first.span.to(last.span))


def _explain(cursor: TokenCursor) -> ExplainStatement:
    start = cursor.here.start
    # The rest is parsed with the beginning blanked out, so that places stay those of the whole text.
    text = cursor.source.text
    blank = "".join("\n" if character == "\n" else " " for character in text[:start])
    source = SqlText(blank + text[start:], cursor.source.name)
    statements = parse_statements(source)
    if len(statements) != 1 or not isinstance(statements[0], SelectQuery | InsertInto):
        raise cursor.expected("SELECT or INSERT INTO", fix="write EXPLAIN SELECT ..., or EXPLAIN INSERT INTO ...")
    return ExplainStatement(statements[0])


def _location(cursor: TokenCursor, word: str) -> PlacedText:
    fix = f"write {word} 'folder or URL'"
    token = cursor.expect_string("a state location in quotes", fix=fix)
    cursor.expect_end(fix=fix)
    return PlacedText(token.value, token.span)


def _stop(cursor: TokenCursor) -> StopJob:
    fix = "write STOP JOB name, or STOP JOB name WITH DRAIN"
    cursor.expect("JOB", fix=fix)
    name = name_or_string(cursor, "the name of a job", fix=fix)
    drain = cursor.accept("WITH", "DRAIN")
    cursor.expect_end(fix=fix)
    return StopJob(name, drain)


def _drop(cursor: TokenCursor) -> DropDefinition:
    fix = "write DROP TABLE name, DROP VIEW name or DROP FUNCTION name"
    cursor.accept("TEMPORARY")
    kind = next((known for known in Droppable if cursor.accept(known.value)), None)
    if kind is None:
        raise cursor.expected("TABLE, VIEW or FUNCTION", fix=fix)
    if_exists = cursor.accept("IF", "EXISTS")
    name = name_or_string(cursor, "a name", fix=fix)
    cursor.expect_end(fix=fix)
    return DropDefinition(kind, name, if_exists)


def _reset(cursor: TokenCursor) -> ResetOption:
    if cursor.is_done:
        return ResetOption(None)
    fix = "write RESET 'name', or RESET for all settings"
    name = name_or_string(cursor, "the name of a setting", fix=fix)
    cursor.expect_end(fix=fix)
    return ResetOption(name)


def without_limit(query: QueryText) -> tuple[QueryText, int | None]:
    """Return a query without the LIMIT at its end, and that number; None if it has none."""
    match query.tokens:
        case (_, *_, word, number) if word.is_word("LIMIT") and number.kind is SqlTokenKind.NUMBER:
            if number.value.isdigit() and _depth(query.tokens) == 0:
                kept = query.tokens[:-2]
                return QueryText(kept, kept[0].span.to(kept[-1].span)), int(number.value)
    return query, None


def _depth(tokens: tuple[SqlToken, ...]) -> int:
    return sum(token.is_symbol("(") - token.is_symbol(")") for token in tokens)


@dataclass(frozen=True)
class DottedName:
    """A name of two or more parts."""

    parts: tuple[str, ...]
    span: SqlSpan
    is_table: bool
    """Whether it stands directly after FROM or JOIN."""


def dotted_names(source: SqlText, tokens: tuple[SqlToken, ...]) -> list[DottedName]:
    """Return the names of two and more parts in a query: `job.operator.table`, and columns of tables."""
    result = []
    place = 0
    while place < len(tokens):
        parts, end = [], place
        while end < len(tokens) and _may_name(source, tokens[end]):
            quoted = tokens[end].kind is SqlTokenKind.STRING
            parts.append(tokens[end].value if quoted else TokenCursor(source, ()).name_of(tokens[end]))
            if end + 2 >= len(tokens) or not tokens[end + 1].is_symbol(".") or not _may_name(source, tokens[end + 2]):
                break
            end += 2
        if len(parts) > 1:
            is_table = place > 0 and tokens[place - 1].is_word("FROM", "JOIN")
            result.append(DottedName(tuple(parts), tokens[place].span.to(tokens[end].span), is_table))
        place = end + 1
    return result


def _may_name(source: SqlText, token: SqlToken) -> bool:
    """Return whether a token can be part of a name; in queries over state, double quotes enclose names."""
    return token.is_name or (token.kind is SqlTokenKind.STRING and source.slice(token.span).startswith('"'))
