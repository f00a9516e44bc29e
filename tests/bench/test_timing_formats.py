"""One sample, at least, of every way in which llama.cpp and its servers have printed timings."""

# Log lines are quoted whole, as the programs print them.
# ruff: noqa: E501, ISC004

from __future__ import annotations

import io
import json
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slmguard.bench.saved_output import SavedOutput

Expected = dict[str, float | int | None]
V3 = (
    "llama_print_timings:        load time =    1234.56 ms\n"
    "llama_print_timings:      sample time =       2.56 ms /   112 runs   (    0.02 ms per token, 43750.00 tokens per second)\n"
    "llama_print_timings: prompt eval time =    4089.11 ms /   118 tokens (   34.65 ms per token,    28.86 tokens per second)\n"
    "llama_print_timings:        eval time =   10231.19 ms /   255 runs   (   40.12 ms per token,    24.92 tokens per second)\n"
    "llama_print_timings:       total time =   14400.04 ms /   373 tokens\n"
)
V3_FIGURES: Expected = {
    "load_ms": 1234.56, "prefill_ms": 4089.11, "prefill_tokens": 118, "prefill_tps": 28.86,
    "decode_ms": 10231.19, "decode_tokens": 255, "decode_tps": 24.92, "total_ms": 14400.04,
}  # fmt: skip

FORMATS: dict[str, tuple[str, Expected]] = {
    "main of March 2023": (
        "main: mem per token = 14434244 bytes\nmain:     load time =  1221.41 ms\nmain:   sample time =    93.36 ms\n"
        "main:  predict time = 26520.15 ms / 95.05 ms per token\nmain:    total time = 28107.56 ms\n",
        {"load_ms": 1221.41, "decode_ms": 26520.15, "decode_tps": 1000 / 95.05, "total_ms": 28107.56},
    ),
    "llama_print_timings, first form": (
        "llama_print_timings:     load time =  1221.41 ms\n"
        "llama_print_timings:   sample time =    93.36 ms /   127 runs   (    0.74 ms per run)\n"
        "llama_print_timings:     eval time =  8162.03 ms /   127 runs (   64.27 ms per run)\n"
        "llama_print_timings:    total time = 10231.07 ms\n",
        {"load_ms": 1221.41, "decode_ms": 8162.03, "decode_tokens": 127, "decode_tps": 127 / 8.16203, "total_ms": 10231.07},
    ),
    "llama_print_timings, second form": (
        "llama_print_timings: prompt eval time =  1473.93 ms /    21 tokens (   70.19 ms per token)\n"
        "llama_print_timings:        eval time =  8162.03 ms /   127 runs   (   64.27 ms per run)\n",
        {
            "prefill_ms": 1473.93, "prefill_tokens": 21, "prefill_tps": 21 / 1.47393,
            "decode_ms": 8162.03, "decode_tokens": 127, "decode_tps": 127 / 8.16203,
        },
    ),
    "llama_print_timings, third form": (V3, V3_FIGURES),
    "llama_perf_print, for a week in 2024": (V3.replace("llama_print_timings", "llama_perf_print"), V3_FIGURES),
    "llama_perf_context_print": (
        "llama_perf_sampler_print:    sampling time =      12.34 ms /   300 runs   (    0.04 ms per token, 24311.18 tokens per second)\n"
        + V3.replace("llama_print_timings", "llama_perf_context_print").replace("     sample time", "graphs reused x")
        + "llama_perf_context_print:    graphs reused =        246\n",
        V3_FIGURES,
    ),
    "common_perf_print": (
        "common_perf_print:    sampling time =      25.00 ms\n"
        "common_perf_print:    samplers time =      11.00 ms /   300 tokens\n"
        "common_perf_print:        load time =     250.00 ms\n"
        "common_perf_print: prompt eval time =     300.12 ms /    21 tokens (   14.29 ms per token,    69.97 tokens per second)\n"
        "common_perf_print:        eval time =   10231.19 ms /   255 runs   (   40.12 ms per token,    24.92 tokens per second)\n"
        "common_perf_print:       total time =   10600.00 ms /   276 tokens\n"
        "common_perf_print: unaccounted time =       1.23 ms /   0.0 %      (total - sampling - prompt eval - eval) / (total)\n"
        "common_perf_print:    graphs reused =        246\n",
        {
            "load_ms": 250.0, "prefill_ms": 300.12, "prefill_tokens": 21, "prefill_tps": 69.97,
            "decode_ms": 10231.19, "decode_tokens": 255, "decode_tps": 24.92, "total_ms": 10600.0,
        },
    ),
    "the chat client llama-cli": (
        "\x1b[32m> hello\x1b[0m\nHi!\n\n[ Prompt: 69.9 t/s | Generation: 24.9 t/s ]\n",
        {"prefill_tps": 69.9, "decode_tps": 24.9},
    ),
    "the server's JSON log": (
        '{"tid":"1","timestamp":1712000000,"level":"INFO","function":"print_timings","line":313,'
        '"msg":"prompt eval time     =    4089.11 ms /   118 tokens (   34.65 ms per token,    28.86 tokens per second)",'
        '"id_slot":0,"id_task":0,"t_prompt_processing":4089.11}\n'
        '{"tid":"1","timestamp":1712000000,"level":"INFO","function":"print_timings","line":327,'
        '"message":"generation eval time =   10231.19 ms /   255 runs   (   40.12 ms per token,    24.92 tokens per second)"}\n'
        '{"function":"print_timings","level":"INFO","line":337,"message":"          total time =   14320.30 ms"}\n',
        {**V3_FIGURES, "load_ms": None, "total_ms": 14320.30},
    ),
    "the server of 2024 to mid-2026": (
        "slot print_timing: id  0 | task 2 | \n"
        "prompt eval time =    4089.11 ms /   118 tokens (   34.65 ms per token,    28.86 tokens per second)\n"
        "       eval time =   10231.19 ms /   255 tokens (   40.12 ms per token,    24.92 tokens per second)\n"
        "      total time =   14320.30 ms /   373 tokens\n"
        "slot      release: id  0 | task 2 | stop processing: n_past = 372, truncated = 0\n",
        {**V3_FIGURES, "load_ms": None, "total_ms": 14320.30},
    ),
    "the server of late 2026": (
        "0.42.227.764 I slot print_timing: id  0 | task 2 | prompt eval time =     300.12 ms /    21 tokens (   14.29 ms per token,    69.97 tokens per second)\n"
        "0.42.227.766 I slot print_timing: id  0 | task 2 |        eval time =   10231.19 ms /   255 tokens (   40.12 ms per token,    24.92 tokens per second)\n"
        "0.42.227.768 I slot print_timing: id  0 | task 2 |       total time =   10531.31 ms /   276 tokens\n"
        "0.42.227.768 I slot print_timing: id  0 | task 2 |    graphs reused =        246\n"
        "0.42.227.769 I slot print_timing: id  0 | task 2 | draft acceptance = 0.61234 (  123 accepted /   200 generated), mean len =  2.84\n",
        {
            "prefill_ms": 300.12, "prefill_tokens": 21, "prefill_tps": 69.97, "decode_ms": 10231.19,
            "decode_tokens": 255, "decode_tps": 24.92, "total_ms": 10531.31,
        },
    ),
    "the server's log as JSON lines": (
        '{"t":"0.42.227.764","lvl":"I","msg":"slot print_timing: id  0 | task 2 | prompt eval time =     300.12 ms /    21 tokens (   14.29 ms per token,    69.97 tokens per second)\\n"}\n'
        '{"t":"0.42.227.766","lvl":"I","msg":"slot print_timing: id  0 | task 2 |        eval time =   10231.19 ms /   255 tokens (   40.12 ms per token,    24.92 tokens per second)\\n"}\n',
        {"prefill_ms": 300.12, "prefill_tokens": 21, "prefill_tps": 69.97, "decode_ms": 10231.19, "decode_tokens": 255, "decode_tps": 24.92},
    ),
    "a server's reply": (
        '{"content":"Hi","timings":{"cache_n":0,"prompt_n":450,"prompt_ms":1461.816,"prompt_per_token_ms":3.24,'
        '"prompt_per_second":307.836,"predicted_n":16,"predicted_ms":153.317,"predicted_per_second":104.359}}\n',
        {
            "prefill_tokens": 450, "prefill_ms": 1461.816, "prefill_tps": 307.836, "decode_tokens": 16,
            "decode_ms": 153.317, "decode_tps": 104.359,
        },
    ),
    "a streamed reply": (
        'data: {"choices":[{"delta":{"content":"a"}}]}\n\ndata: {"choices":[],"timings":{"prompt_n":5,"prompt_ms":50.0,'
        '"prompt_per_second":100.0,"predicted_n":1,"predicted_ms":0,"predicted_per_second":null}}\n\ndata: [DONE]\n',
        {"prefill_tokens": 5, "prefill_ms": 50.0, "prefill_tps": 100.0, "decode_tokens": 1, "decode_ms": 0.0},
    ),
    "ollama's last chunk": (
        '{"model":"m","done":true,"total_duration":4883583458,"load_duration":1334875,"prompt_eval_count":26,'
        '"prompt_eval_duration":342546000,"eval_count":282,"eval_duration":4535599000}\n',
        {
            "total_ms": 4883.583458, "load_ms": 1.334875, "prefill_tokens": 26, "prefill_ms": 342.546,
            "prefill_tps": 26 / 0.342546, "decode_tokens": 282, "decode_ms": 4535.599, "decode_tps": 282 / 4.535599,
        },
    ),
    "ollama run --verbose": (
        "total duration:       1m2.5s\nload duration:        21.5ms\nprompt eval count:    26 token(s)\n"
        "prompt eval duration: 342.5ms\nprompt eval rate:     75.91 tokens/s\neval count:           282 token(s)\n"
        "eval duration:        4.5s\neval rate:            62.67 tokens/s\n",
        {
            "total_ms": 62500.0, "load_ms": 21.5, "prefill_tokens": 26, "prefill_ms": 342.5, "prefill_tps": 75.91,
            "decode_tokens": 282, "decode_ms": 4500.0, "decode_tps": 62.67,
        },
    ),
    "RKLLM's demo": (
        "I rkllm: --------------------------------------------------------------------------------------\n"
        "I rkllm:  Model init time (ms)  3120.50\n"
        "I rkllm:  Stage         Total Time (ms)  Tokens    Time per Token (ms)      Tokens per Second\n"
        "I rkllm:  Prefill       215.20           21        10.25                    97.58\n"
        "I rkllm:  Generate      9120.00          128       71.25                    14.04\n",
        {
            "load_ms": 3120.5, "prefill_ms": 215.2, "prefill_tokens": 21, "prefill_tps": 97.58, "decode_ms": 9120.0,
            "decode_tokens": 128, "decode_tps": 14.04,
        },
    ),
}  # fmt: skip


def runs_of(text: str | bytes) -> list[dict[str, Any]]:
    output = SavedOutput()
    output.read(io.BytesIO(text if isinstance(text, bytes) else text.encode()))
    found: list[dict[str, Any]] = output.document()["runs"]
    return found


def assert_run(run: dict[str, Any], expected: Expected) -> None:
    for name, value in run.items():
        want = expected.get(name)
        assert value == (None if want is None else pytest.approx(want)), name


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_its_figures_and_null_for_the_rest(name: str) -> None:
    text, expected = FORMATS[name]
    (run,) = runs_of(text)
    assert_run(run, expected)


@pytest.mark.parametrize("name", FORMATS)
def test_carriage_returns_prefixes_and_other_output_change_nothing(name: str) -> None:
    text, expected = FORMATS[name]
    noisy = "building...\r\nload: 10%\rload: 100%\r\n" + text.replace("\n", "\r\nI think that time = money.\r\n")
    (run,) = runs_of(noisy)
    assert_run(run, expected)


@pytest.mark.parametrize("name", [name for name in FORMATS if not name.startswith(("a ", "the server's", "ollama"))])
def test_a_journal_prefix_changes_nothing(name: str) -> None:
    text, expected = FORMATS[name]
    prefixed = "".join(f"Dec 01 04:38:27 board llama-server[812]: {line}\n" for line in text.splitlines())
    (run,) = runs_of(prefixed)
    assert_run(run, expected)


@pytest.mark.parametrize("name", FORMATS)
def test_several_runs_in_one_file_stay_apart(name: str) -> None:
    text, expected = FORMATS[name]
    runs = runs_of(text + "\nsome other line\n" + text.replace("task 2 ", "task 9 ") + text)
    assert len(runs) == 3
    for run in runs:
        assert_run(run, expected)


def test_a_file_cut_at_any_byte_never_gives_a_wrong_figure() -> None:
    for name, (text, expected) in FORMATS.items():
        raw = text.encode()
        for end in range(len(raw)):
            for run in runs_of(raw[:end]):
                for figure, value in run.items():
                    want = expected.get(figure)
                    derived = figure.endswith("_tps") and want is not None
                    assert value is None or value == pytest.approx(want, rel=0.01 if derived else 1e-9), (
                        name,
                        end,
                        figure,
                    )


@pytest.mark.parametrize("word", ["inf", "nan", "-nan", "-inf", "-nan(ind)", "INF"])
def test_figures_that_are_no_numbers_are_null(word: str) -> None:
    (run,) = runs_of(
        f"llama_print_timings: prompt eval time =       0.00 ms /     1 tokens (    0.00 ms per token, {word} tokens per second)\n"
        f"llama_print_timings:        eval time = {word} ms /     0 runs   ({word} ms per token, {word} tokens per second)\n"
        f"llama_print_timings:       total time =   100.00 ms\n"
    )
    assert_run(run, {"prefill_tokens": 1, "prefill_ms": 0.0, "decode_tokens": 0, "total_ms": 100.0})


def test_interleaved_requests_of_two_slots_are_told_apart() -> None:
    lines = [
        "slot print_timing: id  0 | task 2 | prompt eval time =     300.00 ms /    30 tokens (   10.00 ms per token,   100.00 tokens per second)",
        "slot print_timing: id  1 | task 3 | prompt eval time =     400.00 ms /    20 tokens (   20.00 ms per token,    50.00 tokens per second)",
        "slot print_timing: id  0 | task 2 |        eval time =    1000.00 ms /    10 tokens (  100.00 ms per token,    10.00 tokens per second)",
        "slot print_timing: id  1 | task 3 |        eval time =    2000.00 ms /    10 tokens (  200.00 ms per token,     5.00 tokens per second)",
    ]
    first, second = runs_of("\n".join(lines))
    assert (first["prefill_tokens"], first["decode_ms"]) == (30, 1000.0)
    assert (second["prefill_tokens"], second["decode_ms"]) == (20, 2000.0)


def test_a_reply_and_the_log_lines_of_the_same_request_are_one_run() -> None:
    reply = FORMATS["a server's reply"][0]
    log = (
        "slot print_timing: id  0 | task 0 | prompt eval time =    1461.82 ms /   450 tokens (    3.25 ms per token,   307.84 tokens per second)\n"
        "slot print_timing: id  0 | task 0 |        eval time =     153.32 ms /    16 tokens (    9.58 ms per token,   104.36 tokens per second)\n"
    )
    assert len(runs_of(log + reply)) == 1


def test_progress_lines_and_prose_are_no_runs() -> None:
    assert not runs_of(
        "slot print_timing: id  0 | task 2 | prompt processing, n_tokens =   8192, progress = 0.37, t =  11.22 s / 730.41 tokens per second\n"
        "slot print_timing: id  0 | task 2 | n_gen =    300, tg =  24.92 t/s, tg_3s =  25.10 t/s\n"
        "The evaluation time was 3 s. My eval time is short.\n"
    )


def test_a_figure_glued_to_generated_text_is_found() -> None:
    (run,) = runs_of(
        "...and they lived happily.llama_perf_context_print:        eval time =     100.00 ms /    10 runs   (   10.00 ms per token,   100.00 tokens per second)"
    )
    assert_run(run, {"decode_ms": 100.0, "decode_tokens": 10, "decode_tps": 100.0})


def test_a_figure_at_the_end_of_a_long_text_without_line_breaks_is_found() -> None:
    (run,) = runs_of("word " * 40_000 + FORMATS["the chat client llama-cli"][0])
    assert (run["prefill_tps"], run["decode_tps"]) == (69.9, 24.9)


def test_output_of_powershell_in_utf16_is_read() -> None:
    (run,) = runs_of(V3.encode("utf-16"))
    assert_run(run, V3_FIGURES)


@given(st.binary(max_size=400))
def test_no_input_breaks_the_parser(raw: bytes) -> None:
    for text in (raw, b"[\n{" + raw + b"\nllama_print_timings: eval time = " + raw):
        json.dumps(runs_of(text), allow_nan=False)
        assert all(value is None or value >= 0 for run in runs_of(text) for value in run.values())


@given(st.lists(st.sampled_from(sorted(FORMATS)), max_size=4), st.randoms())
def test_pieces_of_all_formats_in_any_order_give_plausible_figures(names: list[str], random: Random) -> None:
    lines = [line for name in names for line in FORMATS[name][0].splitlines(keepends=True)]
    random.shuffle(lines)
    for run in runs_of("".join(lines)):
        assert all(value is None or value >= 0 for value in run.values())
