"""A model's shape, from its metadata: what each layer stores per token and per sequence."""

from __future__ import annotations

from dataclasses import dataclass

from slmguard.core.errors import UserError
from slmguard.plan import architectures
from slmguard.plan.hyperparameters import Hyperparameters
from slmguard.plan.model_file import ModelFile


@dataclass(frozen=True, slots=True)
class Layer:
    """Values stored per token (keys, values) and per sequence (recurrent state, f32). `window`: for a window only."""

    key_values: int = 0
    value_values: int = 0
    window: bool = False
    state_values: int = 0


@dataclass(frozen=True, slots=True)
class Geometry:
    """The shape that memory depends on. `modelled` is False when the figures are an upper bound only."""

    architecture: str
    layers: tuple[Layer, ...]
    window_tokens: int
    embedding: int
    feed_forward: int
    attention_heads: int
    head_values: int
    vocabulary: int
    context_trained: int
    kind: str
    modelled: bool = True
    experts_used: int = 0
    expert_width: int = 0
    has_dense_layers: bool = True
    state_inner: int = 0
    latent: bool = False
    latent_head: int = 0

    @property
    def has_window(self) -> bool:
        """True when some layers keep only a window of the context."""
        return any(layer.window for layer in self.layers)

    @property
    def state_values(self) -> int:
        """f32 values of recurrent state per sequence, all layers."""
        return sum(layer.state_values for layer in self.layers)

    @property
    def needs_checkpoints(self) -> bool:
        """True when a server can return to an earlier point of a conversation only by a saved copy."""
        return self.has_window or self.state_values > 0


def geometry_of(model: ModelFile) -> Geometry:
    """The shape of a language model.

    Raises UserError when the file names no architecture, is no language model, or its numbers are impossible.
    """
    if not model.architecture:
        raise UserError(f"{model.path} names no general.architecture: it is no llama.cpp model")
    if model.architecture in {"clip", "mmproj"}:
        raise UserError(f"{model.path} is a projector, not a language model: give it with --mmproj")
    hp = Hyperparameters(model)
    name = model.architecture
    modelled = name in architectures.MODELLED
    layers, kind = _layers(hp, name) if modelled else _upper_bound(hp)
    return Geometry(
        architecture=name,
        layers=layers,
        window_tokens=_window_tokens(hp, name) or 0,
        embedding=hp.embedding,
        feed_forward=max(hp.per_layer("feed_forward_length", 0), default=0),
        attention_heads=max(hp.heads, default=0),
        head_values=hp.key_length,
        vocabulary=model.vocabulary_size or hp.number("vocab_size", 0) or _vocabulary_from_tensors(model),
        context_trained=hp.number("context_length", 0),
        kind=kind,
        modelled=modelled,
        experts_used=max(hp.per_layer("expert_used_count", 0), default=0),
        expert_width=_expert_width(hp),
        has_dense_layers=hp.number("leading_dense_block_count", 0) > 0 or not hp.has("expert_feed_forward_length"),
        state_inner=hp.number("ssm.inner_size", 0)
        + 2 * hp.number("ssm.group_count", 0) * hp.number("ssm.state_size", 0),
        latent=_is_latent(hp, name),
        latent_head=hp.number("attention.key_length_mla", 0),
    )


def _expert_width(hp: Hyperparameters) -> int:
    """Feed-forward width of one expert: files without a key of its own name it in feed_forward_length."""
    dense = hp.per_layer("feed_forward_length", 0)
    shared = hp.number("expert_shared_feed_forward_length", 0)
    return max([*hp.per_layer("expert_feed_forward_length", dense), shared])


def _vocabulary_from_tensors(model: ModelFile) -> int:
    return next((tensor.shape[-1] for tensor in model.tensors if tensor.name == "token_embd.weight"), 0)


def _layers(hp: Hyperparameters, name: str) -> tuple[tuple[Layer, ...], str]:
    if name in architectures.WITHOUT_CACHE:
        return tuple(Layer() for _ in range(hp.block_count)), "no cache between calls"
    if name in architectures.RECURRENT:
        state = _state_values(hp)
        return tuple(Layer(state_values=state) for _ in range(hp.trunk_layers)), "recurrent state, no context term"
    recurrent = _recurrent_layers(hp, name)
    windowed = _window_layers(hp, name, recurrent)
    owners = _layers_with_cache(hp, name)
    state = _state_values(hp) if any(recurrent) else 0
    layers = []
    for index in range(hp.trunk_layers):
        attention = index < owners and (not recurrent[index] or name in architectures.HYBRID_IN_PARALLEL)
        keys, values = _row_values(hp, index, windowed[index], name) if attention else (0, 0)
        if name.startswith("nemotron_h") and hp.per_layer("feed_forward_length", 0)[index] > 0:
            keys = values = 0
        layers.append(Layer(keys, values, windowed[index], state if recurrent[index] else 0))
    return tuple(layers), _kind(hp, name, recurrent, windowed, owners)


def _kind(hp: Hyperparameters, name: str, recurrent: list[bool], windowed: list[bool], owners: int) -> str:
    parts = []
    if any(recurrent):
        parts.append(f"hybrid: {sum(recurrent)} recurrent layers")
    if _is_latent(hp, name):
        parts.append("latent attention (keys only)")
    else:
        grouped = any(kv != heads for kv, heads in zip(hp.kv_heads, hp.heads, strict=True))
        parts.append("grouped-query attention" if grouped else "multi-head attention")
    if any(windowed):
        parts.append(f"{sum(windowed)} of {len(windowed)} layers with a window of {_window_tokens(hp, name)} tokens")
    if owners < hp.trunk_layers:
        parts.append(f"{hp.trunk_layers - owners} layers share the others' cache")
    return ", ".join(parts)


def _upper_bound(hp: Hyperparameters) -> tuple[tuple[Layer, ...], str]:
    """Full attention in all layers, and whatever state the file's numbers allow: no known layout stores more."""
    has_state = any(hp.has(key) for key in ("ssm.inner_size", "wkv.head_size", "shortconv.l_cache", "kda.head_dim"))
    state = _state_values(hp) if has_state else 0
    indexer = hp.number("attention.indexer.key_length", 0)
    layers = []
    for index in range(hp.block_count):
        keys, values = _row_values(hp, index, windowed=False, name="")
        if not keys:
            keys = values = hp.embedding
        layers.append(Layer(keys + indexer, values, state_values=state))
    return tuple(layers), "not modelled"


def _is_latent(hp: Hyperparameters, name: str) -> bool:
    return name in architectures.LATENT_ATTENTION and bool(
        hp.number("attention.key_length_mla", 0) and hp.number("attention.value_length_mla", 0)
    )


def _row_values(hp: Hyperparameters, index: int, windowed: bool, name: str) -> tuple[int, int]:
    """Values of one token's keys and values in one layer."""
    if _is_latent(hp, name):
        compressed = hp.number("attention.kv_lora_rank", 0) + hp.number("rope.dimension_count", 0)
        heads = hp.kv_heads[index] if hp.has("attention.head_count_kv") else 1
        return (hp.key_length if hp.has("attention.key_length") else compressed) * heads, 0
    keys = hp.key_length_window if windowed else hp.key_length
    values = hp.value_length_window if windowed else hp.value_length
    return keys * hp.kv_heads[index], values * hp.kv_heads[index]


def _window_tokens(hp: Hyperparameters, name: str) -> int | None:
    """The window's length, None when this model has none."""
    rule = architectures.SLIDING_WINDOW.get(name)
    said = hp.number("attention.sliding_window", -1)
    if name in {"lfm2", "lfm2moe"}:
        return said if said > 0 else None
    if name == "exaone4":
        # Only the 32B model, told by its 64 layers, has windows.
        return (said if said > 0 else 4096) if hp.trunk_layers == 64 else None
    if rule is None or (rule.optional and said <= 0) or (name == "llama4" and said == 0):
        return None
    if rule.forced or said < 0:
        if rule.window_tokens is None:
            raise hp.error("attention.sliding_window", "is missing")
        return rule.window_tokens
    return said


def _window_layers(hp: Hyperparameters, name: str, recurrent: list[bool]) -> list[bool]:
    layers = hp.trunk_layers
    if _window_tokens(hp, name) is None:
        return [False] * layers
    if name in {"lfm2", "lfm2moe"}:
        return [not state for state in recurrent]
    rule = architectures.SLIDING_WINDOW.get(name, architectures.SlidingWindow(4))
    listed = hp.flags("attention.sliding_window_pattern")
    if listed is not None:
        return [bool(flag) for flag in (listed + [False] * layers)[:layers]]
    period = hp.number("attention.sliding_window_pattern", -1)
    period = period if period >= 0 else rule.period if rule.period is not None else -1
    if period < 0:
        raise hp.error("attention.sliding_window_pattern", "is missing")
    if rule.global_first:
        return [period == 0 or index % period != 0 for index in range(layers)]
    return [period == 0 or index % period < period - 1 for index in range(layers)]


def _recurrent_layers(hp: Hyperparameters, name: str) -> list[bool]:
    layers = hp.trunk_layers
    if name in architectures.HYBRID_IN_PARALLEL:
        return [True] * layers
    if name in architectures.HYBRID_BY_HEADS:
        dense = hp.per_layer("feed_forward_length", 0) if name.startswith("nemotron_h") else [0] * hp.block_count
        return [hp.kv_heads[index] == 0 and dense[index] == 0 for index in range(layers)]
    default_interval = architectures.HYBRID_BY_INTERVAL.get(name)
    if default_interval is None:
        return [False] * layers
    listed = hp.flags("attention.recurrent_layers")
    if listed is not None:
        return [bool(flag) for flag in (listed + [False] * layers)[:layers]]
    interval = max(1, hp.number("full_attention_interval", default_interval))
    return [(index + 1) % interval != 0 for index in range(layers)]


def _layers_with_cache(hp: Hyperparameters, name: str) -> int:
    if name == "gemma3n":
        return architectures.GEMMA3N_LAYERS_WITH_CACHE
    if name == "gemma4":
        return max(0, hp.block_count - hp.number("attention.shared_kv_layers", 0))
    return hp.block_count


def _state_values(hp: Hyperparameters) -> int:
    """Values of one layer's recurrent state for one sequence (convolution and state)."""
    head = hp.number("wkv.head_size", 0)
    if head:
        return hp.embedding * hp.number("token_shift_count", 2) + hp.embedding * head
    kernel = hp.number("ssm.conv_kernel", 0)
    inner, state = hp.number("ssm.inner_size", 0), hp.number("ssm.state_size", 0)
    shortconv = hp.number("shortconv.l_cache", 0)
    if shortconv:
        return hp.embedding * (shortconv - 1) + state * inner
    delta_head = hp.number("kda.head_dim", 0)
    if delta_head:
        heads = hp.heads[0]
        return 3 * (kernel - 1 if kernel else 3) * heads * delta_head + delta_head * delta_head * heads
    convolution = max(0, kernel - 1) * (inner + 2 * hp.number("ssm.group_count", 0) * state)
    if hp.architecture == "minimax-01":
        return convolution + hp.key_length * hp.key_length * hp.heads[0]
    if not inner or not state:
        raise hp.error("ssm.inner_size", "and its relatives are missing")
    return convolution + state * inner
