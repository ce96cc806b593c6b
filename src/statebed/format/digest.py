"""Checksums and content digests.

CRC-32C detects damage; the digest names the bytes. It is the first 128 bits of SHA-256 in hex, so the same content has
the same name, independent of the writer.
"""

import hashlib

import google_crc32c

DIGEST_LENGTH = 32


def crc32c(data: bytes) -> int:
    return int(google_crc32c.value(data))


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:DIGEST_LENGTH]


class RunningDigest:
    """Checksum and digest of bytes that arrive in pieces.

    >>> running = RunningDigest()
    >>> for piece in (b"sta", b"te"):
    ...     running.update(piece)
    >>> (running.crc32c(), running.digest()) == (crc32c(b"state"), digest(b"state"))
    True
    """

    def __init__(self) -> None:
        self._crc32c = 0
        self._sha256 = hashlib.sha256()

    def update(self, data: bytes) -> None:
        self._crc32c = int(google_crc32c.extend(self._crc32c, data))
        self._sha256.update(data)

    def crc32c(self) -> int:
        return self._crc32c

    def digest(self) -> str:
        return self._sha256.hexdigest()[:DIGEST_LENGTH]
