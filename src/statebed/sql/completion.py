"""Completion of what is typed into a SQL shell: keywords, tables, columns, functions, jobs, settings, and commands."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

STATEMENTS = (
    "ATTACH",
    "CREATE FUNCTION",
    "CREATE OR REPLACE VIEW",
    "CREATE TABLE",
    "CREATE VIEW",
    "DESCRIBE",
    "DETACH",
    "DROP",
    "EXECUTE STATEMENT SET BEGIN",
    "EXIT",
    "EXPLAIN",
    "HELP",
    "INSERT INTO",
    "QUIT",
    "RESET",
    "SELECT",
    "SET",
    "SHOW",
    "STOP JOB",
    "WITH",
)
TYPES = (
    "ARRAY",
    "BIGINT",
    "BINARY",
    "BOOLEAN",
    "DATE",
    "DECIMAL",
    "DOUBLE",
    "FLOAT",
    "INT",
    "MAP",
    "SMALLINT",
    "STRING",
    "STRUCT",
    "TIMESTAMP",
    "TINYINT",
    "VARCHAR",
)
KEYWORDS = (
    "ALL",
    "AND",
    "ANTI",
    "AS",
    "ASC",
    "BETWEEN",
    "BY",
    "CASE",
    "CAST",
    "CROSS",
    "CUBE",
    "CUMULATE",
    "DAY",
    "DENSE_RANK",
    "DESC",
    "DESCRIPTOR",
    "DISTINCT",
    "ELSE",
    "END",
    "ENFORCED",
    "EXCEPT",
    "EXISTS",
    "EXTRACT",
    "FALSE",
    "FILTER",
    "FIRST",
    "FOR",
    "FROM",
    "FULL",
    "GROUP",
    "GROUPING",
    "HAVING",
    "HOP",
    "HOUR",
    "IF",
    "IN",
    "INNER",
    "INSERT",
    "INTERVAL",
    "INTO",
    "IS",
    "JOIN",
    "KEY",
    "LAST",
    "LATERAL",
    "LEFT",
    "LIKE",
    "LIMIT",
    "MILLISECOND",
    "MINUTE",
    "NOT",
    "NULL",
    "NULLS",
    "OF",
    "ON",
    "OR",
    "ORDER",
    "OUTER",
    "OVER",
    "PARTITION",
    "PRIMARY",
    "RANK",
    "RETURNS",
    "RIGHT",
    "ROLLUP",
    "ROW_NUMBER",
    "SECOND",
    "SELECT",
    "SEMI",
    "SESSION",
    "SETS",
    "SYSTEM_TIME",
    "TABLE",
    "THEN",
    "TRUE",
    "TUMBLE",
    "UNION",
    "UNNEST",
    "USING",
    "VALUES",
    "VIEW",
    "WATERMARK",
    "WHEN",
    "WHERE",
    "WINDOW",
    "WINDOW_END",
    "WINDOW_START",
    "WINDOW_TIME",
    "WITH",
    "WITHIN",
)
"""Words of queries, besides types."""
_COLUMN_WORDS = ("AS", "COMMENT", "ENFORCED", "FOR", "INTERVAL", "KEY", "NOT", "NULL", "PRIMARY", "WATERMARK")
"""Words between the parentheses of CREATE TABLE, besides types."""
COMMANDS = (".epoch", ".exit", ".help", ".jobs", ".mode", ".quit", ".read", ".results", ".tables")
_LISTS = ("FUNCTIONS", "JOBS", "SETTINGS", "STATES", "TABLES", "VIEWS")
_WORD = re.compile(r"[\w.`]*$")
_LAST_WORDS = re.compile(r"(?:\b(\w+)\s+)?\b(\w+)\s*$")
_TABLE_OPTIONS = re.compile(
    r"\bCREATE\s.*\bTABLE\b(.*)\bWITH\s*\(((?:'[^']*'|[^()'])*(?:'[^']*)?)$", re.IGNORECASE | re.DOTALL
)
"""The columns of CREATE TABLE, and its options up to the cursor."""
_TABLE_COLUMNS = re.compile(
    r"^\s*CREATE\s+(?:TEMPORARY\s+)?TABLE\s+(?:IF\s+NOT\s+EXISTS\s+)?[\w.`]+\s*\((?:[^()]|\([^()]*\))*(?:\([^()]*)?$",
    re.IGNORECASE,
)
_NEW_NAME = re.compile(r"^\s*CREATE\s+(?:OR\s+REPLACE\s+)?(?:TEMPORARY\s+)?(?:FUNCTION|TABLE|VIEW)\s+$", re.IGNORECASE)
_COLUMN = re.compile(r"[(,]\s*`?(\w+)`?\s+\w")
_HINT = re.compile(r"/\*\+\s*\w*$")
_CONNECTOR = re.compile(r"\bconnector'?\s*=\s*'(\w+)'", re.IGNORECASE)
_OPTION_VALUE = re.compile(r"([\w.-]+)'?\s*=\s*('?)[\w.-]*$")
_OPTION_NAME = re.compile(r"[\w.-]*$")
_TABLE_OF_ALIAS = r"\b(?:FROM|JOIN|,)\s+([\w.`]+)(?:\s+AS)?\s+{alias}\b"


@dataclass(frozen=True)
class CompletionNames:
    """Names that a shell knows when it completes a text."""

    tables: Sequence[str] = ()
    """Tables, views, and state tables as `job.operator.table`."""
    columns: Callable[[str], Sequence[str]] = field(default=lambda _: ())
    """Columns of a table."""
    functions: Sequence[str] = ()
    jobs: Sequence[str] = ()
    settings: Sequence[str] = ()
    connectors: Callable[[], Mapping[str, Mapping[str, Sequence[str]]]] = field(default=dict)
    """Options of CREATE TABLE by connector, each with the values that it can have if they are known."""
    by_word: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Further names by the word before them, such as the modes after `.mode`."""


def completed_word(text: str) -> str:
    """Return the word at the end of a text, which completions replace.

    >>> completed_word("SELECT count(bids.pr")
    'bids.pr'
    """
    match = _WORD.search(text)
    return match[0] if match else ""


def completions(text: str, names: CompletionNames) -> list[str]:  # noqa: C901, PLR0911 - one return for each context
    """Return what the last word of a text may become, sorted; the text is the statement up to the cursor.

    >>> completions("SELECT * FROM b", CompletionNames(tables=["bids", "minutes"]))
    ['bids']
    """
    word = completed_word(text)
    before = text[: len(text) - len(word)]
    if before.lstrip().startswith(".") or (not before.strip() and word.startswith(".")):
        return _commands(before.strip(), word, names)
    if not before.strip():
        return _matching(word, (), keywords=STATEMENTS)
    defined = _in_definition(text, before, word, names)
    if defined is not None:
        return defined
    match = _LAST_WORDS.search(before)
    last, second = (match[2].upper(), (match[1] or "").upper()) if match else ("", "")
    if last == "SHOW":
        return _matching(word, (), keywords=_LISTS)
    if (second, last) == ("STOP", "JOB"):
        return _matching(word, names.jobs)
    if last in {"SET", "RESET"} and second in {"", last}:
        return _matching(word, names.settings)
    if last == "CREATE":
        return _matching(word, (), keywords=("FUNCTION", "OR REPLACE VIEW", "TABLE", "TEMPORARY VIEW", "VIEW"))
    if (second, last) == ("CREATE", "TEMPORARY"):
        return _matching(word, (), keywords=("FUNCTION", "TABLE", "VIEW"))
    if last == "STOP":
        return _matching(word, (), keywords=("JOB",))
    if last == "DROP":
        return _matching(word, (), keywords=("FUNCTION", "TABLE", "VIEW"))
    if last in {"FROM", "JOIN", "INTO", "DESCRIBE", "DESC"} or (last in {"TABLE", "VIEW"} and second != "CREATE"):
        return _matching(word, names.tables, keywords=("TABLE",) if last in {"FROM", "JOIN"} else ())
    if "." in word:
        return _columns_of_table(text, word, names) or _matching(word, names.tables)
    # Nothing is known of the tables of `SELECT pri`, so those of all are offered, except of state tables, which would
    # have to be read.
    tables = _mentioned(text, names.tables) or [table for table in names.tables if "." not in table]
    columns = [column for table in tables for column in names.columns(table)]
    functions = [f"{name}(" for name in names.functions] if word else []
    return _matching(word, [*columns, *functions], keywords=(*KEYWORDS, *TYPES))


def _in_definition(text: str, before: str, word: str, names: CompletionNames) -> list[str] | None:
    """Return completions inside CREATE TABLE, or of a hint; None elsewhere."""
    options = _TABLE_OPTIONS.search(text)
    if options:
        return _table_options(options[2], word, names.connectors(), columns=_COLUMN.findall(options[1]))
    if _TABLE_COLUMNS.search(before):
        return _matching(word, _COLUMN.findall(before), keywords=(*TYPES, *_COLUMN_WORDS))
    if _NEW_NAME.search(before):
        return _matching(word, (), keywords=("IF NOT EXISTS",))
    return _matching(word, (), keywords=("NAME(",)) if _HINT.search(text) else None


def _commands(command: str, word: str, names: CompletionNames) -> list[str]:
    if not command:
        return _matching(word, COMMANDS)
    return _matching(word, names.by_word.get(command.split(maxsplit=1)[0], ()))


def _table_options(
    text: str, word: str, connectors: Mapping[str, Mapping[str, Sequence[str]]], *, columns: Sequence[str]
) -> list[str]:
    """Return options of the table's connector, or values of an option; `text` follows the parenthesis after WITH.

    An option with `*` stands for one of each column.
    """
    connector = _CONNECTOR.search(text)
    known = connectors.get(connector[1].lower(), {}) if connector else {}
    options = {
        name.replace("*", column): values
        for name, values in known.items()
        for column in (columns if "*" in name else [""])
    }
    value = _OPTION_VALUE.search(text)
    if value:
        values = connectors if value[1].lower() == "connector" else options.get(value[1].lower(), ())
        return _matching(word, values if value[2] else [f"'{text}'" for text in values])
    typed = _OPTION_NAME.search(text)
    assert typed is not None
    # A shell replaces only the word after the last hyphen.
    replaced_from = len(typed[0]) - len(word)
    return [name[replaced_from:] for name in _matching(typed[0], options if connector else ["connector"])]


def _columns_of_table(text: str, word: str, names: CompletionNames) -> list[str]:
    """Return the columns of the table or alias before the last dot."""
    owner, _, part = word.rpartition(".")
    known = {table.lower(): table for table in names.tables}
    table = known.get(owner.lower())
    if table is None:
        match = re.search(_TABLE_OF_ALIAS.format(alias=re.escape(owner)), text, re.IGNORECASE)
        table = known.get(match[1].lower()) if match else None
    if table is None:
        return []
    return [f"{owner}.{column}" for column in _matching(part, names.columns(table))]


def _mentioned(text: str, tables: Sequence[str]) -> list[str]:
    words = set(re.findall(r"[\w.]+", text.lower()))
    return [table for table in tables if table.lower() in words]


def _matching(word: str, names: Iterable[str], *, keywords: Iterable[str] = ()) -> list[str]:
    """Return names and keywords that begin with a word; keywords in the case of the word."""
    lowered = word.lower()
    is_lower = bool(word) and word == lowered
    cased = [keyword.lower() if is_lower else keyword for keyword in keywords]
    return sorted({name for name in (*names, *cased) if name.lower().startswith(lowered)}, key=str.lower)
