"""Hash functions: Spark's xxhash64 and Murmur3 over any columns, and digests of bytes."""

import hashlib
import zlib
from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statebed.arrays.columns import from_numpy
from statebed.arrays.key_hash import hash_columns, is_key_type
from statebed.arrays.murmur3 import murmur3_columns
from statebed.expressions import types
from statebed.expressions.casts import convert
from statebed.expressions.distinct_values import by_distinct
from statebed.expressions.functions.number_bases import as_binary
from statebed.expressions.sites import Builder, Site, of, of_many
from statebed.expressions.terms import Datum, Term, arrays


def _hash(kernel: Callable[[list[pa.Array]], npt.NDArray[np.generic]], kind: pa.DataType) -> Builder:
    """Build a hash of any number of columns, which is never null."""

    def build(site: Site) -> Term:
        for operand in site.operands:
            if not is_key_type(operand.type) and operand.type != types.NULL:
                raise site.wrong_types("values other than maps", at=operand)
        return site.apply(partial(_hashed, kernel, kind), kind, nullable=False)

    return of_many(build)


def _hashed(kernel: Callable[[list[pa.Array]], npt.NDArray[np.generic]], kind: pa.DataType, *data: Datum) -> pa.Array:
    columns = [column for column in arrays(*data) if not pa.types.is_null(column.type)]
    rows = next(len(datum) for datum in data if isinstance(datum, pa.Array))
    values = kernel(columns) if columns else np.full(rows, 42)
    return from_numpy(values.astype(kind.to_pandas_dtype()), kind)


def _signed_xxhash64(columns: list[pa.Array]) -> npt.NDArray[np.generic]:
    return hash_columns(columns).view(np.int64)


def _digest(digest: Callable[[bytes], object], kind: pa.DataType) -> Builder:
    def build(site: Site) -> Term:
        return site.apply(partial(by_distinct, digest, kind), kind, as_binary(site, site.operands[0]))

    return of(build, 1)


def _md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def _sha1(content: bytes) -> str:
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()


_SHA2 = {0: hashlib.sha256, 224: hashlib.sha224, 256: hashlib.sha256, 384: hashlib.sha384, 512: hashlib.sha512}


def _sha2(site: Site) -> Term:
    content, bits = as_binary(site, site.operands[0]), convert(site.operands[1], types.INT)
    return site.apply(partial(by_distinct, _sha2_digest, types.TEXT), types.TEXT, content, bits, nullable=True)


def _sha2_digest(content: bytes, bits: int) -> str | None:
    return _SHA2[bits](content).hexdigest() if bits in _SHA2 else None


BUILDERS: dict[str, Builder] = {
    "xxhash64": _hash(_signed_xxhash64, types.BIGINT),
    "hash": _hash(murmur3_columns, types.INT),
    "crc32": _digest(zlib.crc32, types.BIGINT),
    "md5": _digest(_md5, types.TEXT),
    "sha": _digest(_sha1, types.TEXT),
    "sha1": _digest(_sha1, types.TEXT),
    "sha2": of(_sha2, 2),
}
