"""A model as it lies on disk: one GGUF file or a set of split files, seen as one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from slmguard.core.errors import UserError
from slmguard.plan.gguf_header import MAX_SPLITS, GgufHeader, SkippedArray, Tensor, Value, read_header
from slmguard.plan.printable import printable
from slmguard.plan.tensor_types import FILE_TYPES

_SPLIT_NAME = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$")


@dataclass(frozen=True, slots=True)
class ModelFile:
    """The metadata of the first part, the tensors of all parts."""

    path: Path
    parts: tuple[GgufHeader, ...]

    @property
    def metadata(self) -> dict[str, Value]:
        """Keys and values; those of the first part, which holds the model's."""
        return self.parts[0].metadata

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors of all parts."""
        return [tensor for part in self.parts for tensor in part.tensors]

    @property
    def architecture(self) -> str:
        """general.architecture, escaped for a terminal; empty when the file does not say."""
        value = self.metadata.get("general.architecture")
        return printable(value) if isinstance(value, str) else ""

    @property
    def file_bytes(self) -> int:
        """Bytes of all parts on disk, or what they would be when the file is a header alone."""
        return sum(max(part.file_bytes, part.data_start + part.tensor_bytes) for part in self.parts)

    @property
    def parameter_count(self) -> int:
        """Values in all tensors."""
        total = 0
        for tensor in self.tensors:
            values = 1
            for extent in tensor.shape:
                values *= extent
            total += values
        return total

    @property
    def quantisation(self) -> str:
        """What people call the file's type (Q4_K_M); in brackets the type of most bytes where the file does not say."""
        value = self.metadata.get("general.file_type")
        if isinstance(value, int) and value in FILE_TYPES:
            return FILE_TYPES[value]
        sizes: dict[str, int] = {}
        for tensor in self.tensors:
            if tensor.tensor_type is not None:
                sizes[tensor.tensor_type.name] = sizes.get(tensor.tensor_type.name, 0) + tensor.size_bytes
        return f"({max(sizes, key=lambda name: sizes[name])})" if sizes else "unknown"

    @property
    def vocabulary_size(self) -> int:
        """Number of tokens in the vocabulary; 0 when the file carries none."""
        return self._array_length("tokenizer.ggml.tokens")

    @property
    def merge_count(self) -> int:
        """Number of merge rules of a byte-pair vocabulary."""
        return self._array_length("tokenizer.ggml.merges")

    @property
    def has_data(self) -> bool:
        """False when a part is a header without tensors' data."""
        return all(part.has_data for part in self.parts)

    @property
    def unknown_tensor_types(self) -> list[int]:
        """Numbers of tensor types that this program does not know."""
        return sorted({number for part in self.parts for number in part.unknown_types})

    def _array_length(self, key: str) -> int:
        value = self.metadata.get(key)
        return value.length if isinstance(value, SkippedArray) else len(value) if isinstance(value, tuple) else 0


def read_model(path: Path) -> ModelFile:
    """The model at `path`, with all its parts when it is split; any part may be named.

    Raises UserError when a part is missing, appears twice or belongs to another model.
    """
    first = read_header(path)
    count = _split_number(first, "split.count", 1)
    if count <= 1:
        return ModelFile(path, (first,))
    if count > MAX_SPLITS:
        raise UserError(f"{_shown(path)} says that it is split in {count} parts; at most {MAX_SPLITS} are believable")
    match = _SPLIT_NAME.match(path.name)
    if match is None or int(match["count"]) != count:
        raise UserError(
            f"{_shown(path)} is one of {count} parts but is not named …-00001-of-{count:05d}.gguf: "
            "rename the parts as they were published"
        )
    paths = [path.with_name(f"{match['stem']}-{number:05d}-of-{count:05d}.gguf") for number in range(1, count + 1)]
    return ModelFile(path, tuple(_parts(paths, first)))


def _parts(paths: list[Path], known: GgufHeader) -> list[GgufHeader]:
    parts: list[GgufHeader] = []
    seen: set[tuple[int, int]] = set()
    names: set[str] = set()
    for number, path in enumerate(paths):
        part = known if path == known.path else read_header(path)
        status = path.stat()
        if (status.st_dev, status.st_ino) in seen:
            raise UserError(f"{_shown(path)} is the same file as another part of the model: download the parts again")
        seen.add((status.st_dev, status.st_ino))
        if _split_number(part, "split.no", -1) != number or _split_number(part, "split.count", -1) != len(paths):
            raise UserError(f"{_shown(path)} does not say that it is part {number + 1} of {len(paths)}: wrong file?")
        repeated = names.intersection(tensor.name for tensor in part.tensors)
        if repeated:
            raise UserError(f"{_shown(path)} repeats tensor {printable(min(repeated))} of another part: wrong file?")
        names.update(tensor.name for tensor in part.tensors)
        parts.append(part)
    _check_tensor_count(parts)
    return parts


def _check_tensor_count(parts: list[GgufHeader]) -> None:
    promised = _split_number(parts[0], "split.tensors.count", -1)
    found = sum(len(part.tensors) for part in parts)
    if promised not in {-1, found}:
        raise UserError(f"{_shown(parts[0].path)} promises {promised} tensors in all its parts, they hold {found}")


def _split_number(header: GgufHeader, key: str, default: int) -> int:
    value = header.metadata.get(key, default)
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def _shown(path: Path) -> str:
    return printable(str(path))
