"""The proposal's variables as a systemd EnvironmentFile."""

from __future__ import annotations

from slmguard.core.errors import UserError
from slmguard.plan.printable import printable


def env_text(environment: dict[str, str], comments: list[str]) -> str:
    """The file's text. Raises UserError when a value cannot be written in one line."""
    lines = [f"# {printable(comment, 400)}" for comment in comments]
    for name, value in environment.items():
        if any(ord(char) < 32 or ord(char) == 127 for char in value):
            raise UserError(f"{name}={printable(value)} has a control character: rename the file")
        plain = all(char.isalnum() or char in "/._-+" for char in value)
        lines.append(f"{name}={value if plain else _quoted(value)}")
    return "\n".join(lines) + "\n"


def _quoted(value: str) -> str:
    """In double quotes, with the escapes that systemd and the shell both undo."""
    return '"' + "".join("\\" + char if char in '\\"$`' else char for char in value) + '"'
