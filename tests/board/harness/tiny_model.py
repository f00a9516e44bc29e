"""A random-weight llama model of any shape, written as GGUF with the standard library alone.

Its words make no sense. It is for scenarios that run long: many KiB of KV cache per token, so that the prompt cache
grows quickly, and little arithmetic, so that a token is cheap on an emulated CPU.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

GGUF_MAGIC = b"GGUF"
GGUF_VERSION = 3
ALIGNMENT = 32
# GGUF value types and the two tensor types used here (ggml's F32 and F16).
UINT32, INT32, FLOAT32, STRING, ARRAY = 4, 5, 6, 8, 9
F32, F16 = 0, 1
TOKEN_NORMAL, TOKEN_UNKNOWN, TOKEN_CONTROL, TOKEN_BYTE = 1, 2, 3, 6


@dataclass(frozen=True, slots=True)
class Shape:
    """Dimensions of the model. A token's KV cache takes `4 * layers * kv_heads * head_size` bytes (f16)."""

    layers: int = 4
    width: int = 64
    heads: int = 32
    head_size: int = 128
    feed_forward: int = 64
    context: int = 8192

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of f16 keys and values that one token leaves in the cache."""
        return 4 * self.layers * self.heads * self.head_size


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of the file: name, dimensions with the fastest first, ggml type."""

    name: str
    dimensions: tuple[int, ...]
    kind: int

    @property
    def elements(self) -> int:
        """Number of values."""
        count = 1
        for dimension in self.dimensions:
            count *= dimension
        return count

    @property
    def size_bytes(self) -> int:
        """Bytes of the data, without padding."""
        return self.elements * (2 if self.kind == F16 else 4)


def vocabulary() -> tuple[list[str], list[float], list[int]]:
    """A byte-level SentencePiece vocabulary: texts, scores and token types."""
    texts = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    types = [TOKEN_UNKNOWN, TOKEN_CONTROL, TOKEN_CONTROL] + [TOKEN_BYTE] * 256
    return texts, [0.0] * len(texts), types


def tensors(shape: Shape, words: int) -> Iterator[Tensor]:
    """The tensors of a llama model in file order."""
    inner = shape.heads * shape.head_size
    yield Tensor("token_embd.weight", (shape.width, words), F16)
    for layer in range(shape.layers):
        prefix = f"blk.{layer}."
        yield Tensor(prefix + "attn_norm.weight", (shape.width,), F32)
        for name in ("attn_q", "attn_k", "attn_v"):
            yield Tensor(f"{prefix}{name}.weight", (shape.width, inner), F16)
        yield Tensor(prefix + "attn_output.weight", (inner, shape.width), F16)
        yield Tensor(prefix + "ffn_norm.weight", (shape.width,), F32)
        yield Tensor(prefix + "ffn_gate.weight", (shape.width, shape.feed_forward), F16)
        yield Tensor(prefix + "ffn_up.weight", (shape.width, shape.feed_forward), F16)
        yield Tensor(prefix + "ffn_down.weight", (shape.feed_forward, shape.width), F16)
    yield Tensor("output_norm.weight", (shape.width,), F32)
    yield Tensor("output.weight", (shape.width, words), F16)


def write_model(path: Path, shape: Shape | None = None, seed: int = 1) -> Path:
    """The model file at `path`, complete or not at all."""
    shape = shape or Shape()
    texts, scores, types = vocabulary()
    listed = list(tensors(shape, len(texts)))
    metadata = list(_metadata(shape, texts, scores, types))
    part = path.with_suffix(".part")
    path.parent.mkdir(parents=True, exist_ok=True)
    with part.open("wb") as output:
        output.write(GGUF_MAGIC + struct.pack("<IQQ", GGUF_VERSION, len(listed), len(metadata)))
        output.writelines(metadata)
        offset = 0
        for tensor in listed:
            output.write(_string(tensor.name) + struct.pack("<I", len(tensor.dimensions)))
            output.write(struct.pack(f"<{len(tensor.dimensions)}Q", *tensor.dimensions))
            output.write(struct.pack("<IQ", tensor.kind, offset))
            offset += _padded(tensor.size_bytes)
        _pad(output)
        noise = random.Random(seed)  # noqa: S311 - weights, not secrets
        for tensor in listed:
            output.write(_values(tensor, noise))
            _pad(output)
    part.replace(path)
    return path


def _metadata(shape: Shape, texts: list[str], scores: list[float], types: list[int]) -> Iterator[bytes]:
    yield _string("general.architecture") + struct.pack("<I", STRING) + _string("llama")
    yield _string("general.name") + struct.pack("<I", STRING) + _string("board-tiny")
    for key, number in {
        "general.alignment": ALIGNMENT,
        "general.file_type": F16,
        "llama.block_count": shape.layers,
        "llama.context_length": shape.context,
        "llama.embedding_length": shape.width,
        "llama.feed_forward_length": shape.feed_forward,
        "llama.attention.head_count": shape.heads,
        "llama.attention.head_count_kv": shape.heads,
        "llama.attention.key_length": shape.head_size,
        "llama.attention.value_length": shape.head_size,
        "llama.rope.dimension_count": shape.head_size,
        "llama.vocab_size": len(texts),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }.items():
        yield _string(key) + struct.pack("<II", UINT32, number)
    yield _string("llama.attention.layer_norm_rms_epsilon") + struct.pack("<If", FLOAT32, 1e-5)
    yield _string("tokenizer.ggml.model") + struct.pack("<I", STRING) + _string("llama")
    yield _array("tokenizer.ggml.tokens", STRING, len(texts)) + b"".join(_string(text) for text in texts)
    yield _array("tokenizer.ggml.scores", FLOAT32, len(scores)) + struct.pack(f"<{len(scores)}f", *scores)
    yield _array("tokenizer.ggml.token_type", INT32, len(types)) + struct.pack(f"<{len(types)}i", *types)


def _array(key: str, kind: int, count: int) -> bytes:
    return _string(key) + struct.pack("<IIQ", ARRAY, kind, count)


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _values(tensor: Tensor, noise: random.Random) -> bytes:
    if tensor.kind == F32:
        return struct.pack("<f", 1.0) * tensor.elements
    # A block of random values repeated: writing megabytes of single draws would take longer than a boot.
    block = struct.pack("<4099e", *(noise.uniform(-0.05, 0.05) for _ in range(4099)))
    repeats = tensor.size_bytes // len(block) + 1
    return (block * repeats)[: tensor.size_bytes]


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _pad(output: BinaryIO) -> None:
    output.write(b"\0" * (-output.tell() % ALIGNMENT))
