"""The compute buffer, against what llama.cpp build 11549 printed for models of these shapes (-ub 512, one slot)."""

from __future__ import annotations

from pathlib import Path

import pytest

from slmguard.plan.compute import compute_bytes
from slmguard.plan.geometry import geometry_of
from slmguard.plan.kv_cache import CacheSettings, cache_bytes
from slmguard.plan.model_file import read_model
from slmguard.plan.sizes import MIB
from slmguard.plan.tensor_types import CACHE_TYPES
from tests.plan import family_makers
from tests.plan.gguf_writer import GgufWriter
from tests.plan.model_makers import transformer

QWEN_05 = transformer("qwen2", layers=2, embedding=896, feed_forward=4864, heads=14, kv_heads=2, vocab=512)
QWEN_15 = transformer("qwen2", layers=2, embedding=1536, feed_forward=8960, heads=12, kv_heads=2, vocab=512)
LLAMA_1B = transformer("llama", layers=2, embedding=2048, feed_forward=8192, heads=32, kv_heads=8, vocab=512)
GEMMA = transformer(
    "gemma3",
    layers=6,
    embedding=640,
    feed_forward=2048,
    heads=4,
    kv_heads=1,
    head=256,
    attention__sliding_window=512,
)
PRINTED: dict[str, tuple[GgufWriter, int, float]] = {
    "Qwen2.5-0.5B": (QWEN_05, 4096, 41.27),
    "Qwen2.5-1.5B": (QWEN_15, 4096, 71.52),
    "Llama-3.2-1B": (LLAMA_1B, 4096, 72.02),
    "Gemma-3-270M at 8192": (GEMMA, 8192, 27.28),
    "Gemma-3-270M at 512": (GEMMA, 512, 19.28),
    "four experts of 256": (family_makers.qwen3moe(), 2048, 13.02),
    "eight experts of 256": (family_makers.qwen3moe(used=8), 2048, 19.02),
    "mamba": (family_makers.mamba(), 2048, 15.08),
    "lfm2": (family_makers.lfm2(), 2048, 13.02),
    "gemma4": (family_makers.gemma4(), 2048, 8.53),
    "latent": (family_makers.deepseek2(heads=16, rank=256), 2048, 25.51),
}


@pytest.mark.parametrize("name", PRINTED)
def test_the_rule_gives_what_the_engine_reserves(name: str, tmp_path: Path) -> None:
    writer, context, printed_mib = PRINTED[name]
    geometry = geometry_of(read_model(writer.write(tmp_path / "m.gguf")))
    f16 = CACHE_TYPES["f16"]
    cache = cache_bytes(geometry, CacheSettings(context, 1, False, f16, f16))
    logits = geometry.vocabulary * 4
    assert (compute_bytes(geometry, cache, 512, 1) - logits) / MIB == pytest.approx(printed_mib, rel=0.01)
