"""Checksums inside files: every flipped bit of a sealed file is detected."""

import re

from gpcache.support.files import sha256

UNSEALED = "0" * 64

_SEAL = re.compile(rb'"sha256":"([0-9a-f]{64})"')


def seal(data: bytes) -> bytes:
    """Put the SHA-256 of bytes into their first entry `"sha256":"000…"`, which is `UNSEALED`."""
    return data.replace(UNSEALED.encode(), sha256(data).encode(), 1)


def is_sealed(data: bytes) -> bool:
    """Whether bytes are exactly those that `seal` returned.

    Examples
    --------
    >>> from gpcache.support.seals import UNSEALED, is_sealed, seal
    >>> data = seal(b'{"sha256":"%s","n":1}' % UNSEALED.encode())
    >>> is_sealed(data), is_sealed(data.replace(b"1", b"3"))
    (True, False)
    """
    match = _SEAL.search(data)
    if match is None:
        return False
    unsealed = data[: match.start(1)] + UNSEALED.encode() + data[match.end(1) :]
    return sha256(unsealed).encode() == match[1]
