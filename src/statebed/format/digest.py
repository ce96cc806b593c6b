"""Checksums and content digests.

CRC-32C guards bytes against damage; the digest names them. The digest is the first 128 bits of SHA-256, in
hex: the same result has the same name, whoever wrote it.
"""

import hashlib

import google_crc32c

DIGEST_LENGTH = 32


def crc32c(data: bytes) -> int:
    return int(google_crc32c.value(data))


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:DIGEST_LENGTH]
