"""Parser of `CREATE TABLE name (columns, WATERMARK FOR ..., PRIMARY KEY (...)) WITH (option = 'value')`.

Types are Spark's, and the common ones of Flink SQL and Arroyo: TIMESTAMP(3), VARCHAR, TEXT, BYTES, ROW<...>.
"""

from statebed.sql.source_text import SqlSpan
from statebed.sql.sql_tokens import SqlToken, SqlTokenKind
from statebed.sql.statements import (
    ColumnDefinition,
    CreateTable,
    PlacedText,
    QueryText,
    WatermarkDefinition,
)
from statebed.sql.token_cursor import TokenCursor

_TABLE = "write CREATE TABLE name (column type, ...) WITH (connector = '...')"
_WATERMARK = "write WATERMARK FOR ts AS ts - INTERVAL '5 seconds'"
_OPTIONS = "write WITH (connector = 'filesystem', path = 'events')"
_OTHER_TYPES = {
    "TEXT": "STRING",
    "BYTES": "BINARY",
    "TIMESTAMP_LTZ": "TIMESTAMP",
    "ROW": "STRUCT",
    "JSON": "STRING",
    "INT64": "BIGINT",
    "INT32": "INT",
    "FLOAT64": "DOUBLE",
}
"""Types of other systems by their name in Spark."""
_REFUSED = {
    "PARTITIONED": "leave it out: rows are spread over subtasks by their key",
    "DISTRIBUTED": "leave it out: rows are spread over subtasks by their key",
    "USING": "write WITH (connector = 'filesystem', path = 'events')",
}
"""Clauses of CREATE TABLE that are refused, and what to do."""
_TIMESTAMPS = ("TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ")


def create_table(cursor: TokenCursor, whole: SqlSpan) -> CreateTable:
    """Parse a table definition from its name on."""
    token = cursor.expect_name("the name of the table", fix=_TABLE)
    cursor.check_one_part()
    name = PlacedText(cursor.name_of(token), token.span)
    if cursor.at_words("LIKE") or cursor.at_words("AS"):
        raise cursor.expected("(", fix=f"{_TABLE}, then INSERT INTO name SELECT ...")
    columns, watermark, key = _elements(cursor)
    if cursor.accept("COMMENT"):
        cursor.expect_string("the comment", fix=_TABLE)
    for word, fix in _REFUSED.items():
        if cursor.at_words(word):
            raise cursor.source.mistake(f"{word} is not supported", cursor.here, fix=fix)
    options, names = _options(cursor)
    if cursor.at_words("AS") or cursor.at_words("SELECT"):
        raise cursor.source.mistake(
            "CREATE TABLE ... AS SELECT is not supported", cursor.here, fix=f"write INSERT INTO {name} SELECT ..."
        )
    cursor.expect_end(fix=_OPTIONS)
    _check_columns(cursor, columns, watermark, key)
    return CreateTable(whole, name, tuple(columns), watermark, key, options, names)


def _elements(
    cursor: TokenCursor,
) -> tuple[list[ColumnDefinition], WatermarkDefinition | None, tuple[PlacedText, ...]]:
    """Parse what stands in the parentheses: columns, watermark and primary key."""
    columns: list[ColumnDefinition] = []
    watermark: WatermarkDefinition | None = None
    key: tuple[PlacedText, ...] = ()
    if cursor.accept_symbol("("):
        while True:
            if cursor.at_words("WATERMARK"):
                if watermark is not None:
                    raise cursor.source.mistake("the table has a watermark already", cursor.here, fix="remove one")
                watermark = _watermark(cursor)
                if not (cursor.at_symbol(",") or cursor.at_symbol(")")):
                    raise cursor.expected("a comma or ) after the watermark", fix=_WATERMARK)
            elif cursor.at_words("PRIMARY") or cursor.at_words("CONSTRAINT"):
                key = _primary_key(cursor)
            else:
                column, is_key = _column(cursor)
                columns.append(column)
                key = (column.name,) if is_key else key
            if not cursor.accept_symbol(","):
                break
        cursor.expect_symbol(")", fix=_TABLE)
    return columns, watermark, key


def placed_names(cursor: TokenCursor, *, fix: str) -> tuple[PlacedText, ...]:
    """Parse names in parentheses; none without them."""
    if not cursor.accept_symbol("("):
        return ()
    result = []
    while True:
        token = cursor.expect_name("a column", fix=fix)
        result.append(PlacedText(cursor.name_of(token), token.span))
        if not cursor.accept_symbol(","):
            break
    cursor.expect_symbol(")", fix=fix)
    return tuple(result)


def _column(cursor: TokenCursor) -> tuple[ColumnDefinition, bool]:
    token = cursor.expect_name("a column", fix=_TABLE)
    name = PlacedText(cursor.name_of(token), token.span)
    if cursor.accept("AS") or (cursor.accept("GENERATED", "ALWAYS", "AS")):
        tokens = _until_comma(cursor)
        if not tokens:
            raise cursor.expected("an expression", fix="write: ts AS timestamp_millis(ms)")
        return ColumnDefinition(name, None, QueryText(tokens, tokens[0].span.to(tokens[-1].span))), False
    kind = _type(cursor)
    is_nullable, is_key = True, False
    while not cursor.is_done and not (cursor.at_symbol(",") or cursor.at_symbol(")")):
        if cursor.accept("NOT", "NULL"):
            is_nullable = False
        elif cursor.accept("NULL"):
            pass
        elif cursor.accept("PRIMARY", "KEY"):
            cursor.accept("NOT", "ENFORCED")
            is_key = True
        elif cursor.accept("COMMENT"):
            cursor.expect_string("the comment", fix=_TABLE)
        elif cursor.at_words("METADATA"):
            raise cursor.source.mistake(
                "METADATA columns are not supported", cursor.here, fix="declare the column without METADATA"
            )
        elif cursor.accept("GENERATED", "ALWAYS", "AS"):
            tokens = _until_comma(cursor)
            return ColumnDefinition(name, kind, QueryText(tokens, tokens[0].span.to(tokens[-1].span))), False
        else:
            raise cursor.expected("a comma or )", fix=_TABLE)
    return ColumnDefinition(name, kind, is_nullable=is_nullable), is_key


def _type(cursor: TokenCursor) -> PlacedText:
    """Read a type and return it as Spark writes it."""
    first = cursor.here
    token = cursor.peek()
    if token is None or token.kind is not SqlTokenKind.WORD:
        raise cursor.expected("a type", fix="write a type such as BIGINT, STRING, DOUBLE, TIMESTAMP or DECIMAL(10, 2)")
    text = _type_text(cursor)
    return PlacedText(text, first.to(cursor.tokens[cursor.place - 1].span))


def _type_text(cursor: TokenCursor) -> str:
    word = cursor.take().value
    if cursor.at_words("UNSIGNED"):
        raise cursor.source.mistake("unsigned types are not supported", cursor.here, fix="use the next larger type")
    if word == "DOUBLE":
        cursor.accept("PRECISION")
    if word in ("VARCHAR", "CHAR", "CHARACTER") and not cursor.at_symbol("("):
        return "STRING"
    if word in _TIMESTAMPS:
        _skip_precision(cursor)
        if cursor.accept("WITHOUT", "TIME", "ZONE") or cursor.accept("WITH", "LOCAL", "TIME", "ZONE"):
            return "TIMESTAMP"
        cursor.accept("WITH", "TIME", "ZONE")
        return _OTHER_TYPES.get(word, word)
    spark = _OTHER_TYPES.get(word, word)
    if cursor.accept_symbol("<"):
        inner = [_type_argument(cursor, is_field=spark == "STRUCT")]
        while cursor.accept_symbol(","):
            inner.append(_type_argument(cursor, is_field=spark == "STRUCT"))
        _close_angle(cursor)
        return f"{spark}<{', '.join(inner)}>"
    if cursor.at_symbol("("):
        end = cursor.closing()
        span = cursor.here.to(cursor.tokens[end].span)
        cursor.place = end + 1
        return f"{spark}{cursor.source.slice(span)}"
    return spark


def _type_argument(cursor: TokenCursor, *, is_field: bool) -> str:
    if not is_field:
        if cursor.is_done:
            raise cursor.expected("a type", fix="write ARRAY<STRING> or MAP<STRING, BIGINT>")
        return _type_text(cursor)
    token = cursor.expect_name("a field", fix="write STRUCT<name: type>")
    cursor.accept_symbol(":")
    if cursor.is_done:
        raise cursor.expected("a type", fix="write STRUCT<name: type>")
    return f"`{cursor.name_of(token)}`: {_type_text(cursor)}"


def _close_angle(cursor: TokenCursor) -> None:
    """Skip one `>`; the lexer reads two of them as one symbol."""
    token = cursor.peek()
    if token is not None and token.is_symbol(">>"):
        half = SqlSpan(token.span.start + 1, token.span.end)
        cursor.tokens = [
            *cursor.tokens[: cursor.place],
            SqlToken(SqlTokenKind.SYMBOL, ">", half),
            *cursor.tokens[cursor.place + 1 :],
        ]
        return
    cursor.expect_symbol(">", fix="close the type with >")


def _skip_precision(cursor: TokenCursor) -> None:
    if cursor.at_symbol("("):
        cursor.place = cursor.closing() + 1


def _until_comma(cursor: TokenCursor) -> tuple[SqlToken, ...]:
    """Read the tokens up to the next comma or closing parenthesis of this level."""
    first, depth = cursor.place, 0
    while (token := cursor.peek()) is not None:
        if depth == 0 and token.is_symbol(",", ")"):
            break
        depth += token.is_symbol("(") - token.is_symbol(")")
        cursor.take()
    return tuple(cursor.tokens[first : cursor.place])


def _watermark(cursor: TokenCursor) -> WatermarkDefinition:
    cursor.expect("WATERMARK", "FOR", fix=_WATERMARK)
    token = cursor.expect_name("the event-time column", fix=_WATERMARK)
    column = PlacedText(cursor.name_of(token), token.span)
    if not cursor.accept("AS"):
        return WatermarkDefinition(column, 0)
    again = cursor.expect_name("the event-time column", fix=_WATERMARK)
    if cursor.name_of(again).lower() != column.text.lower():
        raise cursor.source.mistake(
            f"the watermark of {column} must be {column} minus an interval", again.span, fix=_WATERMARK
        )
    if not cursor.accept_symbol("-"):
        return WatermarkDefinition(column, 0)
    first = cursor.here
    delay_us = cursor.duration_us(example="ts - INTERVAL '5 seconds'")
    if delay_us < 0:
        raise cursor.source.mistake("the delay of a watermark must be at least 0", first, fix=_WATERMARK)
    return WatermarkDefinition(column, delay_us)


def _primary_key(cursor: TokenCursor) -> tuple[PlacedText, ...]:
    fix = "write PRIMARY KEY (column)"
    if cursor.accept("CONSTRAINT"):
        cursor.expect_name("the name of the constraint", fix=fix)
    cursor.expect("PRIMARY", "KEY", fix=fix)
    names = placed_names(cursor, fix=fix)
    if not names:
        raise cursor.expected("(", fix=fix)
    cursor.accept("NOT", "ENFORCED")
    return names


def _options(cursor: TokenCursor) -> tuple[dict[str, PlacedText], dict[str, SqlSpan]]:
    if not cursor.accept("WITH"):
        raise cursor.expected("WITH", fix=_OPTIONS)
    cursor.expect_symbol("(", fix=_OPTIONS)
    options: dict[str, PlacedText] = {}
    names: dict[str, SqlSpan] = {}
    while not cursor.at_symbol(")"):
        first = cursor.here
        name = _option_name(cursor)
        span = first.to(cursor.tokens[cursor.place - 1].span)
        if name in options:
            raise cursor.source.mistake(f"the option {name!r} is given twice", span, fix="remove one")
        cursor.expect_symbol("=", fix=_OPTIONS)
        options[name], names[name] = _option_value(cursor), span
        if not cursor.accept_symbol(","):
            break
    cursor.expect_symbol(")", fix=_OPTIONS)
    return options, names


def _option_name(cursor: TokenCursor) -> str:
    token = cursor.peek()
    if token is not None and token.kind is SqlTokenKind.STRING:
        return cursor.take().value
    parts = [cursor.name_of(cursor.expect_name("an option", fix=_OPTIONS))]
    while cursor.at_symbol(".") or cursor.at_symbol("-"):
        parts.append(cursor.take().value)
        parts.append(cursor.name_of(cursor.expect_name("an option", fix=_OPTIONS)))
    return "".join(parts)


def _option_value(cursor: TokenCursor) -> PlacedText:
    token = cursor.peek()
    if token is not None and (
        token.kind in {SqlTokenKind.STRING, SqlTokenKind.NUMBER} or token.is_word("TRUE", "FALSE")
    ):
        cursor.take()
        value = token.value.lower() if token.kind is SqlTokenKind.WORD else token.value
        return PlacedText(value, token.span)
    raise cursor.expected("a value in quotes", fix=_OPTIONS)


def _check_columns(
    cursor: TokenCursor,
    columns: list[ColumnDefinition],
    watermark: WatermarkDefinition | None,
    key: tuple[PlacedText, ...],
) -> None:
    seen: set[str] = set()
    for column in columns:
        if column.name.text.lower() in seen:
            raise cursor.source.mistake(
                f"two columns are called {column.name.text!r} (names are not case-sensitive)",
                column.name.span,
                fix="rename one of them",
            )
        seen.add(column.name.text.lower())
    for name in [*key, *([watermark.column] if watermark is not None else [])]:
        if columns and name.text.lower() not in seen:
            listed = ", ".join(column.name.text for column in columns)
            raise cursor.source.mistake(
                f"the table has no column {name.text!r}", name.span, fix=f"the columns are {listed}"
            )
