"""The memory that a server may use: from the board's RAM or a given MemoryHigh."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from slmguard.core.errors import EnvironmentLacksError, UserError
from slmguard.plan.sizes import mib

# A 4 GB board that also does other work gives the server MemoryHigh=2600M and MemoryMax=2800M: 65 and 70 % of its RAM.
# An 8 GB Orin Nano has 5.2 GB to spare, the same share.
_HIGH_PERCENT = 65
_MAX_PERCENT = 70
# The worst case must stay below this share of MemoryHigh: above it the guard degrades the service.
BUDGET_PERCENT = 85


@dataclass(frozen=True, slots=True)
class Limits:
    """MemoryHigh and MemoryMax in bytes; `ram_bytes` None when only MemoryHigh was given."""

    memory_high_bytes: int
    memory_max_bytes: int
    ram_bytes: int | None
    basis: str

    @property
    def budget_bytes(self) -> int:
        """The demand must stay below this."""
        return self.memory_high_bytes * BUDGET_PERCENT // 100

    def holds(self, demand_bytes: int) -> bool:
        """Whether a worst case of `demand_bytes` is safe."""
        return demand_bytes * 100 < self.memory_high_bytes * BUDGET_PERCENT


def limits_for(ram_bytes: int | None, high_bytes: int | None) -> Limits:
    """The limits from what was given, else from this host's RAM. Raises UserError when they contradict each other."""
    if high_bytes is not None:
        ceiling = high_bytes * _MAX_PERCENT // _HIGH_PERCENT
        if ram_bytes is not None:
            if high_bytes >= ram_bytes:
                raise UserError(
                    f"--high {mib(high_bytes)} is not below --ram {mib(ram_bytes)}: leave room for the system"
                )
            ceiling = min(ceiling, ram_bytes * 95 // 100)
        return Limits(high_bytes, max(ceiling, high_bytes), ram_bytes, "MemoryHigh as given")
    basis = f"{_HIGH_PERCENT} % of the given RAM"
    if ram_bytes is None:
        ram_bytes, basis = host_ram_bytes(), f"{_HIGH_PERCENT} % of this host's RAM"
    return Limits(ram_bytes * _HIGH_PERCENT // 100, ram_bytes * _MAX_PERCENT // 100, ram_bytes, basis)


def host_ram_bytes(meminfo: Path = Path("/proc/meminfo")) -> int:
    """MemTotal of this host. Raises EnvironmentLacksError where there is none."""
    try:
        for line in meminfo.read_text(errors="replace").splitlines():
            if line.startswith("MemTotal:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError) as error:
        raise EnvironmentLacksError(f"cannot read this host's RAM from {meminfo}: {error}; give --ram") from error
    raise EnvironmentLacksError(f"{meminfo} has no MemTotal: give --ram")
