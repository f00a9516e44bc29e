"""Buffer sizes as llama.cpp printed them over the years."""

# Log lines are quoted whole, as the programs print them.
# ruff: noqa: E501, ISC004

from __future__ import annotations

import io
from typing import Any

import pytest

from slmguard.bench.saved_output import SavedOutput

MIB = 1024 * 1024
LOADS: dict[str, tuple[str, dict[str, float]]] = {
    "2023, sums only": (
        "llama_model_load_internal: mem required  = 5407.71 MB (+ 1026.00 MB per state)\n"
        "llama_init_from_file: kv self size  =  256.00 MB\n",
        {"model": 5407.71, "kv": 256.0},
    ),
    "2023, model size": (
        "llama_model_load: memory_size =   512.00 MB, n_mem = 16384\nllama_model_load: model size =  4017.27 MB / num tensors = 291\n",
        {"model": 4017.27, "kv": 512.0},
    ),
    "2024": (
        "llm_load_tensors:        CPU model buffer size =  3891.24 MiB\n"
        "llama_kv_cache_init:        CPU KV buffer size =  1024.00 MiB\n"
        "llama_new_context_with_model: KV self size  = 1024.00 MiB, K (f16):  512.00 MiB, V (f16):  512.00 MiB\n"
        "llama_new_context_with_model:        CPU  output buffer size =     0.12 MiB\n"
        "llama_new_context_with_model:        CPU compute buffer size =   160.00 MiB\n",
        {"model": 3891.24, "kv": 1024.0, "compute": 160.0, "output": 0.12},
    ),
    "early 2024, without the word model": (
        "llm_load_tensors:        CPU buffer size =  3891.24 MiB\nllama_kv_cache_init:        CPU KV buffer size =  1024.00 MiB\n"
        "llama_new_context_with_model:        CPU input buffer size   =    13.01 MiB\n",
        {"model": 3891.24, "kv": 1024.0, "input": 13.01},
    ),
    "2024-11, repacked for ARM": (
        "load_tensors:  CPU_AARCH64 model buffer size =   702.84 MiB\nload_tensors:   CPU_Mapped model buffer size =   878.60 MiB\n",
        {"model": 878.6, "repack": 702.84},
    ),
    "late 2026, many mapped parts and a window's cache": (
        "0.01.446.706 I load_tensors:   CPU_Mapped model buffer size =   100.00 MiB\n"
        "0.01.446.707 I load_tensors:   CPU_Mapped model buffer size =   135.16 MiB\n"
        "0.01.446.708 I load_tensors:   CPU_REPACK model buffer size =    12.66 MiB\n"
        "0.01.446.709 I llama_context:        CPU  output buffer size =     1.00 MiB\n"
        "0.01.446.710 I llama_kv_cache:        CPU KV buffer size =    24.00 MiB\n"
        "0.01.446.711 I llama_kv_cache: size =   24.00 MiB (  8192 cells,   3 layers,  1/1 seqs), K (f16):   12.00 MiB, V (f16):   12.00 MiB\n"
        "0.01.446.712 I llama_kv_cache:        CPU KV buffer size =    15.00 MiB\n"
        "0.01.446.713 I sched_reserve:        CPU compute buffer size =    27.28 MiB\n",
        {"model": 235.16, "repack": 12.66, "kv": 39.0, "compute": 27.28, "output": 1.0},
    ),
    "fitting first, without markers": (
        "load_tensors:          CPU model buffer size =     0.00 MiB\nllama_kv_cache:        CPU KV buffer size =     0.00 MiB\n"
        "sched_reserve:        CPU compute buffer size =    16.64 MiB\n"
        "load_tensors:   CPU_Mapped model buffer size =    92.10 MiB\nllama_kv_cache:        CPU KV buffer size =    45.00 MiB\n"
        "sched_reserve:        CPU compute buffer size =    16.64 MiB\n",
        {"model": 92.1, "kv": 45.0, "compute": 16.64},
    ),
    "recurrent state": ("llama_memory_recurrent:        CPU RS buffer size =    10.50 MiB\n", {"rs": 10.5}),
    "two devices": (
        "load_tensors:        CUDA0 model buffer size =  1000.00 MiB\nload_tensors:   CPU_Mapped model buffer size =   100.00 MiB\n"
        "llama_context:  CUDA_Host  output buffer size =     0.58 MiB\nllama_kv_cache:      CUDA0 KV buffer size =   112.00 MiB\n"
        "sched_reserve:      CUDA0 compute buffer size =   300.00 MiB\nsched_reserve:  CUDA_Host compute buffer size =    12.00 MiB\n",
        {"model": 1100.0, "kv": 112.0, "compute": 312.0, "output": 0.58},
    ),
    "the table at exit alone": (
        "common_memory_breakdown_print: | memory breakdown [MiB] | total   free    self   model   context   compute    unaccounted |\n"
        "common_memory_breakdown_print: |   - Host               |                  153 =    92 +      45 +      16                |\n"
        "common_memory_breakdown_print: |   - CPU_REPACK         |                  702 =   702 +       0 +       0                |\n",
        {"model": 92.0, "kv": 45.0, "compute": 16.0, "repack": 702.0},
    ),
}


def document_of(text: str) -> dict[str, Any]:
    output = SavedOutput()
    output.read(io.BytesIO(text.encode()))
    return output.document()


@pytest.mark.parametrize("name", LOADS)
def test_buffers_of_every_era_are_read_and_the_rest_is_null(name: str) -> None:
    text, expected = LOADS[name]
    found = document_of(text)["buffers"]
    for key in ("model", "repack", "kv", "rs", "compute", "output", "input"):
        want = expected.get(key)
        assert found[f"{key}_bytes"] == (None if want is None else pytest.approx(want * MIB, abs=1)), key


def test_the_projection_before_the_load_is_not_counted() -> None:
    projection = (
        "common_init_: fitting params to device memory ...\n"
        "load_tensors: loading model tensors, this can take a while... (load_mode = none)\n"
        "load_tensors:          CPU model buffer size =   500.00 MiB\nllama_kv_cache:        CPU KV buffer size =    96.00 MiB\n"
        "sched_reserve:        CPU compute buffer size =   300.25 MiB\ncommon_fit_params: successfully fit params to free device memory\n"
    )
    found = document_of(projection + LOADS["recurrent state"][0])["buffers"]
    assert found["model_bytes"] is None
    assert found["kv_bytes"] is None
    assert found["rs_bytes"] == 10.5 * MIB


def test_the_last_of_several_loads_counts() -> None:
    found = document_of(LOADS["2024"][0] + LOADS["fitting first, without markers"][0])["buffers"]
    assert found["kv_bytes"] == 45 * MIB


def test_growth_that_the_server_logs_is_reported() -> None:
    found = document_of(
        "srv    load_model: prompt cache is enabled, size limit: 8192 MiB\n"
        "srv        update:  - cache state: 27 prompts, 7377.676 MiB (limits: 8192.000 MiB, 8192 tokens, 60000 est)\n"
        "slot update_slots: id  0 | task 5 | created context checkpoint 1 of 32 (pos_min = 0, pos_max = 511, size = 181.782 MiB)\n"
    )["buffers"]
    assert found["prompt_cache_limit_bytes"] == 8192 * MIB
    assert found["prompt_cache_bytes"] == round(7377.676 * MIB)
    assert found["checkpoint_bytes"] == round(181.782 * MIB)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("llama_perf_context_print: load time = 1.00 ms", None),
        ("bash: line 1:   812 Killed                  llama-cli -m m.gguf\n", {"code": None, "signal": "SIGKILL", "reason": None}),
        ("Killed by the frost, they ran out of memory.\nTerminated with honour\n", None),
        ("[1]+  812 Aborted                 (core dumped) llama-cli -m m.gguf\n", {"code": None, "signal": "SIGABRT", "reason": None}),
        ("Killed\n", {"code": None, "signal": "SIGKILL", "reason": None}),
        ("Segmentation fault (core dumped)\n", {"code": None, "signal": "SIGSEGV", "reason": None}),
        ("Command exited with non-zero status 137\n", {"code": 137, "signal": "SIGKILL", "reason": None}),
        ("llama.service: Main process exited, code=killed, status=9/KILL\nllama.service: Failed with result 'oom-kill'.\n", {"code": None, "signal": "SIGKILL", "reason": "out_of_memory"}),
        ("error: invalid argument: --host\n", {"code": None, "signal": None, "reason": "usage"}),
        ("llama_model_load: error loading model: tensor data is not within the file bounds\nexit code: 1\n", {"code": 1, "signal": None, "reason": "model_load_failed"}),
    ],
)  # fmt: skip
def test_the_end_of_the_engine_is_told_when_the_output_tells_it(text: str, expected: object) -> None:
    assert document_of(text)["exit"] == expected
