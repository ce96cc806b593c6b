"""Statements and clauses that are refused by name, each with the reason and what to write instead."""

from collections.abc import Sequence

from statebed.errors import InputError
from statebed.sql.source_text import SqlText
from statebed.sql.sql_tokens import SqlToken

REFUSED_STATEMENTS: dict[tuple[str, ...], tuple[str, str]] = {
    ("INSERT", "OVERWRITE"): (
        "INSERT OVERWRITE replaces a table, but a stream never ends",
        "write INSERT INTO; a table with a PRIMARY KEY is updated by key",
    ),
    ("UPDATE",): (
        "UPDATE is not supported",
        "write INSERT INTO a table with a PRIMARY KEY",
    ),
    ("DELETE",): ("DELETE is not supported", "filter the rows with WHERE in the query"),
    ("MERGE",): ("MERGE is not supported", "write INSERT INTO a table with a PRIMARY KEY: its rows are updated by key"),
    ("TRUNCATE",): ("TRUNCATE is not supported", "empty the table where it is stored"),
    ("ALTER",): (
        "ALTER is not supported",
        "edit the CREATE statement; state is matched by operator name",
    ),
    ("DROP",): ("DROP is not supported", "remove the CREATE statement from the text"),
    ("CREATE", "CATALOG"): ("catalogs are not supported", "write CREATE TABLE ... WITH (connector = '...')"),
    ("CREATE", "DATABASE"): ("databases are not supported", "leave the database out: tables belong to the pipeline"),
    ("CREATE", "SCHEMA"): ("schemas are not supported", "leave the schema out: tables belong to the pipeline"),
    ("CREATE", "INDEX"): ("indexes are not supported", "create the index in the database that stores the table"),
    ("CREATE", "MATERIALIZED"): (
        "materialized views are not supported",
        "write CREATE TABLE ... WITH (...) and INSERT INTO it; the state of every operator can be selected, too",
    ),
    ("CREATE", "MODEL"): (
        "models are not supported",
        "call it in a function: CREATE FUNCTION f AS 'module:function'",
    ),
    ("USE",): ("USE is not supported", "leave it out: tables belong to the pipeline"),
    ("CACHE",): ("CACHE is not supported", "leave it out"),
    ("LOAD",): (
        "LOAD is not supported",
        "read the files: CREATE TABLE ... WITH (connector = 'filesystem', ...)",
    ),
    ("ADD",): ("ADD is not supported", "install Python packages into the environment of the job"),
    ("ANALYZE",): ("ANALYZE is not supported", "leave it out"),
    ("GRANT",): ("GRANT is not supported", "use the access control of the storage"),
    ("REVOKE",): ("REVOKE is not supported", "use the access control of the storage"),
    ("BEGIN",): ("scripts and transactions are not supported", "leave BEGIN out: all INSERTs of a text are one job"),
    ("COMMIT",): ("transactions are not supported", "leave COMMIT out: every epoch commits all INSERTs at once"),
    ("CALL",): ("procedures are not supported", "leave CALL out"),
}
"""Leading words of a statement, the reason for the refusal, and what to do."""

REFUSED_CLAUSES: dict[str, tuple[str, str]] = {
    "MATCH_RECOGNIZE": (
        "MATCH_RECOGNIZE is not supported",
        "write the pattern as a process: stream.key_by(...).process(...), see docs/howto/write-a-process.md",
    ),
    "PROCTIME": (
        "processing time is not a column here: a replay would give other rows",
        "use an event-time column: WATERMARK FOR ts AS ts - INTERVAL '5 seconds'",
    ),
    "PIVOT": ("PIVOT is not supported", "name the columns: sum(x) FILTER (WHERE k = 'a') AS a"),
    "TABLESAMPLE": ("TABLESAMPLE is not supported: a replay would choose other rows", "filter by a hash of the key"),
    "QUALIFY": (
        "QUALIFY is not supported",
        "write SELECT ... FROM (SELECT ..., ROW_NUMBER() OVER (...) AS place FROM ...) WHERE place <= n",
    ),
}
"""Words inside a query, the reason for the refusal, and what to do."""


def refuse_statement(source: SqlText, tokens: Sequence[SqlToken]) -> InputError | None:
    """Return the error for a statement that is refused by its leading words, or None."""
    for words, (what, fix) in REFUSED_STATEMENTS.items():
        if len(tokens) >= len(words) and all(token.is_word(word) for token, word in zip(tokens, words, strict=False)):
            return source.mistake(what, tokens[0].span.to(tokens[len(words) - 1].span), fix=fix)
    return None


def check_clauses(source: SqlText, tokens: Sequence[SqlToken]) -> None:
    """Raise InputError for a clause of a query that is refused by name."""
    for number, token in enumerate(tokens):
        is_called = number + 1 < len(tokens) and tokens[number + 1].is_symbol("(")
        is_clause = token.is_word("QUALIFY") or (token.is_word(*REFUSED_CLAUSES) and is_called)
        is_part = number > 0 and (tokens[number - 1].is_symbol(".") or tokens[number - 1].is_word("AS"))
        if token.is_word("ORDINALITY") and number > 0 and tokens[number - 1].is_word("WITH"):
            raise source.mistake(
                "WITH ORDINALITY is not supported",
                tokens[number - 1].span.to(token.span),
                fix="write FROM t LATERAL VIEW posexplode(tags) AS place, tag; places are counted from 0",
            )
        is_insert = token.is_word("INSERT") and number + 1 < len(tokens) and tokens[number + 1].is_word("INTO")
        if is_insert and not is_part:
            raise source.mistake(
                "INSERT INTO stands inside a query", token.span, fix="write INSERT INTO table WITH ... SELECT ..."
            )
        if is_clause and not is_part:
            what, fix = REFUSED_CLAUSES[token.value]
            raise source.mistake(what, token.span, fix=fix)
