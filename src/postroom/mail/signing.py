"""Ed25519 signatures (RFC 8032), in Python: for the few answers that people give, so that no package is needed for them.

A signature takes milliseconds and leaks its timing, which is no harm here: only the holder of the secret makes one, in a
process of its own. `tokens` says which secrets sign.
"""

from __future__ import annotations

from functools import cache
from hashlib import sha512
from typing import Final

#: A point of the curve in extended coordinates: x = X/Z, y = Y/Z, x*y = T/Z.
Point = tuple[int, int, int, int]

_P: Final = 2**255 - 19
_ORDER: Final = 2**252 + 27742317777372353535851937790883648493
_D: Final = -121665 * pow(121666, -1, _P) % _P
_ROOT_OF_MINUS_ONE: Final = pow(2, (_P - 1) // 4, _P)
_ZERO: Final[Point] = (0, 1, 1, 0)
SEED_BYTES: Final = 32
KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64


def public_key(seed: bytes) -> bytes:
    """The public key that belongs to a secret seed of 32 bytes."""
    return _encoded(_times_base(_secret_of(seed)[0]))


def sign(seed: bytes, text: bytes) -> bytes:
    """The signature of a text. The same text gives the same signature."""
    scalar, prefix = _secret_of(seed)
    key = _encoded(_times_base(scalar))
    nonce = _number_of(prefix, text)
    commitment = _encoded(_times_base(nonce))
    return commitment + ((nonce + _number_of(commitment, key, text) * scalar) % _ORDER).to_bytes(32, "little")


def verifies(key: bytes, text: bytes, signature: bytes) -> bool:
    """Whether the holder of the key's secret has signed exactly this text. Anything malformed has not been signed."""
    if len(key) != KEY_BYTES or len(signature) != SIGNATURE_BYTES:
        return False
    signer, commitment = _decoded(key), _decoded(signature[:32])
    response = int.from_bytes(signature[32:], "little")
    if signer is None or commitment is None or response >= _ORDER:
        return False
    expected = _sum(commitment, _times(_number_of(signature[:32], key, text), signer))
    return _is_same(_times_base(response), expected)


def _secret_of(seed: bytes) -> tuple[int, bytes]:
    digest = sha512(seed).digest()
    scalar = int.from_bytes(digest[:32], "little")
    return scalar & ((1 << 254) - 8) | (1 << 254), digest[32:]


def _number_of(*parts: bytes) -> int:
    return int.from_bytes(sha512(b"".join(parts)).digest(), "little") % _ORDER


def _sum(one: Point, other: Point) -> Point:
    x1, y1, z1, t1 = one
    x2, y2, z2, t2 = other
    a, b = (y1 - x1) * (y2 - x2) % _P, (y1 + x1) * (y2 + x2) % _P
    c, d = 2 * t1 * t2 * _D % _P, 2 * z1 * z2 % _P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % _P, g * h % _P, f * g % _P, e * h % _P


def _times(number: int, point: Point) -> Point:
    total = _ZERO
    while number:
        if number & 1:
            total = _sum(total, point)
        point = _sum(point, point)
        number >>= 1
    return total


@cache
def _doubled_base() -> list[Point]:
    """The base point, doubled again and again: half of the work of every signature, done once in a process."""
    y = 4 * pow(5, -1, _P) % _P
    x = _x_of(y, odd=False)
    assert x is not None
    points: list[Point] = [(x, y, 1, x * y % _P)]
    while len(points) < 256:
        points.append(_sum(points[-1], points[-1]))
    return points


def _times_base(number: int) -> Point:
    total = _ZERO
    for place, point in enumerate(_doubled_base()):
        if number >> place & 1:
            total = _sum(total, point)
    return total


def _is_same(one: Point, other: Point) -> bool:
    return (one[0] * other[2] - other[0] * one[2]) % _P == 0 and (one[1] * other[2] - other[1] * one[2]) % _P == 0


def _x_of(y: int, *, odd: bool) -> int | None:
    """The x of a point; None when there is no such point."""
    if y >= _P:
        return None
    square = (y * y - 1) * pow(_D * y * y + 1, -1, _P) % _P
    if square == 0:
        return None if odd else 0
    x = pow(square, (_P + 3) // 8, _P)
    if (x * x - square) % _P:
        x = x * _ROOT_OF_MINUS_ONE % _P
    if (x * x - square) % _P:
        return None
    return _P - x if x & 1 != odd else x


def _encoded(point: Point) -> bytes:
    inverse = pow(point[2], -1, _P)
    x, y = point[0] * inverse % _P, point[1] * inverse % _P
    return (y | (x & 1) << 255).to_bytes(32, "little")


def _decoded(data: bytes) -> Point | None:
    number = int.from_bytes(data, "little")
    y = number & ((1 << 255) - 1)
    x = _x_of(y, odd=bool(number >> 255))
    return None if x is None else (x, y, 1, x * y % _P)
