"""SELECT blocks of a query, and the names that operators get from them.

An operator is named after the innermost block that contains it: the name of its CTE or the alias of its subquery, else
the view or the table of the INSERT. A hint overrides it: `SELECT /*+ NAME('per_minute') */ ...`; or a comment beside
the SELECT or above the statement: `-- name: per_minute`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from statebed.errors import InputError
from statebed.format.names import check_name
from statebed.sql.source_text import SqlSpan, SqlText
from statebed.sql.sql_tokens import SqlToken, SqlTokenKind

_NAME_HINT = re.compile(r"\s*NAME\s*\(\s*(?P<quote>['\"`]?)(?P<name>[^'\"`]*)(?P=quote)\s*\)\s*", re.IGNORECASE)
_NAME_COMMENT = re.compile(r"--[ \t]*name:[ \t]*(?P<name>\S+)[ \t]*$", re.IGNORECASE | re.MULTILINE)
_HINT = "write /*+ NAME('per_minute') */ after SELECT"
_NO_ALIASES = (
    "AND", "ANTI", "CLUSTER", "CROSS", "DISTRIBUTE", "ELSE", "END", "EXCEPT", "FULL", "GROUP", "HAVING", "INNER",
    "INTERSECT", "JOIN", "LATERAL", "LEFT", "LIMIT", "MINUS", "NATURAL", "OFFSET", "ON", "OR", "ORDER", "PIVOT",
    "RIGHT", "SEMI", "SORT", "THEN", "UNION", "UNPIVOT", "USING", "WHEN", "WHERE", "WINDOW"
)  # fmt: skip
"""Words that may follow a subquery without an alias."""


@dataclass(frozen=True)
class QueryBlock:
    """A SELECT, with the span of its text."""

    span: SqlSpan
    label: str
    hint: str | None
    is_grouped: bool = False
    """Whether it has a GROUP BY of its own."""


def is_name_hint(token: SqlToken) -> bool:
    """Return whether a hint names an operator."""
    return token.kind is SqlTokenKind.HINT and token.value.strip().upper().startswith("NAME")


def blocks_of(source: SqlText, tokens: Sequence[SqlToken], *, label: str) -> tuple[QueryBlock, ...]:
    """Return the blocks of a query, outer ones first."""
    whole = tokens[0].span.to(tokens[-1].span)
    result = [(whole, label)]
    for place, token in enumerate(tokens):
        following = tokens[place + 1] if place + 1 < len(tokens) else None
        if token.is_symbol("(") and following is not None and following.is_word("SELECT", "WITH"):
            end = _closing(tokens, place)
            result.append((token.span.to(tokens[end].span), _label(source, tokens, place, end) or ""))
    hints: dict[int, str] = {}
    grouped: set[int] = set()
    for place, token in enumerate(tokens):
        inside = [number for number, (span, _) in enumerate(result) if _contains(span, token.span)][-1]
        if token.is_word("GROUP"):
            grouped.add(inside)
        if is_name_hint(token):
            if inside in hints:
                raise source.mistake("this block has a NAME hint already", token.span, fix="remove one of them")
            hints[inside] = _hinted_name(source, token)
        elif token.is_word("SELECT") or place == 0:
            for comment in _name_comments(source, tokens, place):
                span = SqlSpan(comment.start(), comment.end())
                if inside in hints:
                    raise source.mistake("this block has a name already", span, fix="remove one of them")
                hints[inside] = _checked_name(source, comment["name"], span)
    return tuple(
        QueryBlock(span, _own_or_outer(result, number), hints.get(number), number in grouped)
        for number, (span, _) in enumerate(result)
    )


def block_at(blocks: Sequence[QueryBlock], span: SqlSpan) -> QueryBlock:
    """Return the innermost block that contains a span."""
    return [block for block in blocks if _contains(block.span, span)][-1]


def _own_or_outer(result: Sequence[tuple[SqlSpan, str]], number: int) -> str:
    """Return the label of a block, or of the innermost labelled block around it."""
    span = result[number][0]
    return [label for outer, label in result[: number + 1] if label and _contains(outer, span)][-1]


def _hinted_name(source: SqlText, token: SqlToken) -> str:
    match = _NAME_HINT.fullmatch(token.value)
    if match is None:
        raise source.mistake("this hint cannot be read", token.span, fix=_HINT)
    return _checked_name(source, match["name"], token.span)


def _checked_name(source: SqlText, name: str, span: SqlSpan) -> str:
    try:
        return check_name("operator", name)
    except InputError as error:
        raise source.mistake(error.what, span, fix=error.fix) from error


def _name_comments(source: SqlText, tokens: Sequence[SqlToken], place: int) -> list[re.Match[str]]:
    """Return the comments `-- name: x` beside a SELECT; for the first token of a query, those above its statement."""
    token = tokens[place]
    before = tokens[place - 1].span.end if place else source.text.rfind(";", 0, token.span.start) + 1
    after = tokens[place + 1].span.start if token.is_word("SELECT") and place + 1 < len(tokens) else token.span.end
    gaps = ((before, token.span.start), (token.span.end, after))
    return [comment for gap in gaps for comment in _NAME_COMMENT.finditer(source.text, *gap)]


def _label(source: SqlText, tokens: Sequence[SqlToken], opening: int, closing: int) -> str | None:
    """Return the name of a CTE before the parenthesis, or the alias after it."""
    match tokens[:opening]:
        case [*_, name, word] if name.is_name and word.is_word("AS"):
            return _name(source, name)
    after = closing + 1
    if after < len(tokens) and tokens[after].is_word("AS"):
        after += 1
    if after < len(tokens) and tokens[after].is_name and not tokens[after].is_word(*_NO_ALIASES):
        return _name(source, tokens[after])
    return None


def _name(source: SqlText, token: SqlToken) -> str:
    return token.value if token.kind is SqlTokenKind.QUOTED_NAME else source.slice(token.span)


def _closing(tokens: Sequence[SqlToken], opening: int) -> int:
    depth = 0
    for place in range(opening, len(tokens)):
        depth += tokens[place].is_symbol("(") - tokens[place].is_symbol(")")
        if depth == 0:
            return place
    return len(tokens) - 1


def _contains(outer: SqlSpan, inner: SqlSpan) -> bool:
    return outer.start <= inner.start and inner.end <= outer.end
