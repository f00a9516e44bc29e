"""How each model architecture of llama.cpp lays out its memory, as data.

Read from llama.cpp of October 2026 (the files under src/models and src/llama-model.cpp) and checked against the buffer
sizes that the engine prints (benchmarks/plan_accuracy.py). An architecture that is not listed here is not modelled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """Which layers see only a window of the context when the file has no per-layer list.

    Every `period`-th layer is global: the last of each group, or the first with `global_first`. `period` None: the
    per-layer list is required. `window_tokens` is the window when the file names none, `forced` overrides the file.
    `optional` windows exist only when the file has a `sliding_window` above 0.
    """

    period: int | None
    global_first: bool = False
    window_tokens: int | None = None
    forced: bool = False
    optional: bool = False


SLIDING_WINDOW: Final[dict[str, SlidingWindow]] = {
    "afmoe": SlidingWindow(4, optional=True),
    "cohere2": SlidingWindow(4),
    "cohere2moe": SlidingWindow(4, global_first=True),
    "exaone-moe": SlidingWindow(4, window_tokens=128),
    "gemma2": SlidingWindow(2, window_tokens=4096),
    "gemma3": SlidingWindow(6, optional=True),
    "gemma3n": SlidingWindow(5),
    "gemma4": SlidingWindow(None),
    "gpt-oss": SlidingWindow(2),
    "granite_swa": SlidingWindow(None),
    "laguna": SlidingWindow(4, global_first=True, optional=True),
    # Chunked attention of 8192 tokens whatever the file says; a window of 0 switches it off.
    "llama4": SlidingWindow(4, window_tokens=8192, forced=True),
    "maple": SlidingWindow(None),
    "mellum": SlidingWindow(4, optional=True),
    "mimo2": SlidingWindow(None),
    "muse-glimmer": SlidingWindow(4),
    "olmo2": SlidingWindow(4, optional=True),
    "plamo3": SlidingWindow(8, optional=True),
    "smallthinker": SlidingWindow(4, global_first=True, window_tokens=4096, forced=True, optional=True),
    "spark2_5": SlidingWindow(None),
    "step35": SlidingWindow(None),
}

# The state depends on the number of sequences, not on the context.
RECURRENT: Final = frozenset({"mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"})

# Attention in the layers with head_count_kv above 0, a recurrent state in the others.
HYBRID_BY_HEADS: Final = frozenset(
    {"jamba", "plamo2", "granitehybrid", "lfm2", "lfm2moe", "kimi-linear", "nemotron_h", "nemotron_h_moe"}
)
# Attention in every full_attention_interval-th layer unless the file lists the recurrent ones.
HYBRID_BY_INTERVAL: Final[dict[str, int]] = {"qwen3next": 4, "qwen35": 4, "qwen35moe": 4, "minimax-01": 8}
# Both in every layer.
HYBRID_IN_PARALLEL: Final = frozenset({"falcon-h1"})

# Compressed keys instead of keys and values, when the file has key_length_mla and value_length_mla.
LATENT_ATTENTION: Final = frozenset({"deepseek2", "deepseek2-ocr", "kimi-linear", "mistral4"})

# gemma3n: only the first 20 layers own a cache, by llama.cpp's source, whatever the file says.
GEMMA3N_LAYERS_WITH_CACHE: Final = 20

# Encoders and diffusion models keep no cache between calls.
WITHOUT_CACHE: Final = frozenset(
    {
        "bert", "modern-bert", "nomic-bert", "nomic-bert-moe", "neo-bert", "jina-bert-v2", "jina-bert-v3", "eurobert",
        "gemma-embedding", "dream", "llada", "llada-moe", "rnd1", "wavtokenizer-dec",
    }
)  # fmt: skip

# One cache row per token and layer in all layers. phi3 and minicpm3 are here on purpose: llama.cpp allocates the full
# cache although their files name a sliding window or a latent rank.
FULL_ATTENTION: Final = frozenset(
    {
        "apertus", "arcee", "arctic", "baichuan", "bailingmoe", "bailingmoe2", "bitnet", "bloom", "chameleon",
        "chatglm", "codeshell", "cogvlm", "command-r", "dbrx", "deci", "deepseek", "deepseek2", "deepseek2-ocr",
        "dots1", "ernie4_5", "ernie4_5-moe", "exaone", "exaone4", "falcon", "gemma", "glm4", "glm4moe", "gpt2",
        "gptj", "gptneox", "granite", "granitemoe", "grok", "grovemoe", "hunyuan-dense", "hunyuan-moe", "hunyuan_vl",
        "hy_v3", "internlm2", "jais", "jais2", "llama", "llama-embed", "maincoder", "minicpm", "minicpm3",
        "minimax-m2", "mistral3", "mistral4", "mpt", "nemotron", "olmo", "olmoe", "openelm", "orion", "paddleocr",
        "pangu-embedded", "phi2", "phi3", "phimoe", "plamo", "plm", "qwen", "qwen2", "qwen2moe", "qwen2vl", "qwen3",
        "qwen3moe", "qwen3vl", "qwen3vlmoe", "refact", "seed_oss", "smollm3", "stablelm", "starcoder", "starcoder2",
        "xverse",
    }
)  # fmt: skip

MODELLED: Final = (
    FULL_ATTENTION
    | WITHOUT_CACHE
    | RECURRENT
    | HYBRID_BY_HEADS
    | HYBRID_IN_PARALLEL
    | frozenset(SLIDING_WINDOW)
    | frozenset(HYBRID_BY_INTERVAL)
)
