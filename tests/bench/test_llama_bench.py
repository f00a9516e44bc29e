"""llama-bench in its five formats."""

# Log lines are quoted whole, as the programs print them.
# ruff: noqa: E501

from __future__ import annotations

import csv
import io
import json

import pytest

from tests.bench.test_timing_formats import runs_of

PP = {"build_commit": "0c1e570", "model_filename": "a, b.gguf", "n_prompt": 512, "n_gen": 0, "n_depth": 0, "avg_ns": 11_533_889_121, "stddev_ns": 5, "avg_ts": 44.39, "stddev_ts": 0.12}  # fmt: skip
TG = {**PP, "n_prompt": 0, "n_gen": 128, "avg_ns": 8_000_000_000, "avg_ts": 16.0}
PG = {**PP, "n_prompt": 512, "n_gen": 128, "avg_ns": 20_000_000_000, "avg_ts": 32.0}
ROWS = [PP, TG, PG]
WITH_SAMPLES = [{**row, "samples_ns": [1, 2, 3], "samples_ts": [44.3, 44.4, 44.5]} for row in ROWS]


def as_csv() -> str:
    out = io.StringIO()
    writer = csv.writer(out, quoting=csv.QUOTE_ALL)
    out.write(",".join(PP) + "\n")
    writer.writerows([list(row.values()) for row in ROWS])
    return out.getvalue()


def as_sql() -> str:
    names = ", ".join(PP)
    inserts = (
        f"INSERT INTO llama_bench ({names}) VALUES ({', '.join(repr(str(value)) for value in row.values())});\n"  # noqa: S608 (no database here)
        for row in ROWS
    )
    return "CREATE TABLE IF NOT EXISTS llama_bench (\n  build_commit TEXT,\n  n_prompt INTEGER\n);\n\n" + "".join(
        inserts
    )


TEXTS = {
    "csv": as_csv(),
    "json": json.dumps(WITH_SAMPLES, indent=2),
    "json in one line": json.dumps(WITH_SAMPLES),
    "jsonl": "".join(json.dumps(row) + "\n" for row in WITH_SAMPLES),
    "sql": as_sql(),
}


@pytest.mark.parametrize("name", TEXTS)
def test_each_format_gives_tokens_time_and_rate_of_each_test(name: str) -> None:
    prefill, decode, both = runs_of("load_backend: loaded CPU backend\n" + TEXTS[name] + "\nbuild: 0c1e570 (1)\n")
    assert (prefill["prefill_tokens"], prefill["prefill_tps"]) == (512, 44.39)
    assert prefill["prefill_ms"] == pytest.approx(11533.889121)
    assert prefill["decode_tokens"] is None
    assert (decode["decode_tokens"], decode["decode_ms"], decode["decode_tps"]) == (128, 8000.0, 16.0)
    assert (both["prefill_tokens"], both["decode_tokens"], both["total_ms"]) == (512, 128, 20000.0)
    assert both["decode_tps"] is None


def test_a_markdown_table_is_read_by_its_column_names() -> None:
    runs = runs_of(
        "| model         |       size |     params | backend | threads |            test |                  t/s |\n"
        "| ------------- | ---------: | ---------: | ------- | ------: | --------------: | -------------------: |\n"
        "| qwen2 1B Q4_0 | 403.20 MiB |   630.17 M | CPU     |       4 |           pp512 |         44.39 ± 0.12 |\n"
        "| qwen2 1B Q4_0 | 403.20 MiB |   630.17 M | CPU     |       4 |   tg128 @ d4096 |         16.01 ± 0.30 |\n"
        "\nbuild: 0c1e570 (1)\n"
    )
    assert [(run["prefill_tokens"], run["prefill_tps"]) for run in runs] == [(512, 44.39), (None, None)]
    assert (runs[1]["decode_tokens"], runs[1]["decode_tps"], runs[1]["decode_ms"]) == (128, 16.01, None)


def test_batched_bench_counts_the_tokens_of_all_sequences() -> None:
    (run,) = runs_of(
        "|    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |      T s |    S t/s |\n"
        "|-------|--------|------|--------|----------|----------|----------|----------|----------|----------|\n"
        "|   128 |     32 |    2 |    320 |    1.280 |   200.00 |    3.200 |    20.00 |    4.480 |    71.43 |\n"
    )
    assert (run["prefill_tokens"], run["decode_tokens"], run["total_ms"]) == (256, 64, 4480.0)


@pytest.mark.parametrize("name", TEXTS)
def test_a_table_cut_anywhere_gives_whole_rows_or_nothing(name: str) -> None:
    whole = runs_of(TEXTS[name])
    for end in range(0, len(TEXTS[name]), 7):
        assert runs_of(TEXTS[name][:end]) == whole[: len(runs_of(TEXTS[name][:end]))]
