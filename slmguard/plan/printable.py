"""Text from a model file, made safe for a terminal."""

from __future__ import annotations

_LONGEST = 120


def printable(text: str, longest: int = _LONGEST) -> str:
    """`text` with control and other unprintable characters escaped, cut to `longest` characters."""
    safe = "".join(
        char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode()
        for char in text[:longest]
    )
    return safe + "…" if len(text) > longest else safe
