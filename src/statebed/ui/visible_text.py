"""Makes invisible characters in text from outside visible, as their code points."""

_TURNING = frozenset("\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_INVISIBLE = frozenset("\u200b\u200c\u200d\u2060\ufeff") | _TURNING


def plain(text: object) -> str:
    """Replace invisible and bidirectional control characters by their code points.

    >>> plain(f"a{chr(0x202e)}b")
    'a⟨202e⟩b'
    """
    return "".join(
        letter if (letter.isprintable() and letter not in _INVISIBLE) or letter == "\n" else f"⟨{ord(letter):04x}⟩"
        for letter in str(text)
    )


def clipped(text: object, max_characters: int = 200) -> str:
    """Escape a text like `plain` and clip it to `max_characters` characters."""
    whole = str(text)
    return (
        plain(whole)
        if len(whole) <= max_characters
        else f"{plain(whole[:max_characters])} … ({len(whole):,} characters)"
    )
