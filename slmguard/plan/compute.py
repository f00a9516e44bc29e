"""The compute buffer: scratch memory for one micro-batch, reserved at load and touched by the first prompts.

The rule was fitted to what the engine prints and holds to 0.1 MiB for seven dense models of 4 to 30 layers
(`benchmarks/plan_accuracy.py`): three feed-forward and five embedding rows per token of the micro-batch in f32, and the
attention mask in f16 for each cache.
"""

from __future__ import annotations

from slmguard.plan.geometry import Geometry
from slmguard.plan.kv_cache import CacheBytes

_F32_BYTES = 4
_F16_BYTES = 2
_FEED_FORWARD_ROWS = 3
_EMBEDDING_ROWS = 5


def compute_bytes(geometry: Geometry, cache: CacheBytes, micro_batch: int, parallel: int) -> int:
    """Scratch, masks, and one row of logits per slot."""
    width = _FEED_FORWARD_ROWS * geometry.feed_forward * max(1, geometry.experts_used)
    width += _EMBEDDING_ROWS * geometry.embedding
    if geometry.latent:
        # Every head's query and result is as wide as the compressed row.
        widest = max(layer.key_values for layer in geometry.layers)
        width = max(width, geometry.attention_heads * widest * 3 + _EMBEDDING_ROWS * geometry.embedding)
    scratch = micro_batch * width * _F32_BYTES
    attends = any(layer.key_values for layer in geometry.layers)
    mask_cells = (cache.cells if attends else 0) + cache.window_cells
    logits = geometry.vocabulary * _F32_BYTES * parallel
    return scratch + micro_batch * mask_cells * _F16_BYTES + logits
