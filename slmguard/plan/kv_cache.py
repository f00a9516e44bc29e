"""The bytes of the KV cache and of recurrent state, as llama.cpp allocates and zeroes them at load."""

from __future__ import annotations

from dataclasses import dataclass

from slmguard.core.errors import UserError
from slmguard.plan.geometry import Geometry
from slmguard.plan.tensor_types import TensorType

# llama-context.cpp rounds the context, and llama-kv-cache-iswa.cpp the window's cache, up to this many cells.
CELL_PADDING = 256
_STATE_BYTES = 4
# Position and sequence numbers of a saved cell: Gemma-3-270M saves 7.506 MiB for a window of 7.5.
_CELL_RECORD_BYTES = 16


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """What decides the size: total context over all slots, number of slots, one shared cache or one per slot, types."""

    context: int
    parallel: int
    unified: bool
    type_k: TensorType
    type_v: TensorType
    micro_batch: int = 512
    full_window: bool = False


@dataclass(frozen=True, slots=True)
class CacheBytes:
    """Bytes of the parts. `cells` are those of one stream of the global layers."""

    global_bytes: int
    window_bytes: int
    state_bytes: int
    cells: int
    streams: int
    window_cells: int

    @property
    def total(self) -> int:
        """All bytes, resident from the load on."""
        return self.global_bytes + self.window_bytes + self.state_bytes


def padded(value: int, step: int = CELL_PADDING) -> int:
    """`value` rounded up to a multiple of `step`."""
    return -(-value // step) * step


def cells_per_stream(context: int, parallel: int, unified: bool) -> int:
    """Cells of one stream: the whole context when the slots share it, the slot's part otherwise."""
    total = padded(context)
    return total if unified else padded(total // parallel)


def row_bytes(geometry: Geometry, settings: CacheSettings, *, window: bool) -> int:
    """Bytes of one cell over all layers with (or without) a window.

    Raises UserError when a row is no whole number of the type's blocks: llama.cpp refuses that too.
    """
    total = 0
    for layer in geometry.layers:
        if layer.window == window:
            total += _row(settings.type_k, layer.key_values, "-ctk") + _row(settings.type_v, layer.value_values, "-ctv")
    return total


def cache_bytes(geometry: Geometry, settings: CacheSettings) -> CacheBytes:
    """Sizes of the cache. Raises UserError when the cache type does not suit the model."""
    streams = 1 if settings.unified else settings.parallel
    cells = cells_per_stream(settings.context, settings.parallel, settings.unified)
    sequences = settings.parallel if settings.unified else 1
    window = geometry.window_tokens * sequences + settings.micro_batch
    window_cells = cells if settings.full_window else padded(min(cells, window))
    has_window = geometry.has_window
    return CacheBytes(
        global_bytes=row_bytes(geometry, settings, window=False) * cells * streams,
        window_bytes=row_bytes(geometry, settings, window=True) * window_cells * streams if has_window else 0,
        state_bytes=geometry.state_values * _STATE_BYTES * max(1, settings.parallel),
        cells=cells,
        streams=streams,
        window_cells=window_cells if has_window else 0,
    )


def checkpoint_bytes(geometry: Geometry, settings: CacheSettings) -> int:
    """Upper bound of one saved copy of a slot's window and recurrent state; 0 for a model that needs none."""
    window = row_bytes(geometry, settings, window=True)
    cells = min(cells_per_stream(settings.context, settings.parallel, settings.unified), geometry.window_tokens)
    return (window + _CELL_RECORD_BYTES if window else 0) * cells + geometry.state_values * _STATE_BYTES


def _row(tensor_type: TensorType, values: int, flag: str) -> int:
    try:
        return tensor_type.row_bytes(values)
    except ValueError as error:
        raise UserError(f"{flag} {tensor_type.name} does not suit this model: {error}; use f16") from error
