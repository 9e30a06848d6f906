"""Generate ids for many jobs at once."""

from __future__ import annotations

from casque.clock import Random, new_id

_DIGITS = 32
_LETTERS = 36
_WORTH_IT = 20
# A number drawn as part of a long one is stored lowest byte first, so its digits are read from the far end.
_TAKEN_FROM = [2 * (15 - digit // 2) + digit % 2 for digit in range(_DIGITS)]
_PUT_AT = [digit + (digit >= 8) + (digit >= 12) + (digit >= 16) + (digit >= 20) for digit in range(_DIGITS)]
_VARIANTS = bytes.maketrans(b"0123456789abcdef", b"89ab89ab89ab89ab")


def new_ids(rng: Random, count: int) -> list[str]:
    """The same ids that `count` calls of `new_id` would return, in a quarter of the time.

    Fills one digit of all ids at once, so that Python itself touches every id only once, to slice it.
    """
    if count < _WORTH_IT:
        return [new_id(rng) for _ in range(count)]
    digits = rng.randbytes(16 * count).hex().encode()
    text = bytearray(b"-") * (_LETTERS * count)
    for source, place in zip(_TAKEN_FROM, _PUT_AT, strict=True):
        text[place::_LETTERS] = digits[source::_DIGITS]
    text[14::_LETTERS] = b"4" * count
    text[19::_LETTERS] = text[19::_LETTERS].translate(_VARIANTS)
    together = text.decode("ascii")
    return [together[start : start + _LETTERS] for start in range(0, len(together), _LETTERS)]
