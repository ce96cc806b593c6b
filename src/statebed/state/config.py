"""Configurations of tables: name, kind and columns.

A configuration is checked when it is made, before any table exists. It is stored with every checkpoint of its table.
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, TypeAlias

import pyarrow as pa

from statebed.arrays.key_hash import check_key_type
from statebed.errors import InputError
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.format.schema import assign_field_ids, check_user_columns, schema_to_bytes
from statebed.format.segment_spec import check_storable
from statebed.quantities import Duration, parse_duration
from statebed.state.arguments import check_kind, checked_number
from statebed.state.evolution.column_defaults import default_of, defaults_to_bytes

TableConfig: TypeAlias = pb.TableConfig

MAX_VERSION = (1 << 32) - 1
_MAX_US = (1 << 63) - 1


class TimeToLiveClock(Enum):
    """Clock by which rows of a keyed table expire."""

    EVENT_TIME = pb.EVENT_TIME
    """The watermark."""
    EPOCH_TIME = pb.EPOCH_TIME
    """The processing time of the epoch."""


class CommitPhases(Enum):
    """Whether a table keeps what its operator prepares for a two-phase commit."""

    ONE = False
    TWO = True


def global_table_config(
    name: str, description: str, *, phases: CommitPhases = CommitPhases.ONE
) -> dict[str, TableConfig]:
    """Return the configuration of a global keyed table by name: small, dict-like, read by every subtask."""
    return global_table_config_with_version(name, description, 0, phases=phases)


def global_table_config_with_version(
    name: str, description: str, version: int, *, phases: CommitPhases = CommitPhases.ONE
) -> dict[str, TableConfig]:
    """Return the configuration of a global keyed table whose values have a version and are migrated when it rises."""
    fix = f"choose 0 to {MAX_VERSION}"
    check_kind(phases, CommitPhases, "number of phases", where=f"table {name!r}", fix="give CommitPhases.ONE or TWO")
    version = checked_number(version, "version", where=f"table {name!r}", fix=fix)
    if not 0 <= version <= MAX_VERSION:
        raise InputError(
            f"the version of the state must be from 0 to {MAX_VERSION}, got {version}", where=f"table {name!r}", fix=fix
        )
    kind = pb.GlobalKeyedTableConfig(uses_two_phase_commit=phases.value)
    config = TableConfig(name=_checked(name), description=description, state_version=version, global_keyed=kind)
    return {name: config}


def timestamp_table_config(
    name: str,
    description: str,
    retention: Duration,
    generational: bool,
    schema: pa.Schema,
    *,
    keys: Sequence[str] = (),
    bin_width: Duration | None = None,
    renames: Mapping[str, str] | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> TableConfig:
    """Return the configuration of a time-keyed table, which keeps rows for `retention` behind the watermark.

    `generational`: if several rows have the same key and time, the newest replaces the others. `bin_width` is the width
    of the time bins by which rows are read; it defaults to the retention. `renames` and `defaults` are for tables whose
    columns change while their state is kept: `renames` maps a column to its name in an earlier version ({new name: old
    name}), and `defaults` holds the values that rows stored before a column was added have in it.
    """
    where = f"table {name!r}"
    retention_us = _positive(retention, "retention", where=where)
    bin_us = retention_us if bin_width is None else _positive(bin_width, "bin width", where=where)
    if generational and not keys:
        raise InputError(
            "a generational table needs keys: without them no row can replace another",
            where=where,
            fix="name the key columns in keys=[...]",
        )
    kind = pb.TimeKeyedTableConfig(
        retention_us=retention_us,
        generational=generational,
        schema=_columns(schema, keys, where=where),
        key_columns=keys,
        bin_us=bin_us,
        renames=_renames(renames or {}, schema, where=where),
        defaults=_defaults(defaults or {}, schema, keys, where=where),
    )
    return TableConfig(name=_checked(name), description=description, time_keyed=kind)


def keyed_table_config(
    name: str,
    description: str,
    keys: Sequence[str],
    schema: pa.Schema,
    ttl: Duration | None = None,
    *,
    ttl_clock: TimeToLiveClock = TimeToLiveClock.EVENT_TIME,
    renames: Mapping[str, str] | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> TableConfig:
    """Return the configuration of a keyed table: one row per key, which expires `ttl` after its time.

    Rows never expire if `ttl` is None. `renames` and `defaults` are as in `timestamp_table_config`.
    """
    where = f"table {name!r}"
    if not keys:
        raise InputError(
            "a keyed table needs at least one key column, got none",
            where=where,
            fix="name at least one column in keys=[...]",
        )
    kind = pb.KeyedTableConfig(
        schema=_columns(schema, keys, where=where),
        key_columns=keys,
        renames=_renames(renames or {}, schema, where=where),
        defaults=_defaults(defaults or {}, schema, keys, where=where),
    )
    if ttl is not None:
        check_kind(
            ttl_clock, TimeToLiveClock, "clock", where=where, fix="give TimeToLiveClock.EVENT_TIME or EPOCH_TIME"
        )
        kind.time_to_live_us = _positive(ttl, "time to live", where=where)
        kind.time_to_live_clock = ttl_clock.value
    return TableConfig(name=_checked(name), description=description, keyed=kind)


def multiset_table_config(
    name: str,
    description: str,
    keys: Sequence[str],
    elements: Sequence[str],
    schema: pa.Schema,
    *,
    ttl: Duration | None = None,
    ttl_clock: TimeToLiveClock = TimeToLiveClock.EVENT_TIME,
    expires_with: str | None = None,
    renames: Mapping[str, str] | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> TableConfig:
    """Return the configuration of a keyed table with one row per element of a group.

    `keys` identify the group, `elements` the row in it. All rows of a group belong to the subtask that owns the hash of
    `keys`; `KeyedView.elements` reads them in pages, so a group may be larger than memory. `expires_with` names a keyed
    table with the same `keys` and a time to live: when its row of a group expires, all elements of the group are
    deleted. Everything else is as in `keyed_table_config`.
    """
    where = f"table {name!r}"
    if expires_with is not None and ttl is not None:
        raise InputError(
            f"rows expire either by `ttl` or with the table {expires_with!r}, but both are set",
            where=where,
            fix="leave one of them out",
        )
    for what, columns in (("keys", keys), ("elements", elements)):
        if isinstance(columns, str):
            raise InputError(
                f"`{what}` must be a list of column names, got {columns!r}",
                where=where,
                fix=f"write {what}=[{columns!r}]",
            )
        if not columns:
            raise InputError(
                f"a multiset table needs at least one column in {what}, got none",
                where=where,
                fix="name the columns; a table with one row per key is a keyed_table_config",
            )
    config = keyed_table_config(
        name,
        description,
        [*keys, *elements],
        schema,
        ttl,
        ttl_clock=ttl_clock,
        renames=renames,
        defaults=defaults,
    )
    config.keyed.prefix_columns = len(keys)
    config.keyed.expires_with = "" if expires_with is None else names.check_part("table", expires_with)
    return config


def check_configs(configs: Mapping[str, TableConfig]) -> None:
    """Raise an error if a configuration is registered under another name or has no kind."""
    check_kind(configs, Mapping, "set of tables", where="configs", fix="give a dictionary: {config.name: config}")
    for name, config in configs.items():
        check_kind(
            config, TableConfig, "configuration", where=f"table {name!r}", fix="use keyed_table_config or its like"
        )
        _checked(config.name)
        if name != config.name:
            raise InputError(
                f"the table {config.name!r} is registered under the name {name!r}",
                fix="register each table under its own name",
            )
        if config.WhichOneof("kind") is None:
            raise InputError(
                f"the table {name!r} has no kind", fix="make its configuration with global_table_config or its like"
            )


def _checked(name: str) -> str:
    return names.check_part("table", name)


def _positive(span: Duration, what: str, *, where: str) -> int:
    fix = "write a duration greater than zero, such as '30 days' or a timedelta"
    try:
        micros = parse_duration(span)
    except InputError as error:
        raise InputError(error.what, where=f"{where}, {what}", fix=error.fix or fix) from error
    if micros < 1:
        raise InputError(f"the {what} must be longer than zero, got {span!r}", where=where, fix=fix)
    if micros > _MAX_US:
        raise InputError(
            f"the {what} {span!r} is too long to be stored",
            where=where,
            fix="give at most 100 million days; a keyed table without a time to live keeps rows for ever",
        )
    return micros


def _columns(schema: pa.Schema, keys: Sequence[str], *, where: str) -> bytes:
    check_kind(schema, pa.Schema, "schema", where=where, fix="give a pyarrow schema: pa.schema([(name, type), ...])")
    if isinstance(keys, str):
        raise InputError(
            f"the keys must be a list of column names, got the string {keys!r}",
            where=where,
            fix=f"write keys=[{keys!r}]",
        )
    check_user_columns(schema.names, where=where)
    missing = [key for key in keys if key not in schema.names]
    if missing or len(set(keys)) != len(keys):
        raise InputError(
            f"the keys {list(keys)} must be distinct columns of the schema, which has {schema.names}",
            where=where,
            fix="name each key column once, spelled as in the schema",
        )
    for key in keys:
        check_key_type(schema.field(key), where=where)
    for field in schema:
        check_storable(field, where=where)
    # The table assigns field ids. Ids that come with a schema, perhaps from a file, mean other columns.
    return schema_to_bytes(assign_field_ids(pa.schema([field.remove_metadata() for field in schema]), where=where))


def _renames(renames: Mapping[str, str], schema: pa.Schema, *, where: str) -> dict[str, str]:
    """Return the map of new to old names; refuse unknown columns and ambiguous chains."""
    olds = list(renames.values())
    unknown = [name for name in renames if name not in schema.names and name not in olds]
    if unknown or len(set(olds)) != len(olds) or any(old == new for new, old in renames.items()):
        raise InputError(
            f"the renames {dict(renames)} do not map each of the columns {schema.names} to one old name",
            where=where,
            fix="write renames={new name: old name}, each name at most once on either side",
        )
    return dict(renames)


def _defaults(defaults: Mapping[str, Any], schema: pa.Schema, keys: Sequence[str], *, where: str) -> bytes:
    unknown = [name for name in defaults if name not in schema.names or name in keys]
    if unknown:
        raise InputError(
            f"defaults are given for {unknown}, which are not value columns",
            where=where,
            fix="give defaults for columns of the schema that are not keys",
        )
    scalars = {name: default_of(schema.field(name), value, where=where) for name, value in defaults.items()}
    return defaults_to_bytes(scalars, schema)
