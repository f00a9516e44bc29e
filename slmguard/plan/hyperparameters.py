"""The architecture's numbers in a model's metadata, checked before anything is computed from them."""

from __future__ import annotations

from slmguard.core.errors import UserError
from slmguard.plan.model_file import ModelFile
from slmguard.plan.printable import printable

# llama.cpp refuses models of more layers (LLAMA_MAX_LAYERS); the rest is far above any model, and keeps products small.
MAX_LAYERS = 1024
MAX_NUMBER = 2**28


class Hyperparameters:
    """Reads `{architecture}.…` keys; scalars and per-layer lists alike. Raises UserError on impossible values."""

    def __init__(self, model: ModelFile) -> None:
        self._model = model
        self.architecture = model.architecture
        self.block_count = self.number("block_count", 0)
        if not 1 <= self.block_count <= MAX_LAYERS:
            raise self.error("block_count", f"is {self.block_count}, not 1 to {MAX_LAYERS}")
        self.embedding = self.number("embedding_length", 0)
        if self.embedding < 1:
            raise self.error("embedding_length", "is missing or 0")
        extra = self.number("nextn_predict_layers", 0)
        # Layers for multi-token prediction at the end have no cache of their own unless a draft context uses them.
        self.trunk_layers = self.block_count - extra if 0 <= extra < self.block_count else self.block_count
        self.heads = self.per_layer("attention.head_count", 0)
        self.kv_heads = self.per_layer("attention.head_count_kv", self.heads)
        default = self.embedding // self.heads[0] if self.heads[0] else 0
        self.key_length = self.number("attention.key_length", default)
        self.value_length = self.number("attention.value_length", default)
        self.key_length_window = self.number("attention.key_length_swa", self.key_length)
        self.value_length_window = self.number("attention.value_length_swa", self.value_length)

    def has(self, key: str) -> bool:
        """Whether the file has the key."""
        return f"{self.architecture}.{key}" in self._model.metadata

    def number(self, key: str, default: int) -> int:
        """An integer; `default` when the file does not have it or has a list instead."""
        value = self._model.metadata.get(f"{self.architecture}.{key}", default)
        if isinstance(value, tuple):
            return default
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.error(key, f"is {printable(str(value))}, not a whole number")
        return self._checked(key, value, default)

    def per_layer(self, key: str, default: int | list[int]) -> list[int]:
        """One integer per layer, from a scalar or a list."""
        value = self._model.metadata.get(f"{self.architecture}.{key}")
        if value is None:
            return default if isinstance(default, list) else [default] * self.block_count
        if not isinstance(value, tuple):
            return [self.number(key, 0)] * self.block_count
        if len(value) < self.block_count:
            raise self.error(key, f"lists {len(value)} layers of {self.block_count}")
        numbers = [entry for entry in value[: self.block_count] if isinstance(entry, int)]
        if len(numbers) != self.block_count:
            raise self.error(key, "is a list of something else than whole numbers")
        return [self._checked(key, number, None) for number in numbers]

    def flags(self, key: str) -> list[bool] | None:
        """A per-layer list of truth values, None when the file has no list there."""
        value = self._model.metadata.get(f"{self.architecture}.{key}")
        return [bool(entry) for entry in value] if isinstance(value, tuple) else None

    def error(self, key: str, problem: str) -> UserError:
        """The error for one key, in one line."""
        return UserError(f"{printable(str(self._model.path))}: {self.architecture}.{key} {problem}")

    def _checked(self, key: str, value: int, default: int | None) -> int:
        if value != default and not 0 <= value <= MAX_NUMBER:
            raise self.error(key, f"is {value}, which no model has")
        return value
