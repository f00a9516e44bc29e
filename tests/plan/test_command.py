"""`slmguard plan` as it is typed."""

# Tables of cases are easier to read with one case a line.
# ruff: noqa: E501

from __future__ import annotations

import json
import re
import shlex
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from slmguard import cli
from slmguard.plan.sizes import MIB
from tests.plan import family_makers
from tests.plan.gguf_writer import GgufWriter
from tests.plan.model_makers import geometry_header, transformer


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A small model with real tensors."""
    writer = transformer("llama", layers=4, embedding=512, feed_forward=1024, heads=8, kv_heads=8, weight_type="q4_0")
    return writer.write(tmp_path / "small model.gguf")


def plan(capsys: pytest.CaptureFixture[str], *arguments: object, exit_code: int = 0) -> dict[str, Any]:
    assert cli.run(["plan", *map(str, arguments), "--json"]) == exit_code
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert cli.run(["plan", *map(str, arguments)]) in {2, 3}
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def test_the_document_has_its_keys_and_its_sums_are_right(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = plan(capsys, model, "--ram", "2G", "--ctx", 2048, "--parallel", 2, "--cpu", "x86-avx2")
    assert {"model", "context", "parallel", "components", "total_bytes", "table", "proposal", "warnings"} <= set(found)
    assert (found["context"], found["parallel"]) == (2048, 2)
    assert found["total_bytes"] == sum(part["bytes"] for part in found["components"])
    assert all({"name", "bytes", "reclaimable", "basis"} == set(part) for part in found["components"])
    kv = next(part["bytes"] for part in found["components"] if part["name"] == "kv")
    assert kv == 4 * 2 * 512 * 2 * 2048
    row = next(row for row in found["table"] if row["context"] == 2048)
    assert (row["kv_bytes"], row["total_bytes"]) == (kv, found["total_bytes"])
    proposal = found["proposal"]
    assert proposal["worst_case_bytes"] * 100 < 85 * proposal["memory_high_bytes"]
    assert proposal["flags"][:4] == ["-m", str(model), "-c", "2048"]


def test_without_a_limit_this_hosts_ram_is_the_limit(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = plan(capsys, model)
    total_kb = int(re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())[1])  # type: ignore[index]
    assert found["limits"]["ram_bytes"] == total_kb * 1024


def test_what_does_not_fit_ends_with_1_and_says_what_would(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = plan(capsys, model, "--high", "100M", "--ctx", 32768, exit_code=1)
    proposal = found["proposal"]
    assert proposal["fits"] is False
    assert proposal["flags"] == []
    assert proposal["needed_memory_high_bytes"] * 85 > proposal["worst_case_bytes"] * 100
    assert cli.run(["plan", str(model), "--high", "100M", "--ctx", "32768"]) == 1
    said = capsys.readouterr().out
    assert "Does not fit: weights_mapped" in said
    assert "What would fit: -c " in said or "No context fits" in said


def test_the_terminal_shows_mib_a_table_and_one_command_line(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["plan", str(model), "--ram", "2G"]) == 0
    said = capsys.readouterr().out
    assert "MiB" in said
    assert "MemoryHigh=1331M MemoryMax=1433M" in said
    command = next(line for line in said.splitlines() if line.lstrip().startswith("llama-server"))
    assert shlex.split(command)[1:3] == ["-m", str(model)]
    assert "--cache-ram 0" in command


def test_the_environment_file_is_what_systemd_reads(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "llama.env"
    target.write_text("old")
    found = plan(capsys, model, "--high", "500M", "--ctx", 1024, "--write-env", target)
    lines = [line for line in target.read_text().splitlines() if not line.startswith("#")]
    variables = {line.split("=", 1)[0]: shlex.split(line.split("=", 1)[1])[0] for line in lines}
    assert variables == found["proposal"]["environment"]
    assert variables["LLAMA_ARG_CTX_SIZE"] == "1024"
    assert variables["LLAMA_ARG_CACHE_RAM"] == "0"
    assert variables["LLAMA_ARG_MODEL"] == str(model)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".llama")] == []


def test_nothing_is_written_when_nothing_fits(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan(capsys, model, "--high", "50M", "--write-env", tmp_path / "llama.env", exit_code=1)
    assert not (tmp_path / "llama.env").exists()
    assert "cannot write" in refused(capsys, model, "--write-env", tmp_path / "none" / "llama.env")


def test_the_edge_configuration_is_honoured(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "edge_llm_config.ini"
    config.write_text(
        "[memory]\nmax_context_tokens = 1024 ; the cap\npreallocate_tensor_pool = true\nmlock = true\nturbo=1\n"
    )
    found = plan(capsys, model, "--high", "500M", "--config", config)
    assert found["context"] == 1024
    assert found["proposal"]["load_mode"] == "mlock"
    assert found["proposal"]["ctx_checkpoints"] == found["proposal"]["cache_ram_mib"] == 0
    assert not any(part["reclaimable"] for part in found["components"])
    assert any("turbo" in warning for warning in found["warnings"])
    assert "above max_context_tokens" in refused(capsys, model, "--config", config, "--ctx", 2048)
    assert cli.run(["plan", str(model), "--high", "60M", "--config", str(config)]) == 1
    assert re.search(r"Does not fit: .* = [\d,]+ MiB; 85 % of MemoryHigh", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max_context_tokens = many", "max_context_tokens = many"),
        ("max_context_tokens = -1", "no number of tokens"),
        ("mlock = perhaps", "neither true nor false"),
        ("[a]\nmlock = true\n[b]\nmlock = false", "mlock is set twice"),
        ("what is this", "no INI file"),
    ],
)
def test_a_wrong_edge_configuration_is_named(
    text: str, said: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "c.ini").write_text(text)
    assert said in refused(capsys, model, "--config", tmp_path / "c.ini")


@pytest.mark.parametrize(
    "arguments",
    [["--ram", "much"], ["--ctx", "0"], ["--parallel", "1000"], ["-ctk", "q3_9"], ["--cache-ram", "-1"], ["--ubatch", "0"]],
)  # fmt: skip
def test_wrong_arguments_end_in_one_line(arguments: list[str], model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, model, *arguments).startswith("slmguard plan: ")


def test_a_file_that_is_no_model_ends_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.gguf").write_bytes(b"not a model at all")
    assert "is no sound GGUF file" in refused(capsys, tmp_path / "x.gguf")
    GgufWriter({"general.architecture": "clip"}).write(tmp_path / "clip.gguf")
    assert "give it with --mmproj" in refused(capsys, tmp_path / "clip.gguf")
    GgufWriter({}).write(tmp_path / "none.gguf")
    assert "general.architecture" in refused(capsys, tmp_path / "none.gguf")


def test_an_unknown_architecture_is_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = geometry_header("hyperbrain", layers=4, kv_heads=2, head=64).write(tmp_path / "h.gguf")
    found = plan(capsys, path, "--ram", "4G")
    assert found["model"]["modelled"] is False
    assert found["bounds"]["lower_bytes"] < found["bounds"]["upper_bytes"] == found["total_bytes"]
    assert any("hyperbrain is not modelled" in warning for warning in found["warnings"])


def test_windows_get_two_checkpoints_and_the_default_is_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = family_makers.gemma4().write(tmp_path / "g.gguf")
    found = plan(capsys, path, "--ram", "4G")
    assert found["proposal"]["ctx_checkpoints"] == 2
    assert any("--ctx-checkpoints" in warning for warning in found["warnings"])


def test_ollama_gets_its_own_variables(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = plan(
        capsys,
        model,
        "--ram",
        "2G",
        "--server",
        "ollama",
        "--ctx",
        4096,
        "--parallel",
        2,
        "-ctk",
        "q8_0",
        "-ctv",
        "q8_0",
    )
    environment = found["proposal"]["environment"]
    assert environment["OLLAMA_CONTEXT_LENGTH"] == "2048"
    assert environment["OLLAMA_KV_CACHE_TYPE"] == "q8_0"
    assert environment["LLAMA_ARG_CACHE_RAM"] == "0"


def test_rkllm_is_said_to_be_derived_and_invisible_to_the_cgroup(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = plan(capsys, model, "--ram", "2G", "--server", "rkllm")
    assert any("cgroup limit does not see" in warning for warning in found["warnings"])


HELP = {
    "current": "-c, --ctx-size N\n-lm, --load-mode MODE\n--repack, -nr, --no-repack (env: LLAMA_ARG_REPACK)\n"
    "-cram, --cache-ram N\n-ctxcp, --ctx-checkpoints, --swa-checkpoints N\n-fa, --flash-attn [on|off|auto]\n",
    "2025": "-c, --ctx-size N\n--no-mmap\n--mlock\n-nr, --no-repack (env: LLAMA_ARG_NO_REPACK)\n--swa-checkpoints N\n-fa, --flash-attn\n",
}


@pytest.mark.parametrize("age", HELP)
def test_the_flags_are_those_that_the_binary_knows(
    age: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    binary = tmp_path / "llama-server"
    binary.write_text(f"#!/bin/sh\ncat <<'E'\n{HELP[age]}\nE\n")
    binary.chmod(0o755)
    options = ["--ram", "2G", "--binary", binary, "--no-repack", "--load-mode", "none", "-ctk", "q8_0", "-ctv", "q8_0"]
    found = plan(capsys, model, *options)["proposal"]
    flags, environment = found["flags"], found["environment"]
    if age == "current":
        assert flags[flags.index("--load-mode") + 1] == "none"
        assert flags[flags.index("-fa") + 1] == "on"
        assert environment["LLAMA_ARG_REPACK"] == "0"
        assert "--cache-ram" in flags
    else:
        assert "--no-mmap" in flags
        assert environment["LLAMA_ARG_NO_REPACK"] == "1"
        assert "--cache-ram" not in flags
        assert "--swa-checkpoints" in flags


def test_a_binary_that_is_none_is_named(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "cannot ask" in refused(capsys, model, "--binary", tmp_path / "nothing")
    assert "is it a llama-server?" in refused(capsys, model, "--binary", "/bin/true")


class Links(HTMLParser):
    """Collects what a page would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.fetched += [value or "" for name, value in attrs if name in {"src", "href", "data"}]


def test_the_chart_is_one_page_that_fetches_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = family_makers.gemma4().write(tmp_path / "<b>bold.gguf")
    page = tmp_path / "plan.html"
    plan(capsys, path, "--ram", "1G", "--html", page)
    text = page.read_text()
    links = Links()
    links.feed(text)
    assert links.fetched == []
    assert "script" not in links.tags
    assert "b" not in links.tags
    assert "polygon" in links.tags
    assert text.count('class="limit"') + text.count("Above the drawing") >= 1
    assert "prefers-color-scheme: dark" in text


def test_sizes_are_whole_mib_for_systemd(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    proposal = plan(capsys, model, "--ram", "4G")["proposal"]
    assert int(proposal["memory_high"].removesuffix("M")) == proposal["memory_high_bytes"] // MIB
