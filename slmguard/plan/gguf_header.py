"""The header of a GGUF file: metadata and tensor list, without the tensors and without the vocabulary's text.

A model file comes from anywhere and is not trusted: each count has a hard cap and each length is checked against the
file's size before it is used. Large arrays (the vocabulary) are passed over, only their length is kept, so that
a header with 262,144 tokens takes 1 MB of memory. The reader of the `gguf` package needs 0.5 to 1.3 GB for the same.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from slmguard.core.errors import UserError
from slmguard.plan.byte_cursor import ByteCursor, MalformedError
from slmguard.plan.printable import printable
from slmguard.plan.tensor_types import TENSOR_TYPES, TensorType

MAX_KEY_BYTES: Final = 64 * 1024
MAX_STRING_BYTES: Final = 16 * 1024 * 1024
MAX_METADATA: Final = 10_000
MAX_TENSORS: Final = 100_000
MAX_DIMENSIONS: Final = 4
MAX_ALIGNMENT: Final = 1024 * 1024
MAX_SPLITS: Final = 1_000
# Gemma's vocabulary, the largest in use, has 262,144 tokens and about twice as many merges.
MAX_ARRAY_STRINGS: Final = 4 * 1024 * 1024
MAX_TENSOR_VALUES: Final = 2**48
_KEPT_STRING_BYTES = 4 * 1024
_KEPT_ARRAY_VALUES = 4 * 1024
_DEFAULT_ALIGNMENT = 32

_BOOL, _STRING, _ARRAY = 7, 8, 9
_SCALARS: dict[int, str] = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}


@dataclass(frozen=True, slots=True)
class SkippedArray:
    """An array of which only the length was kept."""

    length: int


@dataclass(frozen=True, slots=True)
class SkippedString:
    """A text too long to keep (a chat template)."""

    length_bytes: int


Value = int | float | bool | str | tuple[int | float | bool, ...] | SkippedArray | SkippedString


@dataclass(frozen=True, slots=True)
class Tensor:
    """One row of the tensor list. `tensor_type` is None when this program does not know the type."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    tensor_type: TensorType | None
    offset_bytes: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """One GGUF file. Sizes in bytes; `data_start` counts from the file's start."""

    path: Path
    version: int
    byte_order: str
    metadata: dict[str, Value]
    tensors: tuple[Tensor, ...]
    data_start: int
    file_bytes: int
    unknown_types: frozenset[int]

    @property
    def tensor_bytes(self) -> int:
        """Bytes of all tensors, without padding."""
        return sum(tensor.size_bytes for tensor in self.tensors)

    @property
    def has_data(self) -> bool:
        """False for a header alone: a model description without weights, which no engine can load."""
        return not self.tensors or self.file_bytes > self.data_start


def read_header(path: Path) -> GgufHeader:
    """The header of one file.

    Raises UserError, in one line, when the file cannot be read or is not sound GGUF version 2 or 3.
    """
    try:
        # A FIFO would block the open, a device has no size.
        if not path.is_file():
            what = "is a directory" if path.is_dir() else "is no regular file" if path.exists() else "does not exist"
            raise UserError(f"{printable(str(path))} {what}: give the path of a GGUF model file")
        with path.open("rb", buffering=0) as file:
            return _read(path, file, os.fstat(file.fileno()).st_size)
    except OSError as error:
        raise UserError(f"cannot read {printable(str(path))}: {error.strerror or error}") from error
    except MalformedError as error:
        raise UserError(
            f"{printable(str(path))} is no sound GGUF file: {error}; download or convert the model again"
        ) from error


def _read(path: Path, file: BinaryIO, size_bytes: int) -> GgufHeader:
    cursor = ByteCursor(file, size_bytes)
    version = _magic_and_version(cursor)
    tensor_count = _capped(cursor.number("Q", "the number of tensors"), MAX_TENSORS, "tensors")
    metadata_count = _capped(cursor.number("Q", "the number of metadata keys"), MAX_METADATA, "metadata keys")
    metadata = _metadata(cursor, metadata_count)
    alignment = _alignment(metadata)
    unplaced = [_tensor_info(cursor, alignment) for _ in range(tensor_count)]
    data_start = -(-cursor.position // alignment) * alignment
    tensors = tuple(_placed(unplaced, max(0, size_bytes - data_start)))
    header = GgufHeader(
        path=path,
        version=version,
        byte_order="big" if cursor.byte_order == ">" else "little",
        metadata=metadata,
        tensors=tensors,
        data_start=data_start,
        file_bytes=size_bytes,
        unknown_types=frozenset(tensor.type_id for tensor in tensors if tensor.tensor_type is None),
    )
    _check_extent(header)
    return header


def _magic_and_version(cursor: ByteCursor) -> int:
    magic = cursor.take(4, "the magic")
    if magic in {b"ggml", b"ggmf", b"ggjt", b"tjgg", b"lmgg", b"fmgg"}:
        raise MalformedError("it is in the GGML format of before August 2023, which no current engine loads")
    if magic != b"GGUF":
        raise MalformedError(f"it begins with {magic!r} instead of b'GGUF'")
    (version,) = struct.unpack("<I", cursor.take(4, "the version"))
    if version and version & 0xFFFF == 0:
        # A big-endian file: its version, read the wrong way round, has its low half zero.
        (version,) = struct.unpack(">I", struct.pack("<I", version))
        cursor.byte_order = ">"
    if version == 1:
        raise MalformedError("it is GGUF version 1 (August 2023), which current engines no longer load; convert it")
    if version not in {2, 3}:
        raise MalformedError(f"it says GGUF version {version}; versions 2 and 3 are known")
    return int(version)


def _capped(count: int, cap: int, what: str) -> int:
    if count > cap:
        raise MalformedError(f"it claims {count} {what}, more than the {cap} that are believable")
    return count


def _text(cursor: ByteCursor, longest: int, what: str) -> str:
    length = cursor.number("Q", f"the length of {what}")
    if length > longest:
        raise MalformedError(f"{what} claims {length} bytes at byte {cursor.position}, more than {longest}")
    return cursor.take(length, what).decode("utf-8", "replace")


def _metadata(cursor: ByteCursor, count: int) -> dict[str, Value]:
    metadata: dict[str, Value] = {}
    for index in range(count):
        key = _text(cursor, MAX_KEY_BYTES, f"metadata key {index + 1}")
        if key in metadata:
            raise MalformedError(f"metadata key {printable(key)} appears twice")
        type_id = cursor.number("I", f"the type of {printable(key)}")
        metadata[key] = _value(cursor, type_id, printable(key))
    return metadata


def _value(cursor: ByteCursor, type_id: int, what: str) -> Value:
    if type_id == _STRING:
        length = cursor.number("Q", f"the length of {what}")
        if length > MAX_STRING_BYTES:
            raise MalformedError(f"{what} claims a text of {length} bytes, more than {MAX_STRING_BYTES}")
        if length <= _KEPT_STRING_BYTES:
            return cursor.take(length, what).decode("utf-8", "replace")
        cursor.skip(length, what)
        return SkippedString(length)
    if type_id == _ARRAY:
        return _array(cursor, what)
    return _scalars(cursor, type_id, 1, what)[0]


def _array(cursor: ByteCursor, what: str) -> Value:
    type_id = cursor.number("I", f"the element type of {what}")
    length = cursor.number("Q", f"the length of {what}")
    if type_id == _STRING:
        if length > MAX_ARRAY_STRINGS or length * 8 > cursor.remaining_bytes:
            raise MalformedError(f"{what} claims {length} strings in {cursor.remaining_bytes} bytes")
        cursor.skip_strings(length, MAX_STRING_BYTES, what)
        return SkippedArray(length)
    if type_id not in _SCALARS:
        nested = "arrays of arrays are not used in models" if type_id == _ARRAY else "unknown"
        raise MalformedError(f"{what} is an array of value type {type_id} ({nested})")
    if length <= _KEPT_ARRAY_VALUES:
        return _scalars(cursor, type_id, length, what)
    cursor.skip(length * struct.calcsize("<" + _SCALARS[type_id]), what)
    return SkippedArray(length)


def _scalars(cursor: ByteCursor, type_id: int, count: int, what: str) -> tuple[int | float | bool, ...]:
    code = _SCALARS.get(type_id)
    if code is None:
        raise MalformedError(f"{what} has the unknown value type {type_id} at byte {cursor.position}")
    fmt = f"{cursor.byte_order}{count}{code}"
    values = struct.unpack(fmt, cursor.take(struct.calcsize(fmt), what))
    return tuple(bool(value) for value in values) if type_id == _BOOL else values


def _alignment(metadata: dict[str, Value]) -> int:
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if isinstance(alignment, int) and 1 <= alignment <= MAX_ALIGNMENT and alignment & (alignment - 1) == 0:
        return int(alignment)
    raise MalformedError(f"general.alignment is {printable(str(alignment))}, not a power of two up to {MAX_ALIGNMENT}")


def _tensor_info(cursor: ByteCursor, alignment: int) -> Tensor:
    name = _text(cursor, MAX_KEY_BYTES, "a tensor's name")
    shown = f"tensor {printable(name)}"
    dimensions = cursor.number("I", f"the number of dimensions of {shown}")
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        raise MalformedError(f"{shown} has {dimensions} dimensions, not 1 to {MAX_DIMENSIONS}")
    shape = struct.unpack(f"{cursor.byte_order}{dimensions}Q", cursor.take(8 * dimensions, f"the shape of {shown}"))
    values = 1
    for extent in shape:
        values *= extent
        if values > MAX_TENSOR_VALUES or extent == 0:
            raise MalformedError(f"{shown} has the impossible shape {'x'.join(map(str, shape))}")
    type_id = cursor.number("I", f"the type of {shown}")
    offset = cursor.number("Q", f"the offset of {shown}")
    if offset % alignment:
        raise MalformedError(f"{shown} lies at offset {offset}, which is not aligned to {alignment}")
    tensor_type = TENSOR_TYPES.get(type_id)
    try:
        size = tensor_type.row_bytes(shape[0]) * (values // shape[0]) if tensor_type else 0
    except ValueError as error:
        raise MalformedError(f"{shown}: {error}") from error
    return Tensor(name, shape, type_id, tensor_type, offset, size)


def _placed(tensors: list[Tensor], data_bytes: int) -> Iterator[Tensor]:
    """The tensors, those of unknown type with the room up to the next tensor as their size."""
    starts = sorted({tensor.offset_bytes for tensor in tensors})
    following = dict(zip(starts, [*starts[1:], max(data_bytes, starts[-1])] if starts else [], strict=True))
    for tensor in tensors:
        if tensor.tensor_type is not None:
            yield tensor
        else:
            size = following[tensor.offset_bytes] - tensor.offset_bytes
            yield Tensor(tensor.name, tensor.shape, tensor.type_id, None, tensor.offset_bytes, size)


def _check_extent(header: GgufHeader) -> None:
    names: set[str] = set()
    end_of_last = 0
    for tensor in sorted(header.tensors, key=lambda tensor: tensor.offset_bytes):
        shown = f"tensor {printable(tensor.name)}"
        if tensor.name in names:
            raise MalformedError(f"{shown} appears twice")
        names.add(tensor.name)
        if tensor.offset_bytes < end_of_last:
            raise MalformedError(f"{shown} overlaps the one before it")
        end_of_last = tensor.offset_bytes + tensor.size_bytes
    missing = header.data_start + end_of_last - header.file_bytes
    if header.tensors and header.has_data and missing > 0:
        raise MalformedError(
            f"it is cut short: its tensors need {header.data_start + end_of_last} bytes, "
            f"the file has {header.file_bytes} ({missing} missing)"
        )
