"""Small models of the other families, with all tensors, so that llama.cpp loads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.plan.gguf_writer import GgufWriter, TensorSpec, Writable
from tests.plan.model_makers import shape, vocabulary

_VOCAB = 512


def mamba(*, layers: int = 6, embedding: int = 512, state: int = 16, kernel: int = 4) -> GgufWriter:
    """A pure state-space model: no context term at all."""
    inner, rank = 2 * embedding, 32
    metadata = shape(
        "mamba",
        block_count=layers,
        context_length=1_048_576,
        embedding_length=embedding,
        feed_forward_length=0,
        attention__head_count=0,
        attention__layer_norm_rms_epsilon=1e-5,
        ssm__conv_kernel=kernel,
        ssm__inner_size=inner,
        ssm__state_size=state,
        ssm__time_step_rank=rank,
    )
    block = {
        "attn_norm.weight": (embedding,),
        "ssm_in.weight": (embedding, 2 * inner),
        "ssm_conv1d.weight": (kernel, inner),
        "ssm_conv1d.bias": (inner,),
        "ssm_x.weight": (inner, rank + 2 * state),
        "ssm_dt.weight": (rank, inner),
        "ssm_dt.bias": (inner,),
        "ssm_a": (state, inner),
        "ssm_d": (inner,),
        "ssm_out.weight": (inner, embedding),
    }
    return _model(metadata, embedding, [block] * layers)


def deepseek2(*, embedding: int = 256, heads: int = 4, rank: int = 128, rope: int = 32, nope: int = 64) -> GgufWriter:
    """Latent attention: one compressed key per token, no values. 26 layers make it a `lite` model."""
    layers, feed_forward, value = 26, 512, 64
    metadata = shape(
        "deepseek2",
        block_count=layers,
        context_length=32768,
        embedding_length=embedding,
        feed_forward_length=feed_forward,
        leading_dense_block_count=layers,
        expert_feed_forward_length=128,
        expert_shared_count=1,
        expert_weights_scale=1.0,
        attention__head_count=heads,
        attention__head_count_kv=1,
        attention__kv_lora_rank=rank,
        attention__key_length=rank + rope,
        attention__value_length=rank,
        attention__key_length_mla=nope + rope,
        attention__value_length_mla=value,
        attention__layer_norm_rms_epsilon=1e-5,
        rope__dimension_count=rope,
    )
    block = {
        "attn_norm.weight": (embedding,),
        "attn_q.weight": (embedding, heads * (nope + rope)),
        "attn_kv_a_norm.weight": (rank,),
        "attn_kv_a_mqa.weight": (embedding, rank + rope),
        "attn_k_b.weight": (nope, rank, heads),
        "attn_v_b.weight": (rank, value, heads),
        "attn_output.weight": (heads * value, embedding),
        **_dense(embedding, feed_forward),
    }
    return _model(metadata, embedding, [block] * layers)


def lfm2(*, embedding: int = 512, heads: int = 8, kv_heads: int = 2) -> GgufWriter:
    """A hybrid: short convolutions in most layers, attention in every third."""
    layers, feed_forward, kernel = 9, 1024, 3
    attention = [index % 3 == 2 for index in range(layers)]
    head = embedding // heads
    metadata = shape(
        "lfm2",
        block_count=layers,
        context_length=32768,
        embedding_length=embedding,
        feed_forward_length=feed_forward,
        attention__head_count=heads,
        attention__head_count_kv=[kv_heads if attends else 0 for attends in attention],
        attention__layer_norm_rms_epsilon=1e-5,
        shortconv__l_cache=kernel,
    )
    dense = {"attn_norm.weight": (embedding,), **_dense(embedding, feed_forward)}
    attends = {
        **dense,
        "attn_q_norm.weight": (head,),
        "attn_k_norm.weight": (head,),
        "attn_q.weight": (embedding, embedding),
        "attn_k.weight": (embedding, kv_heads * head),
        "attn_v.weight": (embedding, kv_heads * head),
        "attn_output.weight": (embedding, embedding),
    }
    convolves = {
        **dense,
        "shortconv.conv.weight": (kernel, embedding),
        "shortconv.in_proj.weight": (embedding, 3 * embedding),
        "shortconv.out_proj.weight": (embedding, embedding),
    }
    blocks = [attends if flag else convolves for flag in attention]
    return _model(metadata, embedding, blocks, output_norm="token_embd_norm.weight")


def gemma4(*, embedding: int = 256, layers: int = 12, shared: int = 4) -> GgufWriter:
    """Sliding windows with their own head size, and layers at the end that share the cache of earlier ones."""
    heads, kv_heads, head, head_window, feed_forward = 4, 1, 128, 64, 512
    window = [index % 4 != 3 for index in range(layers)]
    metadata = shape(
        "gemma4",
        block_count=layers,
        context_length=32768,
        embedding_length=embedding,
        embedding_length_per_layer_input=0,
        feed_forward_length=feed_forward,
        attention__head_count=heads,
        attention__head_count_kv=kv_heads,
        attention__key_length=head,
        attention__value_length=head,
        attention__key_length_swa=head_window,
        attention__value_length_swa=head_window,
        attention__sliding_window=512,
        attention__sliding_window_pattern=window,
        attention__shared_kv_layers=shared,
        attention__layer_norm_rms_epsilon=1e-5,
        rope__dimension_count=head,
        rope__dimension_count_swa=head_window,
    )
    blocks = []
    for sliding in window:
        size = head_window if sliding else head
        blocks.append(
            {
                "attn_norm.weight": (embedding,),
                "attn_q.weight": (embedding, heads * size),
                "attn_k.weight": (embedding, kv_heads * size),
                "attn_v.weight": (embedding, kv_heads * size),
                "attn_output.weight": (heads * size, embedding),
                "attn_q_norm.weight": (size,),
                "attn_k_norm.weight": (size,),
                "post_attention_norm.weight": (embedding,),
                "post_ffw_norm.weight": (embedding,),
                **_dense(embedding, feed_forward),
            }
        )
    model = _model(metadata, embedding, blocks)
    model.tensors.append(TensorSpec("rope_freqs.weight", (head // 2,)))
    return model


def qwen3moe(*, layers: int = 6, embedding: int = 512, experts: int = 16, used: int = 4) -> GgufWriter:
    """A mixture of experts with grouped-query attention."""
    heads, kv_heads, head, expert_width = 8, 2, 64, 256
    metadata = shape(
        "qwen3moe",
        block_count=layers,
        context_length=32768,
        embedding_length=embedding,
        feed_forward_length=1024,
        expert_feed_forward_length=expert_width,
        expert_count=experts,
        expert_used_count=used,
        attention__head_count=heads,
        attention__head_count_kv=kv_heads,
        attention__key_length=head,
        attention__value_length=head,
        attention__layer_norm_rms_epsilon=1e-5,
    )
    block = {
        "attn_norm.weight": (embedding,),
        "attn_q.weight": (embedding, heads * head),
        "attn_k.weight": (embedding, kv_heads * head),
        "attn_v.weight": (embedding, kv_heads * head),
        "attn_output.weight": (heads * head, embedding),
        "attn_q_norm.weight": (head,),
        "attn_k_norm.weight": (head,),
        "ffn_norm.weight": (embedding,),
        "ffn_gate_inp.weight": (embedding, experts),
        "ffn_gate_exps.weight": (embedding, expert_width, experts),
        "ffn_up_exps.weight": (embedding, expert_width, experts),
        "ffn_down_exps.weight": (expert_width, embedding, experts),
    }
    return _model(metadata, embedding, [block] * layers, weight_type="q4_0")


def _dense(embedding: int, feed_forward: int) -> dict[str, Sequence[int]]:
    return {
        "ffn_norm.weight": (embedding,),
        "ffn_gate.weight": (embedding, feed_forward),
        "ffn_up.weight": (embedding, feed_forward),
        "ffn_down.weight": (feed_forward, embedding),
    }


def _model(
    metadata: dict[str, Writable],
    embedding: int,
    blocks: Sequence[Mapping[str, Sequence[int]]],
    *,
    output_norm: str = "output_norm.weight",
    weight_type: str = "q8_0",
) -> GgufWriter:
    tensors = [TensorSpec("token_embd.weight", (embedding, _VOCAB), weight_type), TensorSpec(output_norm, (embedding,))]
    for index, block in enumerate(blocks):
        for name, size in block.items():
            quantised = len(size) > 1 and not any(word in name for word in ("conv", "ssm_a", "ssm_dt", "gate_inp"))
            tensors.append(TensorSpec(f"blk.{index}.{name}", size, weight_type if quantised else "f32"))
    return GgufWriter({**metadata, **vocabulary(_VOCAB)}, tensors)
