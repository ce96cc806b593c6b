"""Time to live: how long an operator keeps the state of a key, in event time or processing time."""

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from statebed.errors import InputError
from statebed.quantities import Duration, duration_text, parse_duration
from statebed.state import TableConfig, TimeToLiveClock, keyed_table_config, multiset_table_config


@dataclass(frozen=True)
class TimeToLive:
    """Time to live: the state of a key expires once the clock reaches the key's time plus the span."""

    span_us: int
    clock: TimeToLiveClock = TimeToLiveClock.EVENT_TIME

    def __post_init__(self) -> None:
        if self.span_us <= 0:
            raise InputError(
                f"`ttl` must be positive, got {duration_text(self.span_us)!r}",
                fix="use a duration like '1 day', or leave it out",
            )


def time_to_live(span: Duration | None, clock: TimeToLiveClock | str = TimeToLiveClock.EVENT_TIME) -> TimeToLive | None:
    """Build a time to live from a span such as '1 day' and a clock, 'event_time' or 'epoch_time'; None if no span."""
    if not isinstance(clock, TimeToLiveClock):
        if not isinstance(clock, str) or clock.upper() not in TimeToLiveClock.__members__:
            known = [member.lower() for member in TimeToLiveClock.__members__]
            raise InputError(f"`ttl_clock` must be one of {known}, got {clock!r}", fix=f"use one of {known}")
        clock = TimeToLiveClock[clock.upper()]
    return None if span is None else TimeToLive(parse_duration(span), clock)


def by_event_time(ttl: TimeToLive | None) -> bool:
    """Return whether every stored row needs an event time."""
    return ttl is not None and ttl.clock is TimeToLiveClock.EVENT_TIME


def expires_by_event_time(table: TableConfig) -> bool:
    """Return whether rows of a table expire by event time."""
    keyed = table.keyed
    return keyed.HasField("time_to_live_us") and keyed.time_to_live_clock == TimeToLiveClock.EVENT_TIME.value


def keyed_config(
    name: str, description: str, keys: tuple[pa.Field, ...], values: list[pa.Field], ttl: TimeToLive | None
) -> TableConfig:
    """Return the configuration of a keyed table whose rows have this time to live."""
    return keyed_table_config(
        name,
        description,
        [key.name for key in keys],
        pa.schema([*keys, *values]),
        None if ttl is None else dt.timedelta(microseconds=ttl.span_us),
        ttl_clock=TimeToLiveClock.EVENT_TIME if ttl is None else ttl.clock,
    )


def multiset_config(
    name: str,
    description: str,
    keys: Sequence[pa.Field],
    elements: Sequence[pa.Field],
    values: Sequence[pa.Field],
    *,
    ttl: TimeToLive | None,
    expires_with: str | None = None,
) -> TableConfig:
    """Return the configuration of a multiset table whose rows have this time to live, or expire with another table."""
    return multiset_table_config(
        name,
        description,
        [key.name for key in keys],
        [element.name for element in elements],
        pa.schema([*keys, *elements, *values]),
        ttl=None if ttl is None else dt.timedelta(microseconds=ttl.span_us),
        ttl_clock=TimeToLiveClock.EVENT_TIME if ttl is None else ttl.clock,
        expires_with=expires_with,
    )


EXPIRED = "its `ttl` has removed results from the state that are still in the sink"
"""Reason why a sink after an operator with a time to live cannot be rebuilt from state."""


def described_ttl(ttl: TimeToLive | None) -> list[object] | None:
    """Return the time to live as it is stored in the definition."""
    return None if ttl is None else [ttl.span_us, ttl.clock.name]
