"""The buffer sizes that llama.cpp prints while it loads a model.

Sizes are printed with two decimals in MiB (called MB before 2024): a byte count read from them is exact to 0.005 MiB.
With fitting on, the lines come twice, first as a projection: the last set counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_MIB = 1024 * 1024
_SIZE = r"(?P<size>\d+(?:\.\d+)?)\s*(?P<unit>[KMG]i?B)\b"
_UNITS = {"K": 1024, "M": _MIB, "G": 1024 * _MIB}
_BUFFER = re.compile(
    # Before 2024-03 the loader's lines lack the word: `llm_load_tensors: CPU buffer size`.
    r"(?:load_tensors:\s+(?P<loaded>[\w./+-]+)|(?P<where>[\w./:+-]+)\s+(?P<kind>model|KV|RS|compute|output|input))"
    rf"\s+buffer size\s*=\s*{_SIZE}"
)
_UNNAMED_COMPUTE = re.compile(rf"\bcompute buffer total size\s*=\s*{_SIZE}")
_LOAD_BEGINS = re.compile(
    r"llama_model_loader: loaded meta data|load_tensors: loading model tensors|llama_model_load: loading"
)
_DRAFT_BEGINS = re.compile(r"loading draft model|draft model from", re.IGNORECASE)
_FIT_BEGINS = re.compile(r"fitting params to device memory")
_FIT_ENDS = re.compile(r"(?:successfully fit|failed to fit|fitting params to free memory took)")
# Sums that older builds print: used when there are no lines per buffer.
_SUMS = (
    ("kv", re.compile(rf"\bkv self size\s*=\s*{_SIZE}", re.IGNORECASE)),
    ("kv", re.compile(rf"\bmemory_size\s*=\s*{_SIZE}")),
    ("kv", re.compile(rf"\bllama_kv_cache\w*:\s+size\s*=\s*{_SIZE}")),
    ("rs", re.compile(rf"\bllama_memory_recurrent: size\s*=\s*{_SIZE}")),
    ("model", re.compile(rf"\bmodel size\s*=\s*{_SIZE}")),
    ("required", re.compile(rf"\bmem(?:ory)? required\s*=\s*{_SIZE}")),
)
_BREAKDOWN = re.compile(
    r"\|\s*-\s*(?P<where>[^|]+?)\s*\|.*?=\s*(?P<model>\d+)\s*\+\s*(?P<context>\d+)\s*\+\s*(?P<compute>\d+)"
)
_PROMPT_CACHE_LIMIT = re.compile(r"prompt cache is enabled, size limit:\s*(?P<mib>\d+)\s*MiB")
_PROMPT_CACHE_STATE = re.compile(r"cache state:\s*\d+ prompts,\s*(?P<mib>\d+(?:\.\d+)?)\s*MiB")
_CHECKPOINT = re.compile(r"context checkpoint\b.*?\bsize =\s*(?P<mib>\d+(?:\.\d+)?)\s*MiB")
_PEAK = re.compile(r"Maximum resident set size \(kbytes\):\s*(?P<kib>\d+)")


@dataclass(slots=True)
class _Load:
    """The lines of one load. Model and cache lines add up; a compute buffer that is sized again counts once."""

    model: dict[str, list[int]] = field(default_factory=dict)
    cache: dict[str, list[int]] = field(default_factory=dict)
    scratch: dict[str, int] = field(default_factory=dict)
    sums: dict[str, list[int]] = field(default_factory=dict)

    def is_empty(self) -> bool:
        return not (self.model or self.cache or self.scratch or self.sums)


class BufferCollector:
    """Reads buffer sizes from log lines; `document()` gives the figures in bytes, None where nothing was printed."""

    def __init__(self) -> None:
        self._loads: list[_Load] = [_Load()]
        self._fitting = False
        self._add_next = False
        self._extra: dict[str, int | None] = {"prompt_cache_limit_bytes": None, "prompt_cache_bytes": None}
        self._extra |= {"checkpoint_bytes": None, "peak_rss_bytes": None}
        self._breakdown: dict[str, tuple[int, int, int]] = {}

    def line(self, line: str) -> None:
        """Takes what one line says about memory."""
        self._markers(line)
        if "buffer" in line and "size" in line:
            self._buffer(line)
        elif "size" in line or "required" in line:
            self._sum(line)
        if "MiB" in line or "kbytes" in line:
            self._others(line)
        elif row := _BREAKDOWN.search(line):
            self._breakdown[row["where"]] = (int(row["model"]), int(row["context"]), int(row["compute"]))

    def document(self) -> dict[str, int | None]:
        """The sizes in bytes by name."""
        loads = [load for load in self._loads if not load.is_empty()]
        load = loads[-1] if loads else _Load()
        copies = {"REPACK", "AARCH64", "KLEIDIAI", "HBM"}
        plain = [size for where, sizes in load.model.items() if not _is(where, copies) for size in sizes]
        copied = [size for where, sizes in load.model.items() if _is(where, copies) for size in sizes]
        kv = [size for key, sizes in load.cache.items() if key.endswith("KV") for size in sizes]
        figures = {
            "model_bytes": _total(plain) if plain else self._from_sums(load, "model", "required"),
            "repack_bytes": _total(copied),
            "kv_bytes": _total(kv) if kv else self._from_sums(load, "kv"),
            "rs_bytes": _total([size for key, sizes in load.cache.items() if key.endswith("RS") for size in sizes]),
            "compute_bytes": _scratch(load, "compute"),
            "output_bytes": _scratch(load, "output"),
            "input_bytes": _scratch(load, "input"),
        }
        if not any(figures.values()):
            figures |= self._from_breakdown()
        return {**figures, **self._extra}

    def _markers(self, line: str) -> None:
        if _FIT_BEGINS.search(line):
            self._fitting = True
        elif _FIT_ENDS.search(line):
            self._fitting = False
            self._loads[-1] = _Load()
        elif _DRAFT_BEGINS.search(line):
            self._add_next = True
        elif _LOAD_BEGINS.search(line):
            load = self._loads[-1]
            if self._add_next:
                self._add_next = bool(load.model)
            elif load.cache or load.scratch or load.model:
                self._loads.append(_Load())

    def _buffer(self, line: str) -> None:
        match = _BUFFER.search(line)
        if match is None:
            if unnamed := _UNNAMED_COMPUTE.search(line):
                self._loads[-1].scratch["total compute"] = _bytes(unnamed)
            return
        load, kind, size = self._loads[-1], match["kind"] or "model", _bytes(match)
        where = match["where"] or match["loaded"]
        if kind == "model":
            if load.cache or load.scratch:
                # Without a loader's line in between (a lower verbosity) a model line after the cache begins a new load.
                load = _Load()
                self._loads.append(load)
            load.model.setdefault(where, []).append(size)
        elif kind in {"KV", "RS"}:
            load.cache.setdefault(f"{where} {kind}", []).append(size)
        else:
            load.scratch[f"{where} {kind}"] = size

    def _sum(self, line: str) -> None:
        for name, pattern in _SUMS:
            if match := pattern.search(line):
                self._loads[-1].sums.setdefault(name, []).append(_bytes(match))
                return

    def _others(self, line: str) -> None:
        for name, pattern in (
            ("prompt_cache_limit_bytes", _PROMPT_CACHE_LIMIT),
            ("prompt_cache_bytes", _PROMPT_CACHE_STATE),
            ("checkpoint_bytes", _CHECKPOINT),
        ):
            if match := pattern.search(line):
                self._extra[name] = round(float(match["mib"]) * _MIB)
        if peak := _PEAK.search(line):
            self._extra["peak_rss_bytes"] = int(peak["kib"]) * 1024

    @staticmethod
    def _from_sums(load: _Load, *names: str) -> int | None:
        for name in names:
            if sizes := load.sums.get(name):
                return sum(sizes) if name in {"kv", "rs"} else sizes[-1]
        return None

    def _from_breakdown(self) -> dict[str, int | None]:
        """From the table at exit, in whole MiB; context holds KV cache, recurrent state and output rows."""
        if not self._breakdown:
            return {}
        copies = {"REPACK", "AARCH64"}
        plain = [row for where, row in self._breakdown.items() if not _is(where, copies)]
        copied = [row[0] * _MIB for where, row in self._breakdown.items() if _is(where, copies)]
        return {
            "model_bytes": _total([row[0] * _MIB for row in plain]),
            "repack_bytes": _total(copied),
            "kv_bytes": _total([row[1] * _MIB for row in plain]),
            "compute_bytes": _total([row[2] * _MIB for row in plain]),
        }


def _is(where: str, names: set[str]) -> bool:
    return any(name in where.upper() for name in names)


def _bytes(match: re.Match[str]) -> int:
    return round(float(match["size"]) * _UNITS[match["unit"][0]])


def _total(sizes: list[int]) -> int | None:
    return sum(sizes) if sizes else None


def _scratch(load: _Load, kind: str) -> int | None:
    return _total([size for key, size in load.scratch.items() if key.endswith(kind)])
