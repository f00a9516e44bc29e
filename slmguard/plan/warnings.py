"""What a person must know about a plan before relying on it."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from slmguard.plan.estimate import Estimate, Models
from slmguard.plan.kv_cache import CacheSettings, cells_per_stream, checkpoint_bytes
from slmguard.plan.limits import Limits
from slmguard.plan.request import PlanRequest
from slmguard.plan.sizes import MIB, mib

_DEFAULT_CACHE_RAM_BYTES = 8192 * MIB
_DEFAULT_CHECKPOINTS = 32


def warnings_for(models: Models, asked: Estimate, request: PlanRequest, limits: Limits) -> Iterator[str]:
    """Warnings, the gravest first."""
    yield from _about_the_file(models)
    yield from _about_growth(models, asked, limits)
    yield from _about_the_context(models, asked)
    if request.unused_keys:
        yield f"the configuration file's keys {', '.join(request.unused_keys)} are not used"
    if request.server == "rkllm":
        yield (
            "RKLLM uses .rkllm files and NPU memory: the figures are derived from this GGUF's shape and not measured, "
            "and a cgroup limit does not see that memory; watch the host's headroom"
        )


def _about_the_file(models: Models) -> Iterator[str]:
    if not models.geometry.modelled:
        yield (
            f"architecture {models.geometry.architecture} is not modelled: the KV cache is an upper bound "
            f"(full attention in all layers), the true size is between 0 and that; measure before relying on it"
        )
    if not models.file.has_data or not models.file.tensors:
        yield "the file holds a header only, no tensors: the sizes of weights are what the header says, or 0"
    if models.file.parts[0].byte_order != sys.byteorder:
        yield f"the file is {models.file.parts[0].byte_order}-endian: an engine on a host like this one cannot load it"
    if models.file.unknown_tensor_types:
        numbers = ", ".join(map(str, models.file.unknown_tensor_types))
        yield f"tensor types {numbers} are not known: their size is the room they take in the file, no copy is counted"
    if models.geometry.experts_used:
        yield "mixture of experts: the compute buffer is an upper bound"


def _about_growth(models: Models, asked: Estimate, limits: Limits) -> Iterator[str]:
    settings = asked.settings
    if settings.server == "rkllm":
        return
    if settings.cache_ram_bytes == 0:
        yield (
            f"without --cache-ram 0 the server's prompt cache may grow by {mib(_DEFAULT_CACHE_RAM_BYTES)}: "
            f"the worst case would be {mib(asked.total_bytes + _DEFAULT_CACHE_RAM_BYTES)}"
        )
    if models.geometry.needs_checkpoints:
        cache = CacheSettings(
            settings.context, settings.parallel, settings.unified, settings.cache_type_k, settings.cache_type_v
        )
        default = checkpoint_bytes(models.geometry, cache) * _DEFAULT_CHECKPOINTS * settings.parallel
        yield f"without --ctx-checkpoints the server may keep {_DEFAULT_CHECKPOINTS} a slot: up to {mib(default)}"
    if settings.load_mode == "mmap" and asked.total_bytes > limits.memory_high_bytes:
        yield "above MemoryHigh the kernel evicts the mapped weights and the server stalls without being killed"


def _about_the_context(models: Models, asked: Estimate) -> Iterator[str]:
    settings, trained = asked.settings, models.geometry.context_trained
    cells = cells_per_stream(settings.context, settings.parallel, settings.unified)
    if trained and cells > trained:
        yield f"a slot of {cells} tokens is more than the {trained} that the model was trained for"
    if settings.parallel > 1 and not settings.unified:
        yield f"-c is shared: each of the {settings.parallel} slots gets {cells} tokens"
    if settings.parallel == 1:
        yield "without -np the server makes 4 slots that share the context; pass -np 1"
