"""Texts of others, shown as what they hold: characters that cannot be seen are written as their numbers."""

_TURNING = frozenset("\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_INVISIBLE = frozenset("\u200b\u200c\u200d\u2060\ufeff") | _TURNING


def plain(text: object) -> str:
    """A text of others: characters that cannot be seen, or that turn the line around, as their numbers.

    >>> plain(f"a{chr(0x202e)}b")
    'a⟨202e⟩b'
    """
    return "".join(
        letter if (letter.isprintable() and letter not in _INVISIBLE) or letter == "\n" else f"⟨{ord(letter):04x}⟩"
        for letter in str(text)
    )


def clipped(text: object, most: int = 200) -> str:
    """As `plain`, and cut where it is too long for a page."""
    whole = str(text)
    return plain(whole) if len(whole) <= most else f"{plain(whole[:most])} … ({len(whole):,} characters)"
