"""A small writer of GGUF files for tests: headers of any shape, models that llama.cpp loads, and broken ones.

The tensors' data is a hole in the file: a model of several GB takes a few MB on disk and loads as zeros.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slmguard.plan.tensor_types import TENSOR_TYPES

TYPE_IDS = {tensor_type.name: number for number, tensor_type in TENSOR_TYPES.items()}


@dataclass
class U32:
    value: int


@dataclass
class F32:
    value: float


Writable = U32 | F32 | int | float | bool | str | list[str] | list[int] | list[float] | list[bool]


@dataclass
class TensorSpec:
    name: str
    shape: Sequence[int]
    type_name: str = "f32"

    @property
    def size_bytes(self) -> int:
        rows = 1
        for extent in self.shape[1:]:
            rows *= extent
        return TENSOR_TYPES[TYPE_IDS[self.type_name]].row_bytes(self.shape[0] if self.shape else 0) * rows


@dataclass
class GgufWriter:
    """Collects metadata and tensors; `header()` is the file up to the data."""

    metadata: dict[str, Writable] = field(default_factory=dict)
    tensors: list[TensorSpec] = field(default_factory=list)
    version: int = 3
    order: str = "<"
    alignment: int = 32

    def header(self) -> bytes:
        out = bytearray(b"GGUF")
        out += struct.pack(self.order + "IQQ", self.version, len(self.tensors), len(self.metadata))
        for key, value in self.metadata.items():
            out += self._string(key) + self._value(value)
        offset = 0
        for tensor in self.tensors:
            out += self._string(tensor.name)
            out += struct.pack(self.order + "I", len(tensor.shape))
            out += struct.pack(f"{self.order}{len(tensor.shape)}Q", *tensor.shape)
            out += struct.pack(self.order + "IQ", TYPE_IDS[tensor.type_name], offset)
            offset += -(-tensor.size_bytes // self.alignment) * self.alignment
        return bytes(out)

    def data_bytes(self) -> int:
        return sum(-(-tensor.size_bytes // self.alignment) * self.alignment for tensor in self.tensors)

    def write(self, path: Path, *, with_data: bool = True) -> Path:
        header = self.header()
        padded = -(-len(header) // self.alignment) * self.alignment
        with path.open("wb") as file:
            file.write(header)
            if with_data:
                file.truncate(padded + self.data_bytes())
        return path

    def _string(self, text: str) -> bytes:
        raw = text.encode()
        return struct.pack(self.order + "Q", len(raw)) + raw

    def _value(self, value: Writable) -> bytes:
        if isinstance(value, list):
            type_id, payload = self._elements(value)
            return struct.pack(self.order + "IIQ", 9, type_id, len(value)) + payload
        type_id, payload = self._elements([value])
        return struct.pack(self.order + "I", type_id) + payload

    def _elements(self, values: Sequence[Writable]) -> tuple[int, bytes]:
        first = values[0] if values else 0
        if isinstance(first, str):
            return 8, b"".join(self._string(str(value)) for value in values)
        if isinstance(first, bool):
            return 7, struct.pack(f"{self.order}{len(values)}?", *values)
        if isinstance(first, U32):
            return 4, struct.pack(self.order + "I", first.value)
        if isinstance(first, F32):
            return 6, struct.pack(self.order + "f", first.value)
        if isinstance(first, float):
            return 6, struct.pack(f"{self.order}{len(values)}f", *values)
        if len(values) != 1 or int(str(first)) < 0:
            # Lists of numbers are i32, as llama.cpp demands of tokenizer.ggml.token_type.
            return 5, struct.pack(f"{self.order}{len(values)}i", *values)
        return 4, struct.pack(f"{self.order}{len(values)}I", *values)
