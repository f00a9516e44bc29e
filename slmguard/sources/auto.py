"""Which source to use: the best that this host has, and why not a better one."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from slmguard.core.errors import UserError
from slmguard.sources.base import MemorySource
from slmguard.sources.cgroup import CgroupSource
from slmguard.sources.driver_memory import find_driver_probe
from slmguard.sources.host import HostSource
from slmguard.sources.process_target import ProcessTarget
from slmguard.sources.systemd_unit import UnitView, show_unit, valid_unit_name

PREFERENCES = ("auto", "cgroup", "process", "host")


@dataclass(frozen=True, slots=True)
class SourceWishes:
    """What is to be guarded, as far as it is configured; the bytes are limits for hosts without cgroups."""

    unit: str | None = None
    cgroup_path: str | None = None
    target: ProcessTarget = field(default_factory=ProcessTarget)
    budget_bytes: int | None = None
    max_bytes: int | None = None
    pss_interval_s: float | None = None


@dataclass(frozen=True, slots=True)
class Roots:
    """The directories that sources read below; tests give their own."""

    cgroup: Path = Path("/sys/fs/cgroup")
    proc: Path = Path("/proc")
    sys: Path = Path("/sys")


@dataclass(frozen=True, slots=True)
class Choice:
    """The source, refreshed once, and why the better ones are not available here, a sentence each.

    The sentences are part of the source's `degraded` as well.
    """

    source: MemorySource
    passed_over: tuple[str, ...] = ()


def choose(
    preference: str,
    wishes: SourceWishes,
    *,
    roots: Roots | None = None,
    show: Callable[[str], UnitView] = show_unit,
    clock: Callable[[], float] = time.monotonic,
) -> Choice:
    """The source to use; blocks for some seconds at most, as it asks systemd.

    A preference other than `auto` is kept to, whatever is missing: the source's `degraded` says what. A unit that is
    known but not running still is a cgroup, one to come. Raises UserError for a preference that does not exist or
    one that nothing is configured for, and for an impossible unit name.
    """
    if preference not in PREFERENCES:
        raise UserError(f"source {preference!r} does not exist: one of {', '.join(PREFERENCES)}")
    builder = _Builder(wishes, roots or Roots(), show, clock)
    if preference == "cgroup":
        return Choice(builder.cgroup())
    if preference == "process":
        return Choice(builder.process())
    if preference == "host":
        return Choice(builder.host(()))
    cgroup, without_cgroup = builder.usable_cgroup()
    if cgroup is not None:
        return Choice(cgroup)
    process, without_process = builder.usable_process(without_cgroup)
    if process is not None:
        return Choice(process, without_cgroup)
    passed_over = (*without_cgroup, *without_process)
    return Choice(builder.host(passed_over), passed_over)


@dataclass(frozen=True, slots=True)
class _Builder:
    """Makes each source from the wishes, refreshed."""

    wishes: SourceWishes
    roots: Roots
    show: Callable[[str], UnitView]
    clock: Callable[[], float]

    def cgroup(self) -> CgroupSource:
        unit, path = self.wishes.unit, self.wishes.cgroup_path
        if unit is None and path is None:
            raise UserError(
                "source cgroup needs the unit to guard (or its cgroup path): set one, or choose another source"
            )
        source = CgroupSource(
            valid_unit_name(unit) if unit is not None else str(path),
            cgroup_root=self.roots.cgroup,
            proc_root=self.roots.proc,
            cgroup_path=path,
            show=self.show,
            driver_probe=find_driver_probe(self.roots.sys),
            clock=self.clock,
        )
        source.refresh()
        return source

    def process(self) -> MemorySource:
        return self._process(self._target(), ())

    def _process(self, target: ProcessTarget, passed_over: tuple[str, ...]) -> MemorySource:
        from slmguard.sources.process import ProcessSource  # late: psutil stays out of a daemon that reads a cgroup

        source = ProcessSource(
            target,
            budget_bytes=self.wishes.budget_bytes,
            max_bytes=self.wishes.max_bytes,
            proc_root=self.roots.proc,
            passed_over=passed_over,
            pss_interval_s=self.wishes.pss_interval_s,
            show=self.show,
            driver_probe=find_driver_probe(self.roots.sys),
            clock=self.clock,
        )
        source.refresh()
        return source

    def host(self, passed_over: tuple[str, ...]) -> HostSource:
        return HostSource(
            budget_bytes=self.wishes.budget_bytes,
            passed_over=passed_over,
            proc_root=self.roots.proc,
            cgroup_root=self.roots.cgroup,
        )

    def _target(self) -> ProcessTarget:
        """The configured target, or the unit's main process when none is."""
        target = self.wishes.target
        if not target.named and self.wishes.unit is not None:
            target = ProcessTarget(unit=self.wishes.unit)
        if not target.named:
            raise UserError("source process needs a unit, pid, pid file, command line or port to find the process by")
        return target

    def usable_cgroup(self) -> tuple[MemorySource | None, tuple[str, ...]]:
        if self.wishes.unit is None and self.wishes.cgroup_path is None:
            return None, ("source cgroup: no unit is configured",)
        source = self.cgroup()
        if source.available and source.located:
            return source, ()
        reasons = tuple(f"source cgroup: {note}" for note in source.degraded)
        source.close()
        return None, reasons

    def usable_process(self, passed_over: tuple[str, ...]) -> tuple[MemorySource | None, tuple[str, ...]]:
        try:
            target = self._target()
        except UserError as error:
            return None, (str(error),)
        if self.wishes.budget_bytes is None and self.wishes.max_bytes is None:
            return None, ("source process: no memory budget is configured, so there would be no limit to stay under",)
        return self._process(target, passed_over), ()
