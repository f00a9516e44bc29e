"""Settings as command-line flags and environment variables of a server, by what its binary knows.

The names changed over time (`--no-mmap` became `-lm none`, `--swa-checkpoints` became `--ctx-checkpoints`): a binary is
asked for its `--help`, without one the names of October 2026 are used.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from slmguard.core.errors import EnvironmentLacksError
from slmguard.plan.printable import printable
from slmguard.plan.settings import ServerSettings
from slmguard.plan.sizes import MIB

_HELP_TIMEOUT_S = 20
_HELP_BYTES = 1024 * 1024
_FLAG = re.compile(r"(?<![\w-])(--?[a-z][a-z0-9-]*)")
_VARIABLE = re.compile(r"\bLLAMA_ARG_[A-Z0-9_]+")
_MODERN_FLAGS = frozenset(
    {"--load-mode", "--no-repack", "--cache-ram", "--ctx-checkpoints", "--no-cache-idle-slots", "--flash-attn"}
)
_MODERN_VARIABLES = frozenset({"LLAMA_ARG_LOAD_MODE", "LLAMA_ARG_REPACK"})


@dataclass(frozen=True, slots=True)
class Binary:
    """What a llama-server binary takes. `probed` is False for the assumed names of current builds."""

    flags: frozenset[str] = _MODERN_FLAGS
    variables: frozenset[str] = _MODERN_VARIABLES
    probed: bool = False
    bare_flash_attention: bool = False


@dataclass(frozen=True, slots=True)
class Rendered:
    """Flags without the binary's name, variables, and what the binary cannot do."""

    flags: tuple[str, ...]
    environment: dict[str, str]
    warnings: tuple[str, ...]


def probe(path: Path) -> Binary:
    """Asks a llama-server binary for its options; raises EnvironmentLacksError when it does not answer."""
    try:
        done = subprocess.run(
            [path, "--help"], capture_output=True, timeout=_HELP_TIMEOUT_S, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentLacksError(f"cannot ask {printable(str(path))} for its --help: {error}") from error
    text = (done.stdout + done.stderr)[:_HELP_BYTES].decode(errors="replace")
    flags = frozenset(_FLAG.findall(text))
    if "--ctx-size" not in flags:
        raise EnvironmentLacksError(f"{printable(str(path))} --help names no --ctx-size: is it a llama-server?")
    bare = re.search(r"--flash-attn\s+(?:\[|\{|on|<)", text) is None
    return Binary(flags, frozenset(_VARIABLE.findall(text)), probed=True, bare_flash_attention=bare)


def render(settings: ServerSettings, models: dict[str, Path], binary: Binary) -> Rendered:
    """Flags and variables for `settings`; `models` holds `model` and perhaps `mmproj` and `draft`."""
    if settings.server == "ollama":
        return _ollama(settings)
    if settings.server == "rkllm":
        return Rendered(
            (f"max_context_len={settings.context}",), {}, ("RKLLM takes its settings in code or its demo's arguments",)
        )
    return _llama_server(settings, models, binary)


def _llama_server(settings: ServerSettings, models: dict[str, Path], binary: Binary) -> Rendered:
    rows: list[tuple[list[str], dict[str, str]]] = [
        (["-m", str(models["model"])], {"LLAMA_ARG_MODEL": str(models["model"])}),
        (["-c", str(settings.context)], {"LLAMA_ARG_CTX_SIZE": str(settings.context)}),
        (["-np", str(settings.parallel)], {"LLAMA_ARG_N_PARALLEL": str(settings.parallel)}),
        (["-ctk", settings.cache_type_k.name], {"LLAMA_ARG_CACHE_TYPE_K": settings.cache_type_k.name}),
        (["-ctv", settings.cache_type_v.name], {"LLAMA_ARG_CACHE_TYPE_V": settings.cache_type_v.name}),
        (["-b", str(settings.batch)], {"LLAMA_ARG_BATCH": str(settings.batch)}),
        (["-ub", str(settings.micro_batch)], {"LLAMA_ARG_UBATCH": str(settings.micro_batch)}),
    ]
    if settings.cache_type_v.block_values > 1:
        # A quantised V cache needs flash attention.
        flag = ["-fa"] if binary.bare_flash_attention else ["-fa", "on"]
        rows.append((flag, {"LLAMA_ARG_FLASH_ATTN": "1" if binary.bare_flash_attention else "on"}))
    if settings.unified:
        rows.append((["--kv-unified"], {"LLAMA_ARG_KV_UNIFIED": "1"}))
    if settings.full_window:
        rows.append((["--swa-full"], {"LLAMA_ARG_SWA_FULL": "1"}))
    if "mmproj" in models:
        rows.append((["--mmproj", str(models["mmproj"])], {"LLAMA_ARG_MMPROJ": str(models["mmproj"])}))
    if "draft" in models:
        current = "LLAMA_ARG_SPEC_DRAFT_MODEL" in binary.variables or not binary.probed
        name = "LLAMA_ARG_SPEC_DRAFT_MODEL" if current else "LLAMA_ARG_MODEL_DRAFT"
        rows.append((["-md", str(models["draft"])], {name: str(models["draft"])}))
    warnings: list[str] = []
    rows += [_bounded(settings, binary, warnings), _weights(settings, binary, warnings)]
    flags = tuple(word for words, _ in rows for word in words)
    environment = {name: value for _, variables in rows for name, value in variables.items()}
    return Rendered(flags, environment, tuple(warnings))


def _bounded(settings: ServerSettings, binary: Binary, warnings: list[str]) -> tuple[list[str], dict[str, str]]:
    """The flags that bound what would grow: prompt cache and checkpoints."""
    flags: list[str] = []
    variables: dict[str, str] = {}
    cache_mib = str(settings.cache_ram_bytes // MIB)
    if "--cache-ram" in binary.flags:
        flags += ["--cache-ram", cache_mib]
        variables["LLAMA_ARG_CACHE_RAM"] = cache_mib
    else:
        warnings.append("this binary has no --cache-ram: builds before October 2025 have no RAM prompt cache to bound")
    name = next((flag for flag in ("--ctx-checkpoints", "--swa-checkpoints") if flag in binary.flags), None)
    if name:
        flags += [name, str(settings.checkpoints)]
        modern = name == "--ctx-checkpoints"
        variables["LLAMA_ARG_CTX_CHECKPOINTS" if modern else "LLAMA_ARG_SWA_CHECKPOINTS"] = str(settings.checkpoints)
    else:
        warnings.append("this binary has no --ctx-checkpoints: it makes none, or their number cannot be bounded")
    if settings.cache_ram_bytes == 0 and "--no-cache-idle-slots" in binary.flags:
        flags.append("--no-cache-idle-slots")
        variables["LLAMA_ARG_CACHE_IDLE_SLOTS"] = "0"
    return flags, variables


def _weights(settings: ServerSettings, binary: Binary, warnings: list[str]) -> tuple[list[str], dict[str, str]]:
    """How the weights are loaded."""
    flags: list[str] = []
    variables: dict[str, str] = {}
    if not settings.repack:
        if "--no-repack" in binary.flags:
            flags.append("--no-repack")
            modern = "LLAMA_ARG_REPACK" in binary.variables
            variables["LLAMA_ARG_REPACK" if modern else "LLAMA_ARG_NO_REPACK"] = "0" if modern else "1"
        else:
            warnings.append("this binary has no --no-repack: builds before July 2025 repack only where they must")
    modern = "--load-mode" in binary.flags
    if settings.load_mode == "none":
        flags += ["--load-mode", "none"] if modern else ["--no-mmap"]
        variables["LLAMA_ARG_LOAD_MODE" if modern else "LLAMA_ARG_NO_MMAP"] = "none" if modern else "1"
    elif settings.load_mode == "mlock":
        flags += ["--load-mode", "mmap+mlock"] if modern else ["--mlock"]
        variables["LLAMA_ARG_LOAD_MODE" if modern else "LLAMA_ARG_MLOCK"] = "mmap+mlock" if modern else "1"
    return flags, variables


def _ollama(settings: ServerSettings) -> Rendered:
    """Ollama's own variables, and those that it passes on to the llama-server that it starts."""
    per_slot = settings.context // settings.parallel
    environment = {
        "OLLAMA_CONTEXT_LENGTH": str(per_slot),
        "OLLAMA_NUM_PARALLEL": str(settings.parallel),
        "OLLAMA_KV_CACHE_TYPE": settings.cache_type_k.name,
        "OLLAMA_MAX_LOADED_MODELS": "1",
        "OLLAMA_MAX_QUEUE": "4",
        "LLAMA_ARG_CACHE_RAM": str(settings.cache_ram_bytes // MIB),
        "LLAMA_ARG_CTX_CHECKPOINTS": str(settings.checkpoints),
    }
    if settings.cache_type_v.block_values > 1:
        environment["OLLAMA_FLASH_ATTENTION"] = "1"
    if not settings.repack:
        environment["LLAMA_ARG_REPACK"] = "0"
    if settings.load_mode != "mmap":
        environment["LLAMA_ARG_LOAD_MODE"] = "mmap+mlock" if settings.load_mode == "mlock" else "none"
    warnings: tuple[str, ...] = ()
    if settings.cache_type_k != settings.cache_type_v:
        warnings = ("Ollama has one cache type for keys and values: the keys' is used",)
    return Rendered((), environment, warnings)
