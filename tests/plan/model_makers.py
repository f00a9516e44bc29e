"""Models for tests, by shape: as headers alone, or with all tensors so that llama.cpp loads them."""

from __future__ import annotations

from typing import Any

from tests.plan.gguf_writer import GgufWriter, TensorSpec, Writable


def vocabulary(size: int) -> dict[str, Writable]:
    """A SentencePiece vocabulary of byte tokens and made-up words, which every llama.cpp takes."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁a", "a"]
    tokens = tokens[:size] + [f"▁w{number}" for number in range(max(0, size - len(tokens)))]
    kinds = [2, 3, 3, *([6] * 256)][:size]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [-float(number) for number in range(size)],
        "tokenizer.ggml.token_type": kinds + [1] * (size - len(kinds)),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def shape(architecture: str, **keys: Any) -> dict[str, Writable]:
    """Metadata of one architecture; `attention__head_count=2` becomes `{architecture}.attention.head_count`."""
    metadata: dict[str, Writable] = {"general.architecture": architecture}
    for key, value in keys.items():
        metadata[f"{architecture}.{key.replace('__', '.')}"] = value
    return metadata


def geometry_header(
    architecture: str, *, layers: int, kv_heads: int, head: int, heads: int | None = None, **keys: Any
) -> GgufWriter:
    """A header with the numbers that the cache depends on, and no tensors."""
    heads = heads or kv_heads
    return GgufWriter(
        shape(
            architecture,
            block_count=layers,
            context_length=keys.pop("context_length", 32768),
            embedding_length=keys.pop("embedding_length", heads * head),
            feed_forward_length=keys.pop("feed_forward_length", 4 * heads * head),
            attention__head_count=heads,
            attention__head_count_kv=kv_heads,
            attention__key_length=head,
            attention__value_length=head,
            **keys,
        )
    )


def transformer(
    architecture: str,
    *,
    layers: int,
    embedding: int,
    feed_forward: int,
    heads: int,
    kv_heads: int,
    head: int | None = None,
    vocab: int = 512,
    weight_type: str = "q8_0",
    tied: bool = True,
    context_length: int = 32768,
    **keys: Any,
) -> GgufWriter:
    """A dense llama, qwen2 or gemma3 model with all its tensors."""
    head = head or embedding // heads
    metadata = shape(
        architecture,
        block_count=layers,
        context_length=context_length,
        embedding_length=embedding,
        feed_forward_length=feed_forward,
        attention__head_count=heads,
        attention__head_count_kv=kv_heads,
        attention__key_length=head,
        attention__value_length=head,
        attention__layer_norm_rms_epsilon=1e-5,
        rope__dimension_count=head,
        **keys,
    )
    metadata.update(vocabulary(vocab))
    tensors = [TensorSpec("token_embd.weight", (embedding, vocab), weight_type)]
    tensors.append(TensorSpec("output_norm.weight", (embedding,)))
    if not tied:
        tensors.append(TensorSpec("output.weight", (embedding, vocab), weight_type))
    for index in range(layers):
        block = f"blk.{index}."
        matrices = {
            "attn_q": (embedding, heads * head),
            "attn_k": (embedding, kv_heads * head),
            "attn_v": (embedding, kv_heads * head),
            "attn_output": (heads * head, embedding),
            "ffn_gate": (embedding, feed_forward),
            "ffn_up": (embedding, feed_forward),
            "ffn_down": (feed_forward, embedding),
        }
        tensors += [TensorSpec(f"{block}{name}.weight", size, weight_type) for name, size in matrices.items()]
        norms = ["attn_norm", "ffn_norm"]
        if architecture == "gemma3":
            norms += ["post_attention_norm", "post_ffw_norm"]
            tensors += [TensorSpec(f"{block}{name}.weight", (head,)) for name in ("attn_q_norm", "attn_k_norm")]
        tensors += [TensorSpec(f"{block}{name}.weight", (embedding,)) for name in norms]
        if architecture == "qwen2":
            for name, size in (("attn_q", heads * head), ("attn_k", kv_heads * head), ("attn_v", kv_heads * head)):
                tensors.append(TensorSpec(f"{block}{name}.bias", (size,)))
    return GgufWriter(metadata, tensors)
