"""What a server will take with given settings, part by part."""

from __future__ import annotations

from dataclasses import dataclass

from slmguard.plan.compute import compute_bytes
from slmguard.plan.cpu import CPUS, Cpu
from slmguard.plan.geometry import Geometry
from slmguard.plan.kv_cache import CacheBytes, CacheSettings, cache_bytes, checkpoint_bytes
from slmguard.plan.model_file import ModelFile
from slmguard.plan.projector import projector_bytes
from slmguard.plan.settings import ServerSettings
from slmguard.plan.sizes import MIB
from slmguard.plan.weights import plain_bytes, repacked_bytes

# Beside its buffers a server with a tiny vocabulary holds 40 MiB (libraries 18, heap and threads the rest), 2 more
# once the prompts are longer than two micro-batches, and 256 bytes for each token of context: fitted to the peaks of
# nine models with llama.cpp build 11549 in a Python host (benchmarks/plan_accuracy.py). A native binary needs about
# 12 MiB less.
_PROCESS_BYTES = 40 * MIB
_LONG_PROMPT_BYTES = 2 * MIB
_CONTEXT_TOKEN_BYTES = 256
# Without attention a token leaves its number only, and no cell.
_STATE_TOKEN_BYTES = 16
# Gemma's 262,144 tokens cost 50 MiB, SmolLM2's 48,900 merges 10 MiB.
_TOKEN_BYTES = 200
_MERGE_BYTES = 225
_CANDIDATE_BYTES = 16
# Ollama's own process beside the llama-server that it starts.
_OLLAMA_BYTES = 60 * MIB


@dataclass(frozen=True, slots=True)
class Component:
    """One part of the demand. `reclaimable`: the kernel can drop it (and the server then reads it again, slowly)."""

    name: str
    bytes: int
    reclaimable: bool
    basis: str


@dataclass(frozen=True, slots=True)
class Models:
    """The model and what is loaded with it."""

    file: ModelFile
    geometry: Geometry
    projector: ModelFile | None = None
    draft: ModelFile | None = None
    draft_geometry: Geometry | None = None


@dataclass(frozen=True, slots=True)
class Estimate:
    """The components of one configuration."""

    settings: ServerSettings
    components: tuple[Component, ...]
    cache: CacheBytes

    @property
    def total_bytes(self) -> int:
        """The highest demand: everything resident at once."""
        return sum(component.bytes for component in self.components)

    def bytes_of(self, name: str) -> int:
        """Bytes of one component by its name."""
        return sum(component.bytes for component in self.components if component.name == name)


def estimate(models: Models, settings: ServerSettings, cpu: Cpu) -> Estimate:
    """The demand of a server with these settings. Raises UserError when the cache type does not suit the model."""
    cache_settings = _cache_settings(settings)
    cache = cache_bytes(models.geometry, cache_settings)
    components = (
        *_weights(models.file, settings, cpu),
        _kv(models.geometry, settings, cache),
        _compute(models.geometry, settings, cache),
        _prompt_cache(settings),
        _checkpoints(models.geometry, settings, cache_settings),
        _projector(models),
        _draft(models, settings, cpu),
        _overhead(models, settings, cache),
    )
    return Estimate(settings, components, cache)


def _cache_settings(settings: ServerSettings) -> CacheSettings:
    return CacheSettings(
        settings.context,
        settings.parallel,
        settings.unified,
        settings.cache_type_k,
        settings.cache_type_v,
        settings.micro_batch,
        settings.full_window,
    )


def _weights(model: ModelFile, settings: ServerSettings, cpu: Cpu) -> list[Component]:
    if settings.server == "rkllm":
        basis = "one byte per parameter: w8a8, RKLLM's usual type on RK3588, in NPU memory that the cgroup cannot see"
        return [
            Component("weights_mapped", model.parameter_count, reclaimable=False, basis=basis),
            Component("weights_repacked", 0, reclaimable=False, basis="RKLLM keeps one copy"),
        ]
    repacked = repacked_bytes(model, cpu) if settings.repack else 0
    if settings.load_mode == "none":
        mapped = plain_bytes(model, cpu if settings.repack else CPUS["none"])
        basis = "read into anonymous memory at start (load mode none), without what is repacked"
    elif settings.load_mode == "mlock":
        mapped, basis = model.file_bytes, "the whole file, mapped and locked: never evicted"
    else:
        mapped, basis = model.file_bytes, "the whole file, mapped; evicting it stalls the server, it does not free room"
    copied = f"copy of the tensors that llama.cpp rearranges for {cpu.name}, anonymous memory"
    return [
        Component("weights_mapped", mapped, reclaimable=settings.load_mode == "mmap", basis=basis),
        Component(
            "weights_repacked", repacked, reclaimable=False, basis=copied if repacked else _no_copy(settings, cpu)
        ),
    ]


def _no_copy(settings: ServerSettings, cpu: Cpu) -> str:
    if not settings.repack:
        return "switched off (--no-repack)"
    return f"none of this file's weight types is rearranged for {cpu.name}"


def _kv(geometry: Geometry, settings: ServerSettings, cache: CacheBytes) -> Component:
    types = f"{settings.cache_type_k.name}/{settings.cache_type_v.name}"
    shape = f"{cache.cells} cells x {cache.streams} streams, {types}, zeroed at load"
    if cache.window_cells:
        shape += f"; {cache.window_cells} cells in layers with a window"
    if cache.state_bytes:
        shape += f"; {cache.state_bytes} bytes of recurrent state"
    prefix = geometry.kind if geometry.modelled else "not modelled, upper bound: full attention in all layers"
    return Component("kv", cache.total, reclaimable=False, basis=f"{prefix}: {shape}")


def _compute(geometry: Geometry, settings: ServerSettings, cache: CacheBytes) -> Component:
    # The engine makes no batch larger than the context.
    size = compute_bytes(geometry, cache, min(settings.micro_batch, settings.context), settings.parallel)
    basis = f"scratch for -ub {settings.micro_batch}, reserved at load, touched by the first long prompt"
    return Component("compute", size, reclaimable=False, basis=basis)


def _prompt_cache(settings: ServerSettings) -> Component:
    size = settings.cache_ram_bytes
    basis = (
        "--cache-ram, fills with every new conversation" if size else "--cache-ram 0 (the server's default is 8192 MiB)"
    )
    return Component("prompt_cache", size, reclaimable=False, basis=basis)


def _checkpoints(geometry: Geometry, settings: ServerSettings, cache_settings: CacheSettings) -> Component:
    if not geometry.needs_checkpoints:
        return Component("checkpoints", 0, reclaimable=False, basis="none: this model has full attention in all layers")
    each = checkpoint_bytes(geometry, cache_settings)
    basis = f"--ctx-checkpoints {settings.checkpoints} x {settings.parallel} slots x {each} bytes (the default is 32)"
    return Component("checkpoints", each * settings.checkpoints * settings.parallel, reclaimable=False, basis=basis)


def _projector(models: Models) -> Component:
    if models.projector is None:
        return Component("projector", 0, reclaimable=False, basis="no --mmproj")
    size = projector_bytes(models.projector)
    return Component(
        "projector", size, reclaimable=False, basis="its file, read into memory, and its encoder's scratch"
    )


def _draft(models: Models, settings: ServerSettings, cpu: Cpu) -> Component:
    if models.draft is None or models.draft_geometry is None:
        return Component("draft", 0, reclaimable=False, basis="no --draft")
    cache = cache_bytes(models.draft_geometry, _cache_settings(settings))
    scratch = compute_bytes(models.draft_geometry, cache, settings.micro_batch, settings.parallel)
    weights = sum(component.bytes for component in _weights(models.draft, settings, cpu))
    vocabulary = _vocabulary_bytes(models.draft, models.draft_geometry)
    basis = f"weights {weights}, cache {cache.total}, scratch {scratch}, vocabulary {vocabulary} bytes"
    return Component("draft", weights + cache.total + scratch + vocabulary, reclaimable=False, basis=basis)


def _overhead(models: Models, settings: ServerSettings, cache: CacheBytes) -> Component:
    tokens = cache.cells * cache.streams
    per_token = _CONTEXT_TOKEN_BYTES if cache.global_bytes + cache.window_bytes else _STATE_TOKEN_BYTES
    size = _PROCESS_BYTES + per_token * tokens + _vocabulary_bytes(models.file, models.geometry)
    # Each further slot samples from candidates of its own.
    size += models.geometry.vocabulary * _CANDIDATE_BYTES * (settings.parallel - 1)
    if tokens > 2 * settings.micro_batch:
        size += _LONG_PROMPT_BYTES
    if settings.server == "ollama":
        size += _OLLAMA_BYTES
    basis = f"libraries, heap, threads and a vocabulary of {models.geometry.vocabulary} tokens; measured on x86-64"
    return Component("overhead", size, reclaimable=False, basis=basis)


def _vocabulary_bytes(model: ModelFile, geometry: Geometry) -> int:
    return geometry.vocabulary * _TOKEN_BYTES + model.merge_count * _MERGE_BYTES
