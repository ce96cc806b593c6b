"""Parser: SQL text to statements.

A text is split at semicolons outside quotes and comments. Definitions are parsed here; queries stay tokens, which are
rewritten for Spark and parsed by it.
"""

from collections.abc import Sequence
from dataclasses import replace

from statebed.sql.refused_statements import check_clauses, refuse_statement
from statebed.sql.source_text import SqlSpan, SqlText
from statebed.sql.sql_tokens import SqlToken, SqlTokenKind, tokens_of
from statebed.sql.statements import (
    CreateFunction,
    CreateView,
    InsertInto,
    PlacedText,
    QueryText,
    SelectQuery,
    SetOption,
    Statement,
)
from statebed.sql.table_parser import create_table, placed_names
from statebed.sql.token_cursor import TokenCursor

_QUERY_STARTS = ("SELECT", "WITH", "VALUES", "FROM", "TABLE")
_INSERT = "write INSERT INTO table SELECT ..."
_STATEMENTS = "CREATE TABLE, CREATE VIEW, CREATE FUNCTION, INSERT INTO, SET and SELECT"


def parse_statements(source: SqlText) -> list[Statement]:
    """Return the statements of a text."""
    result = []
    in_set = False
    for tokens in split_statements(source):
        cursor = TokenCursor(source, tokens)
        # Flink groups INSERTs by EXECUTE STATEMENT SET BEGIN ... END; here all INSERTs of a text are one job.
        if cursor.accept("EXECUTE", "STATEMENT", "SET") or cursor.accept("BEGIN", "STATEMENT", "SET"):
            cursor.accept("BEGIN")
            in_set = True
        elif in_set and cursor.accept("END"):
            cursor.expect_end(fix="end the statement set with END;")
            in_set = False
        if not cursor.is_done:
            result.append(_statement(TokenCursor(source, tokens[cursor.place :])))
    return result


def parse_query(source: SqlText) -> QueryText:
    """Return the only query of a text."""
    statements = parse_statements(source)
    if len(statements) != 1 or not isinstance(statements[0], SelectQuery):
        other = statements[1].span if len(statements) > 1 else SqlSpan(0, len(source.text))
        raise source.mistake(
            f"expected one query, got {len(statements)} statements" if len(statements) != 1 else "expected a query",
            other,
            fix="pass one SELECT; run several statements with job.execute(text)",
        )
    return statements[0].query


def split_statements(source: SqlText) -> list[list[SqlToken]]:
    """Return the tokens of each statement, without the semicolons; empty statements are left out."""
    result: list[list[SqlToken]] = [[]]
    for token in tokens_of(source):
        if token.is_symbol(";"):
            result.append([])
        else:
            result[-1].append(token)
    statements = [tokens for tokens in result if tokens]
    for tokens in statements:
        _check_parentheses(source, tokens)
    return statements


def _check_parentheses(source: SqlText, tokens: Sequence[SqlToken]) -> None:
    opened = []
    for token in tokens:
        if token.is_symbol("("):
            opened.append(token)
        elif token.is_symbol(")"):
            if not opened:
                raise source.mistake(") closes nothing", token.span, fix="remove it, or add ( before it")
            opened.pop()
    if opened:
        raise source.mistake("( is opened here, but never closed", opened[-1].span, fix="add )")


def _statement(cursor: TokenCursor) -> Statement:
    refused = refuse_statement(cursor.source, cursor.tokens)
    if refused is not None:
        raise refused
    if cursor.at_words("CREATE"):
        return _create(cursor)
    if cursor.accept("INSERT"):
        cursor.expect("INTO", fix=_INSERT)
        return _insert(cursor)
    if cursor.accept("SET"):
        return _set(cursor)
    first = cursor.peek()
    if first is not None and (first.is_word(*_QUERY_STARTS) or first.is_symbol("(")):
        return SelectQuery(_whole(cursor), _query(cursor))
    raise cursor.expected("a statement", fix=f"the statements are {_STATEMENTS}")


def _create(cursor: TokenCursor) -> Statement:
    cursor.expect("CREATE", fix="")
    is_replacement = cursor.accept("OR", "REPLACE")
    is_temporary = any([cursor.accept("GLOBAL"), cursor.accept("TEMPORARY") or cursor.accept("TEMP")])
    if cursor.accept("VIEW"):
        return _view(cursor, is_replacement=is_replacement)
    cursor.accept("SYSTEM")
    if cursor.accept("FUNCTION"):
        return _function(cursor)
    if cursor.accept("EXTERNAL") and not cursor.at_words("TABLE"):
        raise cursor.expected("TABLE", fix="write CREATE TABLE name (...) WITH (...)")
    if cursor.accept("TABLE"):
        if_not_exists = _if_not_exists(cursor)
        return replace(create_table(cursor, _whole(cursor)), if_not_exists=if_not_exists)
    what = "TABLE, VIEW or FUNCTION" if not is_temporary else "VIEW or FUNCTION"
    raise cursor.expected(what, fix=f"the statements are {_STATEMENTS}")


def _view(cursor: TokenCursor, *, is_replacement: bool) -> CreateView:
    fix = "write CREATE TEMPORARY VIEW name AS SELECT ..."
    if_not_exists = _if_not_exists(cursor)
    name = _plain_name(cursor, "the name of the view", fix=fix)
    columns = placed_names(cursor, fix="write CREATE TEMPORARY VIEW name (a, b) AS SELECT ...")
    if cursor.accept("COMMENT"):
        cursor.expect_string("the comment", fix=fix)
    cursor.expect("AS", fix=fix)
    return CreateView(_whole(cursor), name, columns, _query(cursor), is_replacement, if_not_exists)


def _function(cursor: TokenCursor) -> CreateFunction:
    fix = "write CREATE FUNCTION name AS 'module:function', or CREATE FUNCTION name RETURNS DOUBLE AS 'module:function'"
    if_not_exists = _if_not_exists(cursor)
    name = _plain_name(cursor, "the name of the function", fix=fix)
    returns = None
    if cursor.accept("RETURNS"):
        first = cursor.here
        while not cursor.is_done and not cursor.at_words("AS"):
            last = cursor.take().span
            returns = PlacedText(cursor.source.slice(first.to(last)), first.to(last))
    cursor.expect("AS", fix=fix)
    token = cursor.expect_string("'module:function'", fix=fix)
    module, colon, function = token.value.partition(":")
    if not (colon and function.isidentifier() and all(part.isidentifier() for part in module.split("."))):
        raise cursor.source.mistake(f"{token.value!r} is not of the form module:function", token.span, fix=fix)
    if cursor.accept("LANGUAGE") and not cursor.accept("PYTHON"):
        raise cursor.expected("PYTHON", fix="functions are written in Python: CREATE FUNCTION f AS 'module:function'")
    cursor.expect_end(fix=fix)
    return CreateFunction(_whole(cursor), name, PlacedText(token.value, token.span), returns, if_not_exists)


def _insert(cursor: TokenCursor) -> InsertInto:
    cursor.accept("TABLE")
    table = _plain_name(cursor, "the name of a table", fix=_INSERT)
    columns = () if _at_query(cursor) else placed_names(cursor, fix="write INSERT INTO table (a, b) SELECT ...")
    if not _at_query(cursor):
        raise cursor.expected("a query", fix=_INSERT)
    return InsertInto(_whole(cursor), table, columns, _query(cursor))


def _at_query(cursor: TokenCursor) -> bool:
    ahead = 0
    while (token := cursor.peek(ahead)) is not None and token.is_symbol("("):
        ahead += 1
    return token is not None and token.is_word(*_QUERY_STARTS)


def _set(cursor: TokenCursor) -> SetOption:
    fix = "write SET 'name' = 'value'"
    name = name_or_string(cursor, "the name of a setting", fix=fix)
    cursor.expect_symbol("=", fix=fix)
    if cursor.is_done:
        raise cursor.expected("a value", fix=fix)
    first = cursor.here
    if cursor.tokens[cursor.place].kind is SqlTokenKind.STRING:
        token = cursor.take()
        cursor.expect_end(fix=fix)
        return SetOption(_whole(cursor), name, PlacedText(token.value, token.span))
    span = first.to(cursor.tokens[-1].span)
    return SetOption(_whole(cursor), name, PlacedText(cursor.source.slice(span), span))


def name_or_string(cursor: TokenCursor, what: str, *, fix: str) -> PlacedText:
    """Read a name in quotes, or names with dots between them."""
    token = cursor.peek()
    if token is not None and token.kind is SqlTokenKind.STRING:
        cursor.take()
        return PlacedText(token.value, token.span)
    first = cursor.expect_name(what, fix=fix)
    last = first.span
    while cursor.accept_symbol("."):
        last = cursor.expect_name(what, fix=fix).span
    span = first.span.to(last)
    text = cursor.name_of(first) if last == first.span else cursor.source.slice(span)
    return PlacedText(text, span)


def _query(cursor: TokenCursor) -> QueryText:
    tokens = tuple(cursor.tokens[cursor.place :])
    if not tokens:
        raise cursor.expected("a query", fix="write SELECT ...")
    check_clauses(cursor.source, tokens)
    return QueryText(tokens, tokens[0].span.to(tokens[-1].span))


def _plain_name(cursor: TokenCursor, what: str, *, fix: str) -> PlacedText:
    token = cursor.expect_name(what, fix=fix)
    cursor.check_one_part()
    return PlacedText(cursor.name_of(token), token.span)


def _if_not_exists(cursor: TokenCursor) -> bool:
    is_conditional = cursor.accept("IF")
    if is_conditional:
        cursor.expect("NOT", "EXISTS", fix="write IF NOT EXISTS, or leave it out")
    return is_conditional


def _whole(cursor: TokenCursor) -> SqlSpan:
    return cursor.tokens[0].span.to(cursor.tokens[-1].span)
