"""`edge_llm_config.ini`: a cap on the context, everything taken at start, and locked memory."""

from __future__ import annotations

import configparser
from dataclasses import dataclass
from pathlib import Path

from slmguard.core.errors import UserError
from slmguard.plan.printable import printable

_LARGEST_BYTES = 64 * 1024
_KNOWN = ("max_context_tokens", "preallocate_tensor_pool", "mlock")


@dataclass(frozen=True, slots=True)
class EdgeConfig:
    """What the file asks for; `unknown` lists keys that this program does not use."""

    max_context_tokens: int | None
    preallocate_tensor_pool: bool
    mlock: bool
    unknown: tuple[str, ...]


def read_edge_config(path: Path) -> EdgeConfig:
    """The settings in any section, or in none. Raises UserError, naming the key, when one cannot be understood."""
    shown = printable(str(path))
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise UserError(f"{shown} is larger than {_LARGEST_BYTES} bytes: it is no edge_llm_config.ini")
        text = path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise UserError(f"cannot read {shown}: {error.strerror or error}") from error
    parser = configparser.ConfigParser(
        interpolation=None, inline_comment_prefixes=("#", ";"), default_section="\0none", strict=True
    )
    try:
        parser.read_string("[\0top]\n" + text)
    except configparser.Error as error:
        raise UserError(f"{shown} is no INI file: {printable(str(error).splitlines()[0])}") from error
    values: dict[str, str] = {}
    for section in parser.sections():
        for key, value in parser.items(section):
            if key in values and key in _KNOWN:
                raise UserError(f"{shown}: {key} is set twice")
            values[key] = value.strip().strip('"')
    return EdgeConfig(
        max_context_tokens=_tokens(values.get("max_context_tokens"), shown),
        preallocate_tensor_pool=_flag(values, "preallocate_tensor_pool", shown),
        mlock=_flag(values, "mlock", shown),
        unknown=tuple(printable(key) for key in values if key not in _KNOWN),
    )


def _tokens(value: str | None, shown: str) -> int | None:
    if value is None:
        return None
    if not value.isdecimal() or not 0 < int(value[:12]) < 2**31:
        raise UserError(f"{shown}: max_context_tokens = {printable(value)} is no number of tokens above 0")
    return int(value)


def _flag(values: dict[str, str], key: str, shown: str) -> bool:
    value = values.get(key, "false").lower()
    if value in {"true", "yes", "on", "1"}:
        return True
    if value in {"false", "no", "off", "0"}:
        return False
    raise UserError(f"{shown}: {key} = {printable(value)} is neither true nor false")
