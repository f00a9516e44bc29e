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
_LATENT_ROWS = 2
_STATE_ROWS = 7


def compute_bytes(geometry: Geometry, cache: CacheBytes, micro_batch: int, parallel: int) -> int:
    """Scratch, masks, and one row of logits per slot."""
    scratch = micro_batch * _widest_row(geometry) * _F32_BYTES
    attends = any(layer.key_values for layer in geometry.layers)
    mask_cells = (cache.cells if attends else 0) + cache.window_cells
    logits = geometry.vocabulary * _F32_BYTES * parallel
    return scratch + micro_batch * mask_cells * _F16_BYTES + logits


def _widest_row(geometry: Geometry) -> int:
    """Values alive at once for one token, in the widest of the layer's stages."""
    residual = _EMBEDDING_ROWS * geometry.embedding
    widths = [_FEED_FORWARD_ROWS * geometry.feed_forward + residual]
    if geometry.experts_used:
        # Each of the chosen experts has its own rows, and its own result before they are added up.
        experts = max(_FEED_FORWARD_ROWS * geometry.expert_width, geometry.expert_width + geometry.embedding)
        dense = geometry.feed_forward if geometry.has_dense_layers else 0
        widths = [geometry.experts_used * experts + residual, _FEED_FORWARD_ROWS * dense + residual]
    if geometry.latent:
        # Every head's query and result are as wide as the compressed row, beside the query before its compression.
        widest = max(layer.key_values for layer in geometry.layers)
        widths.append(geometry.attention_heads * (_LATENT_ROWS * widest + geometry.latent_head) + residual)
    if geometry.state_inner:
        widths.append(_STATE_ROWS * geometry.state_inner + geometry.embedding)
    return max(widths)
