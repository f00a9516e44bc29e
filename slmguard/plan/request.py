"""What was asked for; None where the planner may choose."""

from __future__ import annotations

from dataclasses import dataclass

from slmguard.core.errors import UserError
from slmguard.plan.geometry import Geometry
from slmguard.plan.settings import ServerSettings
from slmguard.plan.tensor_types import CACHE_TYPES, TensorType

MAX_CONTEXT = 16 * 1024 * 1024
# llama.cpp takes no more sequences than this (LLAMA_MAX_SEQ).
MAX_PARALLEL = 256
# Prefilling 8192 tokens takes 200 s on a Pi 5 (about 40 tokens/s): more is proposed only when it is asked for.
COMFORTABLE_CONTEXT = 8192
_CHECKPOINTS_WHERE_NEEDED = 2


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """The command line, checked. Sizes in bytes; `context` over all slots."""

    context: int | None = None
    parallel: int | None = None
    cache_type_k: TensorType | None = None
    cache_type_v: TensorType | None = None
    unified: bool = False
    micro_batch: int | None = None
    repack: bool | None = None
    load_mode: str | None = None
    cache_ram_bytes: int = 0
    checkpoints: int | None = None
    full_window: bool = False
    server: str = "llama-server"
    # Everything at start or no start (preallocate_tensor_pool): nothing may grow later.
    preallocate: bool = False
    unused_keys: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raises UserError on values that no server takes."""
        if self.context is not None and not 1 <= self.context <= MAX_CONTEXT:
            raise UserError(f"a context of {self.context} tokens: give 1 to {MAX_CONTEXT}")
        if self.parallel is not None and not 1 <= self.parallel <= MAX_PARALLEL:
            raise UserError(f"{self.parallel} slots: give 1 to {MAX_PARALLEL}")
        if self.micro_batch is not None and not 1 <= self.micro_batch <= MAX_CONTEXT:
            raise UserError(f"a micro-batch of {self.micro_batch}: give 1 to {MAX_CONTEXT}")
        if self.checkpoints is not None and not 0 <= self.checkpoints <= 10_000:
            raise UserError(f"{self.checkpoints} checkpoints: give 0 to 10000")

    def settings(self, context: int, geometry: Geometry) -> ServerSettings:
        """The settings for one context, with the server's own defaults where nothing was asked and none can grow."""
        checkpoints = _CHECKPOINTS_WHERE_NEEDED if geometry.needs_checkpoints and not self.preallocate else 0
        micro_batch = self.micro_batch or 512
        return ServerSettings(
            context=context,
            parallel=self.parallel or 1,
            cache_type_k=self.cache_type_k or CACHE_TYPES["f16"],
            cache_type_v=self.cache_type_v or CACHE_TYPES["f16"],
            unified=self.unified,
            batch=micro_batch,
            micro_batch=micro_batch,
            repack=True if self.repack is None else self.repack,
            load_mode=self.load_mode or ("none" if self.preallocate else "mmap"),
            cache_ram_bytes=self.cache_ram_bytes,
            checkpoints=checkpoints if self.checkpoints is None else self.checkpoints,
            full_window=self.full_window,
            server=self.server,
        )


def cache_type(name: str) -> TensorType:
    """A cache type by its name, as llama-server takes it. Raises UserError."""
    found = CACHE_TYPES.get(name.lower())
    if found is None:
        raise UserError(f"{name!r} is no cache type: take one of {', '.join(CACHE_TYPES)}")
    return found
