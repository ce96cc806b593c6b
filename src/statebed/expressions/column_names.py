"""Case-insensitive lookup of columns and fields, as in Spark, and suggestions for misspelt names."""

import difflib
from collections.abc import Iterable, Sequence

from statebed.expressions.mistakes import TextSpan

_MAX_SHOWN = 30


def index_of_name(place: TextSpan, names: Sequence[str], wanted: str, *, kind: str) -> int:
    """Return the index of a name: the exact spelling if it exists, otherwise one in any case."""
    exact = [index for index, name in enumerate(names) if name == wanted]
    for indexes in (exact, [index for index, name in enumerate(names) if name.lower() == wanted.lower()]):
        if len(indexes) == 1:
            return indexes[0]
        if indexes:
            same = ", ".join(names[index] for index in indexes)
            raise place.mistake(f"{kind} {wanted!r} is ambiguous: there are {same}", fix="rename all but one of them")
    raise place.mistake(f"there is no {kind} {wanted!r}", fix=advice(names, wanted, kind=kind))


def advice(names: Iterable[str], wanted: str, *, kind: str) -> str:
    """Suggest the closest name and list the existing ones."""
    known = list(names)
    near = near_match(known, wanted)
    shown = ", ".join(known[:_MAX_SHOWN]) + (", ..." if len(known) > _MAX_SHOWN else "")
    listed = f"the {kind}s are {shown}" if known else f"there are no {kind}s"
    return f"did you mean {near!r}? {listed}" if near else listed


def near_match(names: Iterable[str], wanted: str) -> str | None:
    """Return the name with the most similar spelling."""
    by_lower = {name.lower(): name for name in names}
    near = difflib.get_close_matches(wanted.lower(), by_lower, n=1)
    return by_lower[near[0]] if near else None
