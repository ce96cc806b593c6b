"""Nexmark: a stream of auctions, persons and bids, and 24 questions about it, q0 to q23, as flows of statebed."""

from examples.nexmark.queries import QUERIES, Query
from examples.nexmark.sources import Sources, rows_of

__all__ = ["QUERIES", "Query", "Sources", "rows_of"]
