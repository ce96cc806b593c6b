"""All queries by name."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType

from examples.nexmark import joins, row_by_row, statistics, windows
from examples.nexmark.sources import Sources
from statebed.flow import Flow, Stream

RESULT = "result"
"""The name of a query's last stream."""
_MODULES: tuple[ModuleType, ...] = (row_by_row, windows, joins, statistics)


@dataclass(frozen=True)
class Query:
    """One of them."""

    name: str
    build: Callable[[Sources], Stream]

    @property
    def about(self) -> str:
        """Question that the query answers."""
        return inspect.getdoc(self.build) or ""

    def flow(self) -> Flow:
        """A flow of this query alone; its result is known as RESULT."""
        flow = Flow(self.name)
        self.build(Sources(flow)).named(RESULT)
        return flow


def _query(number: int) -> Query:
    name = f"q{number}"
    (build,) = [getattr(module, name) for module in _MODULES if hasattr(module, name)]
    return Query(name, build)


QUERIES: Mapping[str, Query] = {query.name: query for query in (_query(number) for number in range(24))}
