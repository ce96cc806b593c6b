"""Text patterns: like, regular expressions, split. Regular expressions are RE2's, matched in linear time: like Java's,
but without look-around and back references, which are rejected.
"""

import re
import secrets
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statebed.arrays.columns import validity
from statebed.expressions import types
from statebed.expressions.distinct_values import by_distinct
from statebed.expressions.functions.strings import as_text
from statebed.expressions.list_parts import (
    MAX_ELEMENTS,
    ListParts,
    check_elements,
    join_lists,
    split_lists,
    taken,
)
from statebed.expressions.sites import Builder, Site, of
from statebed.expressions.terms import Term
from statebed.expressions.text_limits import check_size, text_bytes

_SPECIAL = re.compile(r"[\\^$.|?*+()\[\]{}]")
_CAPTURED = "(?P<found>"
_REPLACED = re.compile(r"\\.|.", re.DOTALL)
"""Matches each part of a replacement: a reference to a group, an escaped character or another one."""
_COUNTED = 1_024
"""Number of texts whose matches are counted at once."""
_OUTSIDE_RE2 = "use no look-around and no back references; in a text, a backslash is written twice"


def _like(site: Site) -> Term:
    escape = site.text_of(2) if len(site.operands) > 2 else "\\"  # noqa: PLR2004 - the third operand
    if len(escape) != 1:
        raise site.operands[2].place.mistake("the escape must be a single character")
    pattern = _with_backslashes(site, site.text_of(1), escape)
    kernel = partial(_matches_like, pattern, site.function == "ilike")
    return site.apply(kernel, types.BOOLEAN, as_text(site, site.operands[0]))


def _with_backslashes(site: Site, pattern: str, escape: str) -> str:
    """Return the pattern with backslash as its escape character, the only one that Arrow supports."""
    escaped, position = [], 0
    while position < len(pattern):
        character = pattern[position]
        if character == escape:
            position += 1
            following = pattern[position : position + 1]
            if following not in {"%", "_", escape} or not following:
                raise site.operands[1].place.mistake(
                    f"in this pattern {escape!r} escapes neither '%' nor '_' nor itself",
                    fix=f"write {escape * 2} for the character itself",
                )
            character = following
            escaped.append("\\" + character if character in "%_\\" else character)
        else:
            escaped.append("\\\\" if character == "\\" else character)
        position += 1
    return "".join(escaped)


def _matches_like(pattern: str, ignore_case: bool, array: pa.Array) -> pa.Array:
    return pc.match_like(array, pattern=pattern, ignore_case=ignore_case)


def regular(site: Site, index: int) -> str:
    """Return a regular expression after compiling it, so that constructs that RE2 lacks are found during binding."""
    pattern = site.text_of(index)
    try:
        pc.match_substring_regex(pa.array([""]), pattern=pattern)
    except pa.ArrowInvalid as error:
        reason = str(error).removeprefix("Invalid regular expression: ")
        raise site.operands[index].place.mistake(
            f"the regular expression is invalid or not supported: {reason}", fix=_OUTSIDE_RE2
        ) from None
    return pattern


def _rlike(site: Site) -> Term:
    kernel = partial(_matches, regular(site, 1))
    return site.apply(kernel, types.BOOLEAN, as_text(site, site.operands[0]))


def _matches(pattern: str, array: pa.Array) -> pa.Array:
    return pc.match_substring_regex(array, pattern=pattern)


def _extract(site: Site) -> Term:
    pattern = regular(site, 1)
    group = site.integer_of(2) if len(site.operands) > 2 else 1  # noqa: PLR2004 - the third operand
    named, groups = _with_name(pattern, group)
    if not 0 <= group <= groups:
        at = site.operands[2] if len(site.operands) > 2 else site.operands[1]  # noqa: PLR2004 - as above
        raise at.place.mistake(
            f"the regular expression has no group {group}", fix=f"the number of its groups is {groups}"
        )
    return site.apply(partial(_extracted, named), types.TEXT, as_text(site, site.operands[0]))


def _with_name(pattern: str, wanted: int) -> tuple[str, int]:
    """Return the pattern with group `wanted` (0: the whole match) captured as `found`, and the number of its groups.

    The other groups are not captured, because the text of each captured group is built for every row.
    """
    parts, groups, position, inside = [], 0, 0, False
    while position < len(pattern):
        character = pattern[position]
        if character == "\\":
            parts.append(pattern[position : position + 2])
            position += 2
            continue
        if inside:
            inside = character != "]" or pattern[position - 1] == "["
        elif character == "[":
            inside = True
        elif character == "(":
            name = re.match(r"\(\?P?<\w+>", pattern[position:])
            if name or pattern[position + 1 : position + 2] != "?":
                groups += 1
                parts.append(_CAPTURED if groups == wanted else "(?:")
                position += len(name.group()) if name else 1
                continue
        parts.append(character)
        position += 1
    return (f"{_CAPTURED}{''.join(parts)})" if wanted == 0 else "".join(parts)), groups


def _extracted(pattern: str, array: pa.Array) -> pa.Array:
    """Return the captured text; empty where the pattern does not match."""
    captured = pc.struct_field(pc.extract_regex(array, pattern=pattern), "found")
    return pc.if_else(pc.is_valid(array), pc.fill_null(captured, ""), pa.scalar(None, pa.string()))


def _regexp_replace(site: Site) -> Term:
    pattern, instead = regular(site, 1), site.text_of(2)
    # Java writes groups as $1, RE2 as \1.
    replacement = re.sub(r"\\(.)|\$(\d)", _group_reference, instead)
    text = as_text(site, site.operands[0])
    if may_match_nothing(pattern):
        parts = [int(part[1:]) if re.fullmatch(r"\\\d", part) else part[-1:] for part in _REPLACED.findall(replacement)]
        kernel = partial(_replaced, _compiled(site, pattern), parts)
        return site.apply(partial(by_distinct, kernel, types.TEXT), types.TEXT, text)
    return site.apply(partial(_regexp_replaced, pattern, replacement), types.TEXT, text)


def _replaced(pattern: re.Pattern[str], parts: Sequence[int | str], text: str) -> str:
    """Replace all matches of a pattern that can be empty; a number among the parts is a group."""

    def instead(match: re.Match[str]) -> str:
        return "".join(part if isinstance(part, str) else match[part] or "" for part in parts)

    return pattern.sub(instead, text)


def _group_reference(match: re.Match[str]) -> str:
    if match[2]:
        return f"\\{match[2]}"
    return "\\\\" if match[1] == "\\" else match[1]


def _regexp_replaced(pattern: str, replacement: str, array: pa.Array) -> pa.Array:
    # Each reference repeats at most the text of its match.
    references = len(re.findall(r"\\\d", replacement))
    matches = pc.sum(pc.count_substring_regex(array, pattern=pattern)).as_py() or 0
    check_size(text_bytes(array) * (1 + references) + matches * len(replacement.encode()), len(array))
    return pc.replace_substring_regex(array, pattern=pattern, replacement=replacement)


def _count(site: Site) -> Term:
    pattern, text = regular(site, 1), as_text(site, site.operands[0])
    if may_match_nothing(pattern):
        kernel = partial(_count_one, _compiled(site, pattern))
        return site.apply(partial(by_distinct, kernel, types.INT), types.INT, text)
    return site.apply(partial(_counted, pattern), types.INT, text)


def _count_one(pattern: re.Pattern[str], text: str) -> int:
    return sum(1 for _ in pattern.finditer(text))


def _counted(pattern: str, array: pa.Array) -> pa.Array:
    return pc.cast(pc.count_substring_regex(array, pattern=pattern), pa.int32())


def _first_match(site: Site) -> Term:
    """Build regexp_substr: the first match, or null."""
    named, _ = _with_name(regular(site, 1), 0)
    return site.apply(partial(_matched, named), types.TEXT, as_text(site, site.operands[0]), nullable=True)


def _matched(pattern: str, array: pa.Array) -> pa.Array:
    return pc.struct_field(pc.extract_regex(array, pattern=pattern), "found")


def _position(site: Site) -> Term:
    """Build regexp_instr: the position of the first match, from 1, or 0. The third operand has no effect in Spark."""
    return site.apply(partial(_found_at, regular(site, 1)), types.INT, as_text(site, site.operands[0]))


def _found_at(pattern: str, array: pa.Array) -> pa.Array:
    # The text before the match, as characters.
    before = pc.extract_regex(array, pattern=f"(?s)^(?P<before>.*?)(?:{_with_name(pattern, -1)[0]})")
    length = pc.add(pc.utf8_length(pc.struct_field(before, "before")), pa.scalar(1, pa.int32()))
    return pc.if_else(pc.is_valid(array), pc.fill_null(length, pa.scalar(0, pa.int32())), pa.scalar(None, pa.int32()))


def _extract_all(site: Site) -> Term:
    pattern = regular(site, 1)
    group = site.integer_of(2) if len(site.operands) > 2 else 1  # noqa: PLR2004 - the third operand
    captured, groups = _with_name(pattern, group)
    if not 0 <= group <= groups:
        raise site.operands[-1].place.mistake(
            f"there is no group {group} in this regular expression", fix=f"it has {groups}"
        )
    kind, text = types.list_of(types.TEXT), as_text(site, site.operands[0])
    if not may_match_nothing(pattern):
        return site.apply(partial(_all_captured, captured, kind), kind, text)
    kernel = partial(_all_matches, _compiled(site, pattern), group)
    return site.apply(partial(by_distinct, kernel, kind), kind, text)


def _compiled(site: Site, pattern: str) -> re.Pattern[str]:
    """Return a pattern whose matches can be empty: unlike Java, RE2 omits an empty match next to another one."""
    try:
        return re.compile(pattern, re.ASCII)
    except re.error as error:
        raise site.operands[1].place.mistake(f"a regular expression: {error}", fix=_OUTSIDE_RE2) from None


def may_match_nothing(pattern: str) -> bool:
    """Return whether a match of the pattern can be empty; assertions such as ^ are taken to hold anywhere."""
    anywhere = re.sub(
        r"(\\[^bBAz]|\[\^?\]?(?:\\.|[^\]\\])*\])|\\[bBAz]|[\^$]", lambda match: match[1] or "(?:)", pattern
    )
    try:
        return bool(pc.match_substring_regex(pa.array([""]), pattern=anywhere)[0].as_py())
    except pa.ArrowInvalid:
        return True


def _all_matches(pattern: re.Pattern[str], group: int, text: str) -> list[str]:
    """Return the matches of a pattern that can be empty."""
    return [match[group] or "" for match in pattern.finditer(text)]


def _all_captured(pattern: str, kind: pa.DataType, array: pa.Array) -> pa.Array:
    """Return the text that the only group captures in each match: each match is replaced by it between two marks, and
    the texts are split there.
    """
    matches = 0
    for start in range(0, len(array), _COUNTED):  # stops as soon as there are too many
        matches += pc.sum(pc.count_substring_regex(array.slice(start, _COUNTED), pattern=pattern)).as_py() or 0
        check_elements(matches, len(array))
    marks = ("\0", "\x01", secrets.token_hex(8))
    mark = next(mark for mark in marks if not pc.any(pc.match_substring(array, mark)).as_py())
    replaced = pc.replace_substring_regex(array, pattern=pattern, replacement=f"{mark}\\1{mark}")
    pieces = split_lists(pc.split_pattern(replaced, pattern=mark))
    count = pieces.lengths // 2  # outside, match, outside, match, outside
    within = np.arange(int(count.sum()), dtype=np.int64) - np.repeat(np.cumsum(count) - count, count)
    places = np.repeat(pieces.starts + 1, count) + 2 * within
    return join_lists(kind, ListParts(pieces.valid, count, taken(pieces.values, places)))


def _split(site: Site) -> Term:
    text, pattern = as_text(site, site.operands[0]), regular(site, 1)
    limit = site.integer_of(2) if len(site.operands) > 2 else -1  # noqa: PLR2004 - the third operand
    kind, max_splits = pa.list_(pa.field("element", pa.string(), nullable=False)), limit - 1 if limit > 0 else None
    if may_match_nothing(pattern):
        separator = _compiled(site, pattern) if pattern else None
        return site.apply(partial(by_distinct, partial(_split_one, separator, max_splits), kind), kind, text)
    return site.apply(partial(_parts, pattern, max_splits, kind), kind, text)


def _split_one(pattern: re.Pattern[str] | None, max_splits: int | None, text: str) -> list[str]:
    """Split a text as Java does where the pattern can match nothing; without a pattern, into its characters."""
    if pattern is None:
        first = max(len(text) - 1, 0) if max_splits is None else min(max_splits, max(len(text) - 1, 0))
        return [*text[:first], text[first:]]
    parts: list[str] = []
    index = 0
    for match in pattern.finditer(text):
        if max_splits is not None and len(parts) >= max_splits:
            break
        if match.end():  # an empty match at the beginning separates nothing
            parts.append(text[index : match.start()])
            index = match.end()
    return [*parts, text[index:]]


def _parts(pattern: str, max_splits: int | None, kind: pa.DataType, array: pa.Array) -> pa.Array:
    if max_splits == 0:
        rows = len(array)
        return join_lists(
            kind, ListParts(validity(array), validity(array).astype("int64"), array.drop_null() if rows else array)
        )
    return pc.cast(pieces_of(pattern, max_splits, array), kind)


def pieces_of(pattern: str, max_splits: int | None, array: pa.Array) -> pa.Array:
    """Split texts at most `max_splits` times at the matches of a pattern, after checking the number of pieces."""
    plain = re.sub(r"\\([^\w])", r"\1", pattern)
    if _SPECIAL.search(re.sub(r"\\[^\w]", "", pattern)):
        _check_pieces(pc.count_substring_regex, pattern, max_splits, array)
        return pc.split_pattern_regex(array, pattern=pattern, max_splits=max_splits)
    _check_pieces(pc.count_substring, plain, max_splits, array)
    return pc.split_pattern(array, pattern=plain, max_splits=max_splits)


def _check_pieces(count: Callable[..., pa.Array], pattern: str, max_splits: int | None, array: pa.Array) -> None:
    """Raise if the texts have too many pieces; only texts of many bytes are counted."""
    if text_bytes(array) + len(array) <= MAX_ELEMENTS:
        return
    cuts = count(array, pattern=pattern)
    cuts = cuts if max_splits is None else pc.min_element_wise(cuts, pa.scalar(max_splits, cuts.type), skip_nulls=False)
    check_elements((pc.sum(cuts).as_py() or 0) + len(array), len(array))


BUILDERS: dict[str, Builder] = {
    "like": of(_like, 2, 3),
    "ilike": of(_like, 2, 3),
    "rlike": of(_rlike, 2),
    "regexp_like": of(_rlike, 2),
    "regexp_extract": of(_extract, 2, 3),
    "regexp_replace": of(_regexp_replace, 3),
    "regexp": of(_rlike, 2),
    "regexp_count": of(_count, 2),
    "regexp_extract_all": of(_extract_all, 2, 3),
    "regexp_instr": of(_position, 2, 3),
    "regexp_substr": of(_first_match, 2),
    "split": of(_split, 2, 3),
}
