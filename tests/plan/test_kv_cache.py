"""KV cache sizes: published geometries give the figures that llama.cpp allocates, to the byte."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slmguard.core.errors import UserError
from slmguard.plan.geometry import Geometry, Layer, geometry_of
from slmguard.plan.kv_cache import CacheSettings, cache_bytes, checkpoint_bytes
from slmguard.plan.model_file import read_model
from slmguard.plan.tensor_types import CACHE_TYPES
from tests.plan import family_makers
from tests.plan.gguf_writer import GgufWriter
from tests.plan.model_makers import geometry_header, shape

KIB, MIB = 1024, 1024 * 1024
F16 = CACHE_TYPES["f16"]

# name: (architecture, layers, KV heads, head size), KiB per token, MiB at -c 4096, MiB at 32,768
PUBLISHED: dict[str, tuple[tuple[str, int, int, int], int, int, int]] = {
    "Qwen2.5-0.5B": (("qwen2", 24, 2, 64), 12, 48, 384),
    "Qwen2.5-1.5B": (("qwen2", 28, 2, 128), 28, 112, 896),
    "Qwen2.5-3B": (("qwen2", 36, 2, 128), 36, 144, 1152),
    "Qwen1.5-0.5B": (("qwen2", 24, 16, 64), 96, 384, 3072),
    "Qwen1.5-1.8B": (("qwen2", 24, 16, 128), 192, 768, 6144),
    "Qwen3-0.6B": (("qwen3", 28, 8, 128), 112, 448, 3584),
    "Qwen3-4B": (("qwen3", 36, 8, 128), 144, 576, 4608),
    "Llama-3.2-1B": (("llama", 16, 8, 64), 32, 128, 1024),
    "Llama-3.2-3B": (("llama", 28, 8, 128), 112, 448, 3584),
    "TinyLlama-1.1B": (("llama", 22, 4, 64), 22, 88, 704),
    "SmolLM2-1.7B": (("llama", 24, 32, 64), 192, 768, 6144),
    "Phi-3-mini": (("phi3", 32, 32, 96), 384, 1536, 12288),
}


def geometry(writer: GgufWriter, folder: Path) -> Geometry:
    return geometry_of(read_model(writer.write(folder / "model.gguf")))


def size(shape: Geometry, context: int, parallel: int = 1, cache_type: str = "f16", *, unified: bool = False) -> int:
    used = CACHE_TYPES[cache_type]
    return cache_bytes(shape, CacheSettings(context, parallel, unified, used, used)).total


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_geometries_give_their_known_sizes(name: str, tmp_path: Path) -> None:
    (architecture, layers, kv_heads, head), per_token, at_4096, at_32768 = PUBLISHED[name]
    found = geometry(geometry_header(architecture, layers=layers, kv_heads=kv_heads, head=head), tmp_path)
    assert size(found, 256) == per_token * KIB * 256
    assert size(found, 4096) == at_4096 * MIB
    assert size(found, 32768) == at_32768 * MIB
    assert size(found, 4096, cache_type="q8_0") == at_4096 * MIB * 34 // 64
    assert size(found, 4096, cache_type="q4_0") == at_4096 * MIB * 18 // 64


def test_qwen_1_5_1_8b_takes_288_mib_for_1500_tokens_since_cells_are_padded_to_256(tmp_path: Path) -> None:
    found = geometry(geometry_header("qwen2", layers=24, kv_heads=16, head=128), tmp_path)
    assert size(found, 1500) == size(found, 1536) == 288 * MIB


def test_gemma_3_1b_takes_16_and_22_mib_at_4096_and_128_and_22_at_32768(tmp_path: Path) -> None:
    writer = geometry_header("gemma3", layers=26, kv_heads=1, head=256, heads=4, attention__sliding_window=512)
    found = geometry(writer, tmp_path)
    sizes = cache_bytes(found, CacheSettings(4096, 1, False, F16, F16))
    assert (sizes.global_bytes, sizes.window_bytes, sizes.window_cells) == (16 * MIB, 22 * MIB, 1024)
    assert size(found, 32768) == (128 + 22) * MIB


def test_slots_share_the_context_and_do_not_multiply_a_full_cache(tmp_path: Path) -> None:
    found = geometry(geometry_header("llama", layers=16, kv_heads=8, head=64), tmp_path)
    assert size(found, 8192, 4) == size(found, 8192, 1) == size(found, 8192, 4, unified=True)
    # 300 tokens in 4 slots are padded to 256 each.
    assert size(found, 300, 4) == size(found, 1024)
    assert size(found, 300, 4, unified=True) == size(found, 512)


def test_a_window_is_kept_for_each_slot_or_once_for_all_when_they_share(tmp_path: Path) -> None:
    writer = geometry_header("gemma3", layers=6, kv_heads=1, head=256, heads=4, attention__sliding_window=512)
    found = geometry(writer, tmp_path)
    row = 2 * 256 * 2
    apart = cache_bytes(found, CacheSettings(16384, 4, False, F16, F16))
    assert apart.window_bytes == 5 * row * 1024 * 4
    shared = cache_bytes(found, CacheSettings(16384, 4, True, F16, F16))
    assert shared.window_bytes == 5 * row * (512 * 4 + 512)
    full = cache_bytes(found, CacheSettings(16384, 1, False, F16, F16, full_window=True))
    assert full.total == 6 * row * 16384


def test_latent_attention_keeps_one_compressed_key_and_no_value(tmp_path: Path) -> None:
    found = geometry(family_makers.deepseek2(rank=512, rope=64), tmp_path)
    assert size(found, 4096) == 26 * (512 + 64) * 2 * 4096
    assert "latent" in found.kind


def test_latent_keys_missing_means_full_heads_as_in_minicpm3(tmp_path: Path) -> None:
    writer = geometry_header("minicpm3", layers=4, kv_heads=8, head=96, attention__kv_lora_rank=256)
    assert size(geometry(writer, tmp_path), 1024) == 4 * 2 * 8 * 96 * 2 * 1024


def test_a_recurrent_model_has_no_context_term_and_one_state_for_each_slot(tmp_path: Path) -> None:
    found = geometry(family_makers.mamba(layers=6, embedding=512, state=16, kernel=4), tmp_path)
    state = 6 * (3 * 1024 + 16 * 1024) * 4
    assert size(found, 2048) == size(found, 1_000_000) == state
    assert size(found, 2048, 4) == 4 * state


def test_rwkv_keeps_token_shift_and_head_state(tmp_path: Path) -> None:
    metadata = shape("rwkv7", block_count=12, embedding_length=768, context_length=4096, wkv__head_size=64)
    assert size(geometry(GgufWriter(metadata), tmp_path), 4096) == 12 * (2 * 768 + 768 * 64) * 4


def test_a_hybrid_adds_attention_layers_and_recurrent_layers(tmp_path: Path) -> None:
    found = geometry(family_makers.lfm2(embedding=512, heads=8, kv_heads=2), tmp_path)
    assert size(found, 2048) == 3 * 2 * 128 * 2 * 2048 + 6 * 512 * 2 * 4


def test_every_fourth_layer_of_qwen3next_has_attention_unless_the_file_lists_the_others(tmp_path: Path) -> None:
    ssm = {"ssm__conv_kernel": 4, "ssm__inner_size": 1024, "ssm__state_size": 128, "ssm__group_count": 4}
    writer = geometry_header("qwen3next", layers=8, kv_heads=2, head=128, heads=8, **ssm)
    state = 3 * (1024 + 2 * 4 * 128) + 128 * 1024
    assert size(geometry(writer, tmp_path), 1024) == 2 * 2 * 256 * 2 * 1024 + 6 * state * 4
    writer.metadata["qwen3next.full_attention_interval"] = 2
    assert size(geometry(writer, tmp_path), 1024) == 4 * 2 * 256 * 2 * 1024 + 4 * state * 4
    writer.metadata["qwen3next.attention.recurrent_layers"] = [True] * 7 + [False]
    assert size(geometry(writer, tmp_path), 1024) == 1 * 2 * 256 * 2 * 1024 + 7 * state * 4


def test_layers_that_share_a_cache_own_none(tmp_path: Path) -> None:
    found = geometry(family_makers.gemma4(layers=12, shared=4), tmp_path)
    # Of the first eight layers two are global (head 128) and six have a window (head 64).
    assert size(found, 4096) == 2 * 2 * 128 * 2 * 4096 + 6 * 2 * 64 * 2 * 1024
    assert "share" in found.kind


def test_heads_may_differ_by_layer(tmp_path: Path) -> None:
    writer = geometry_header("openelm", layers=3, kv_heads=1, head=64, heads=4)
    writer.metadata["openelm.attention.head_count_kv"] = [1, 2, 4]
    assert size(geometry(writer, tmp_path), 256) == (1 + 2 + 4) * 64 * 2 * 2 * 256


def test_a_cache_type_whose_blocks_do_not_fit_the_rows_is_refused(tmp_path: Path) -> None:
    found = geometry(geometry_header("llama", layers=2, kv_heads=1, head=80), tmp_path)
    with pytest.raises(UserError, match="-ctk q8_0 does not suit this model"):
        size(found, 256, cache_type="q8_0")


def test_an_unknown_architecture_is_an_upper_bound_and_says_so(tmp_path: Path) -> None:
    found = geometry(geometry_header("hyperbrain", layers=4, kv_heads=2, head=64), tmp_path)
    assert not found.modelled
    assert size(found, 1024) == 4 * 2 * 128 * 2 * 1024


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("block_count", 0), ("block_count", 2**31), ("block_count", "many"), ("embedding_length", 0),
        ("attention.head_count_kv", [1]), ("attention.head_count_kv", 2**30), ("attention.key_length", -3),
        ("attention.sliding_window", 1.5),
    ],
)  # fmt: skip
def test_impossible_numbers_are_named_in_one_line(key: str, value: object, tmp_path: Path) -> None:
    writer = geometry_header("gemma2", layers=4, kv_heads=2, head=64)
    writer.metadata[f"gemma2.{key}"] = value  # type: ignore[assignment]
    with pytest.raises(UserError, match=rf"gemma2\.{key}") as caught:
        geometry(writer, tmp_path)
    assert "\n" not in str(caught.value)


def test_checkpoints_hold_the_window_or_the_state_and_cost_nothing_without_either(tmp_path: Path) -> None:
    settings = CacheSettings(8192, 1, False, F16, F16)
    dense = geometry(geometry_header("llama", layers=2, kv_heads=2, head=64), tmp_path)
    assert checkpoint_bytes(dense, settings) == 0
    windowed = geometry_header("gemma3", layers=6, kv_heads=1, head=256, heads=4, attention__sliding_window=512)
    assert checkpoint_bytes(geometry(windowed, tmp_path), settings) == (5 * 2 * 256 * 2 + 16) * 512
    recurrent = geometry(family_makers.mamba(), tmp_path)
    assert checkpoint_bytes(recurrent, settings) == size(recurrent, 512)


@given(
    context=st.integers(1, 200_000),
    parallel=st.integers(1, 64),
    unified=st.booleans(),
    window=st.integers(0, 8192),
    layers=st.lists(st.booleans(), min_size=1, max_size=12),
)
def test_more_context_never_takes_less_and_nothing_is_below_what_is_asked(
    context: int, parallel: int, unified: bool, window: int, layers: list[bool]
) -> None:
    found = Geometry(
        "gemma3", tuple(Layer(64, 64, flag) for flag in layers), window, 64, 64, 1, 64, 100, 8192, "made up"
    )
    small = cache_bytes(found, CacheSettings(context, parallel, unified, F16, F16))
    large = cache_bytes(found, CacheSettings(context + 1, parallel, unified, F16, F16))
    assert large.total >= small.total
    assert small.cells * small.streams >= context
    assert small.total <= len(layers) * 256 * small.cells * small.streams
