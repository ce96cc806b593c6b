"""Functions and operators. Each is a builder that resolves types and returns a term with a kernel."""

from statebed.expressions import types
from statebed.expressions.casts import convert
from statebed.expressions.functions import arithmetic, comparisons, conditions, maths, nested, patterns, strings, times
from statebed.expressions.sites import Builder, of

__all__ = ["FUNCTIONS"]

FUNCTIONS: dict[str, Builder] = {
    **arithmetic.BUILDERS,
    **comparisons.BUILDERS,
    **conditions.BUILDERS,
    **maths.BUILDERS,
    **nested.BUILDERS,
    **patterns.BUILDERS,
    **strings.BUILDERS,
    **times.BUILDERS,
    **{
        name: of(lambda site, kind=kind: convert(site.operands[0], kind, place=site.place), 1)  # type: ignore[misc]
        for name, kind in types.NAMED.items()
        if name in {"boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string", "date", "timestamp"}
    },
}
"""Functions and operators by name."""
