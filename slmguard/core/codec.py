"""Values to JSON and back, for recordings, the state file and the hand-over of settings.

Works on the dataclasses of the core: enums by value (levels by their word), tuples as lists, None as null.
"""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from typing import Any, TypeVar

from slmguard.core.model import Level

T = TypeVar("T")


def to_json(value: object) -> Any:
    """`value` as what the json module can write."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: to_json(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, Level):
        return value.word
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    if isinstance(value, dict):
        return {str(to_json(key)): to_json(item) for key, item in value.items()}
    return value


def from_json(kind: type[T], data: object) -> T:
    """An instance of the dataclass `kind` from parsed JSON; missing fields take their defaults.

    Raises ValueError naming the field when something does not fit; unknown fields are ignored, since a recording
    may come from a newer version.
    """
    if not isinstance(data, dict):
        raise ValueError(f"{kind.__name__}: expected an object, found {type(data).__name__}")
    hints = typing.get_type_hints(kind)
    arguments: dict[str, Any] = {}
    for item in dataclasses.fields(kind):  # type: ignore[arg-type]  # kind is a dataclass; T cannot say so
        if item.name in data:
            arguments[item.name] = _value(hints[item.name], data[item.name], f"{kind.__name__}.{item.name}")
    try:
        return kind(**arguments)
    except TypeError as error:
        raise ValueError(f"{kind.__name__}: {error}") from None


def _value(hint: Any, data: Any, where: str) -> Any:
    origin = typing.get_origin(hint)
    if origin in {types.UnionType, typing.Union}:
        if data is None and type(None) in typing.get_args(hint):
            return None
        return _value(next(arg for arg in typing.get_args(hint) if arg is not type(None)), data, where)
    if origin is tuple:
        inner = typing.get_args(hint)
        if not isinstance(data, list):
            raise ValueError(f"{where}: expected a list")
        if len(inner) == 2 and inner[1] is Ellipsis:
            return tuple(_value(inner[0], item, where) for item in data)
        return tuple(_value(one, item, where) for one, item in zip(inner, data, strict=False))
    if isinstance(hint, type):
        return _plain(hint, data, where)
    return data


def _plain(hint: type, data: Any, where: str) -> Any:
    if dataclasses.is_dataclass(hint):
        return from_json(hint, data)
    if issubclass(hint, Level):
        try:
            return Level[str(data).upper()]
        except KeyError:
            raise ValueError(f"{where}: {data!r} is no level") from None
    if issubclass(hint, enum.Enum):
        try:
            return hint(data)
        except ValueError:
            raise ValueError(f"{where}: {data!r} is not one of {[one.value for one in hint]}") from None
    if hint is float and isinstance(data, (int, float)) and not isinstance(data, bool):
        return float(data)
    if hint in {int, str, bool} and type(data) is hint:
        return data
    if hint is int and isinstance(data, float) and data.is_integer():
        return int(data)
    if hint is object:
        return data
    raise ValueError(f"{where}: expected {hint.__name__}, found {data!r}")
