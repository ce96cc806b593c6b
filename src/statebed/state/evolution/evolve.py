"""Allowed changes of a table's definition while its state is kept, decided before any row is read.

A column is identified by its field id. The program's configuration is compared with the one stored in the restored
epoch. A column of the same name is the same column, and a rename names the stored column. Any other column is new and
gets an id that the table never used. A column that is dropped and added again therefore does not bring its old values
back. Files are not rewritten; their rows are adapted when they are read (`adaptation.py`).

A rename that the stored configuration already contains has been applied and may stay in the program. A program that
uses the old name again, without a rename back, is refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from statebed.errors import IncompatibleSchemaError
from statebed.format import checkpoint_pb2 as pb
from statebed.format.schema import FIRST_USER_FIELD_ID, field_id, schema_from_bytes, schema_to_bytes, with_field_id
from statebed.quantities import duration_text
from statebed.state.evolution.column_defaults import defaults_from_bytes, defaults_to_bytes, same_default
from statebed.state.evolution.widening import widens

Kind = pb.TimeKeyedTableConfig | pb.KeyedTableConfig
NOTHING = "-"
TIME_TO_LIVE = "time to live"


@dataclass(frozen=True)
class Difference:
    """One difference between the stored definition and the program's."""

    what: str
    stored: str
    wanted: str
    verdict: str
    refused: bool = False


@dataclass(frozen=True)
class Evolution:
    """The program's definition with the field ids of the stored one, and the differences."""

    config: pb.TableConfig
    differences: tuple[Difference, ...]


def evolve(wanted: pb.TableConfig, *, stored: pb.TableConfig, schemas: Sequence[pb.TableSchema] = ()) -> Evolution:
    """Return the definition to continue with. The ids in `schemas`, which are those of the table's files, count as
    used.

    Raises IncompatibleSchemaError, listing all differences, if stored rows could not be read correctly.
    """
    where = f"table {wanted.name!r}"
    before, after = _kind_of(stored), _kind_of(wanted)
    old = schema_from_bytes(before.schema, where=where)
    new = schema_from_bytes(after.schema, where=where)
    sources = _sources(old.names, new.names, renames=after.renames, applied=before.renames)
    old_defaults, new_defaults = defaults_from_bytes(before.defaults), defaults_from_bytes(after.defaults)
    differences = [
        *_settings(before, after),
        *_keys(list(before.key_columns), list(after.key_columns), sources),
        *(
            _column(old.field(source) if source else None, field, field.name in after.key_columns, new_defaults)
            for field in new
            for source in [sources[field.name]]
        ),
        *_changed_defaults(sources, old_defaults, new_defaults),
        *_renamed_before(old.names, sources, before.renames),
        *_dropped(old, sources, list(before.key_columns)),
    ]
    differences = [difference for difference in differences if difference.verdict]
    if any(difference.refused for difference in differences):
        raise IncompatibleSchemaError(
            f"the definition of {where} is not compatible with the stored one:\n{described(differences)}",
            where=where,
            fix="undo the refused changes, or rename the table to start with an empty one",
        )
    config = pb.TableConfig()
    config.CopyFrom(wanted)
    kind = _kind_of(config)
    kind.schema = schema_to_bytes(_with_ids(old, new, sources, schemas))
    kept = {name: old_defaults[source] for name, source in sources.items() if source in old_defaults}
    added = {name: value for name, value in new_defaults.items() if sources[name] is None}
    kind.defaults = defaults_to_bytes({**kept, **added}, new)
    return Evolution(config, tuple(differences))


def described(differences: Sequence[Difference]) -> str:
    """Format the differences as a text table."""
    rows = [("", "stored", "program", "")]
    rows += [
        (
            difference.what,
            difference.stored,
            difference.wanted,
            ("refused: " if difference.refused else "") + difference.verdict,
        )
        for difference in differences
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        "  " + "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]).rstrip()
        for row in rows
    )


def _kind_of(config: pb.TableConfig) -> Kind:
    return config.keyed if config.WhichOneof("kind") == "keyed" else config.time_keyed


def _sources(
    old: Sequence[str], new: Sequence[str], *, renames: Mapping[str, str], applied: Mapping[str, str]
) -> dict[str, str | None]:
    """Map each column to the stored column it continues, or to None if it is new."""
    fresh = {new_name: old_name for new_name, old_name in renames.items() if applied.get(new_name) != old_name}
    renamed: dict[str, str | None] = {}
    for name in new:
        # Stop at a name that is another column of the program: earlier names belong to that column.
        earlier = next(
            (
                earlier_name
                for earlier_name in _earlier_names(name, fresh)
                if earlier_name in old or earlier_name in new
            ),
            None,
        )
        if earlier in old:
            renamed[name] = earlier
    taken = set(renamed.values())
    return {name: renamed.get(name, name if name in old and name not in taken else None) for name in new}


def _with_ids(
    old: pa.Schema, new: pa.Schema, sources: Mapping[str, str | None], schemas: Sequence[pb.TableSchema]
) -> pa.Schema:
    known = [old, *(schema_from_bytes(entry.arrow_ipc) for entry in schemas)]
    following = max([FIRST_USER_FIELD_ID - 1, *(field_id(field) for schema in known for field in schema)]) + 1
    fields = []
    for field in new:
        source = sources[field.name]
        if source is None:
            fields.append(with_field_id(field, following))
            following += 1
        else:
            fields.append(with_field_id(field, field_id(old.field(source))))
    return pa.schema(fields)


# ---- what may change ------------------------------------------------------------------------------------------


def _column(old: pa.Field | None, new: pa.Field, key: bool, defaults: Mapping[str, pa.Scalar]) -> Difference:
    if old is None:
        empty = not new.nullable and new.name not in defaults
        verdict = f"rows stored before have no value; give defaults={{{new.name!r}: ...}}" if empty else "added"
        if key:
            verdict = "a key column cannot be added: stored keys have no value for it"
        return Difference(new.name, NOTHING, _described(new), verdict, refused=key or empty)
    refusals = []
    verdicts = []
    if old.name != new.name:
        verdicts.append(f"renamed from {old.name!r}")
    if old.type != new.type:
        if key:
            refusals.append("another type of a key has another hash, so stored keys would not be found")
        elif widens(old.type, new.type):
            verdicts.append("widened")
        else:
            refusals.append(f"not every {old.type} is a {new.type}")
    if old.nullable and not new.nullable:
        refusals.append("stored rows may have nulls")
    elif new.nullable and not old.nullable:
        verdicts.append("may be null now")
    return Difference(
        new.name, _described(old), _described(new), "; ".join(refusals or verdicts), refused=bool(refusals)
    )


def _renamed_before(
    old: Sequence[str], sources: Mapping[str, str | None], applied: Mapping[str, str]
) -> list[Difference]:
    """Return columns named like a stored one before its rename, most likely from an outdated program.

    Treating such a column as new would lose the stored column's values.
    """
    lost = set(old).difference(name for name in sources.values() if name is not None)
    verdict = "it was renamed to {stored!r}; give renames={{{name!r}: {stored!r}}}"
    return [
        Difference(name, stored, name, verdict.format(name=name, stored=stored), refused=True)
        for name, source in sources.items()
        for stored in sorted(lost)
        if source is None and name in _earlier_names(stored, applied)
    ]


def _earlier_names(name: str, renames: Mapping[str, str]) -> list[str]:
    """Return the earlier names of a column, newest first."""
    names: list[str] = []
    while name in renames and renames[name] not in names:
        name = renames[name]
        names.append(name)
    return names


def _keys(old: list[str], new: list[str], sources: Mapping[str, str | None]) -> list[Difference]:
    if old == [sources[name] for name in new]:
        return []
    verdict = "other key columns, or another order, have other hashes, so stored keys would not be found"
    return [Difference("keys", ", ".join(old) or NOTHING, ", ".join(new) or NOTHING, verdict, refused=True)]


def _dropped(old: pa.Schema, sources: Mapping[str, str | None], keys: Sequence[str]) -> list[Difference]:
    kept = set(sources.values())
    return [
        Difference(
            field.name,
            _described(field),
            NOTHING,
            "stored rows are found by it" if field.name in keys else "dropped",
            refused=field.name in keys,
        )
        for field in old
        if field.name not in kept
    ]


def _changed_defaults(
    sources: Mapping[str, str | None], old: Mapping[str, pa.Scalar], new: Mapping[str, pa.Scalar]
) -> list[Difference]:
    """Return changed defaults. A default fills rows older than their column and is fixed when the column is added."""
    changed = []
    for name, value in new.items():
        source = sources[name]
        before = None if source is None else old.get(source)
        if source is not None and (before is None or not same_default(before, value)):
            verdict = "a default is given when its column is added, and stays"
            stored = NOTHING if before is None else str(before)
            changed.append(Difference(f"default of {name}", stored, str(value), verdict, refused=True))
    return changed


def _settings(before: Kind, after: Kind) -> list[Difference]:
    if isinstance(before, pb.KeyedTableConfig) and isinstance(after, pb.KeyedTableConfig):
        return _keyed_settings(before, after)
    if isinstance(before, pb.TimeKeyedTableConfig) and isinstance(after, pb.TimeKeyedTableConfig):
        return _time_keyed_settings(before, after)
    raise IncompatibleSchemaError(
        "a time-keyed table cannot become a keyed one, nor the other way round", fix="give the new table another name"
    )


def _keyed_settings(before: pb.KeyedTableConfig, after: pb.KeyedTableConfig) -> list[Difference]:
    if before.prefix_columns != after.prefix_columns:
        old, new = (str(kind.prefix_columns or NOTHING) for kind in (before, after))
        verdict = "rows are placed by other hashes, so stored keys would not be found"
        return [Difference("key columns of a group", old, new, verdict, refused=True)]
    old, new = (
        duration_text(kind.time_to_live_us) if kind.HasField("time_to_live_us") else NOTHING for kind in (before, after)
    )
    if old == new == NOTHING:
        return []
    if old == NOTHING:
        verdict = "stored rows have no time by which they could expire"
        return [Difference(TIME_TO_LIVE, old, new, verdict, refused=True)]
    differences = []
    if old != new:
        differences.append(Difference(TIME_TO_LIVE, old, new, "rows stay" if new == NOTHING else "changed"))
    if new != NOTHING and before.time_to_live_clock != after.time_to_live_clock:
        old, new = (pb.TimeToLiveClock.Name(kind.time_to_live_clock) for kind in (before, after))
        verdict = "stored rows have times of the other clock"
        differences.append(Difference("clock of time to live", old, new, verdict, refused=True))
    return differences


def _time_keyed_settings(before: pb.TimeKeyedTableConfig, after: pb.TimeKeyedTableConfig) -> list[Difference]:
    differences = []
    if before.retention_us != after.retention_us:
        old, new = duration_text(before.retention_us), duration_text(after.retention_us)
        differences.append(Difference("retention", old, new, "changed"))
    if before.bin_us != after.bin_us:
        old, new = duration_text(before.bin_us), duration_text(after.bin_us)
        verdict = f"stored rows are in bins of {old}: pass bin_width={old!r} (the default is the retention)"
        differences.append(Difference("bin width", old, new, verdict, refused=True))
    if before.generational != after.generational:
        old, new = str(before.generational), str(after.generational)
        verdict = "stored rows would be replaced, or appear again"
        differences.append(Difference("generational", old, new, verdict, refused=True))
    return differences


def _described(field: pa.Field) -> str:
    return str(field.type) if field.nullable else f"{field.type} not null"
