"""Types with fixed-size lists that Arrow handles incorrectly: tables refuse them, because rows would be lost."""

import pyarrow as pa

from statebed.arrays.nested import storage_of


def unreadable(field: pa.Field) -> str | None:
    """Return why rows with such a column could not be read back unchanged, or None if they could."""
    kind = storage_of(field.type)
    if not pa.types.is_nested(kind):
        return None
    if pa.types.is_fixed_size_list(kind):
        if not kind.list_size:
            return "Parquet's reader takes a list that never has items for damage"
        if _is_fixed_list(kind.value_type):
            # Both kernels read from the start of the inner lists if the outer array is a slice.
            return "of lists of a fixed length in one another, Arrow takes and filters the wrong rows"
    parts = [kind.field(index) for index in range(kind.num_fields)]
    if pa.types.is_struct(kind) and any(not part.nullable and _is_fixed_list(part.type) for part in parts):
        return "Parquet's reader wants the items of a list that may not be null even where the struct is null"
    return next((reason for reason in map(unreadable, parts) if reason is not None), None)


def _is_fixed_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_fixed_size_list(storage_of(kind)))
