"""Bytes of a multimodal projector (--mmproj): llama.cpp reads it into memory, it is not mapped."""

from __future__ import annotations

from slmguard.plan.model_file import ModelFile

# Rows of the encoder's widest matrices that are alive at once, for each patch of one image, in f32.
_ROWS = 4
_F32_BYTES = 4


def projector_bytes(model: ModelFile) -> int:
    """Weights, and scratch for one image where the file tells its size. An estimate: encoders differ."""
    image = _number(model, "clip.vision.image_size")
    patch = max(1, _number(model, "clip.vision.patch_size"))
    width = _number(model, "clip.vision.embedding_length") + _number(model, "clip.vision.feed_forward_length")
    patches = min(image // patch, 256) ** 2
    heads = min(_number(model, "clip.vision.attention.head_count"), 64)
    scratch = patches * min(width, 65536) * _ROWS * _F32_BYTES + patches * patches * heads * _F32_BYTES
    return model.file_bytes + scratch


def _number(model: ModelFile, key: str) -> int:
    value = model.metadata.get(key)
    return value if isinstance(value, int) and value > 0 else 0
