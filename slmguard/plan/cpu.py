"""Which weights llama.cpp copies into its own layout on a given CPU (`CPU_REPACK` in its log).

From ggml's CPU back-end of October 2026. The copy is anonymous memory beside the mapped file, about as large again:
the difference between 1,137 and 1,833 MiB for a 1.5B model in Q4_0.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# Rows must be a whole number of these for the copy to be made.
_X86_AVX2: Final = {"q4_0": 8, "q4_k": 8, "iq4_nl": 8, "mxfp4": 8}
_X86_AVX512: Final = {**_X86_AVX2, "q2_k": 8}
_ARM_DOTPROD: Final = {"q4_0": 4, "q4_k": 8, "q5_k": 8, "q6_k": 8, "iq4_nl": 4, "mxfp4": 4, "q8_0": 4}


@dataclass(frozen=True, slots=True)
class Cpu:
    """A class of CPUs; `repacked` maps a weight type to the row multiple it needs."""

    name: str
    repacked: dict[str, int]


CPUS: Final[dict[str, Cpu]] = {
    "none": Cpu("none", {}),
    "x86-avx2": Cpu("x86-avx2", _X86_AVX2),
    "x86-avx512": Cpu("x86-avx512", _X86_AVX512),
    "arm-dotprod": Cpu("arm-dotprod", _ARM_DOTPROD),
    "arm-i8mm": Cpu("arm-i8mm", _ARM_DOTPROD),
}


def this_cpu(cpuinfo: Path = Path("/proc/cpuinfo")) -> Cpu:
    """The class of the CPU that this program runs on, `none` when it cannot be told."""
    try:
        words = set(cpuinfo.read_text(errors="replace").split())
    except OSError:
        words = set()
    if platform.machine() in {"aarch64", "arm64"}:
        return CPUS["arm-i8mm" if "i8mm" in words else "arm-dotprod" if "asimddp" in words else "none"]
    if "avx512f" in words:
        return CPUS["x86-avx512"]
    return CPUS["x86-avx2" if "avx2" in words else "none"]
