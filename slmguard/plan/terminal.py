"""The plan for people: numbers in MiB, one table, one recommendation."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from slmguard.plan.plan import Plan
from slmguard.plan.printable import printable
from slmguard.plan.proposal import arithmetic
from slmguard.plan.sizes import mib, systemd_size


def lines(plan: Plan) -> Iterator[str]:
    """The report, line by line."""
    yield from _headline(plan)
    yield ""
    yield from _components(plan)
    yield ""
    yield from _table(plan)
    yield ""
    yield from _recommendation(plan)
    for warning in plan.warnings:
        yield f"note: {warning}"


def _headline(plan: Plan) -> Iterator[str]:
    file, geometry = plan.models.file, plan.models.geometry
    parts = f" in {len(file.parts)} parts" if len(file.parts) > 1 else ""
    yield f"{printable(file.path.name)}: {geometry.architecture}, {file.quantisation}, {mib(file.file_bytes)}{parts}"
    yield f"  {len(geometry.layers)} layers, {geometry.kind}; trained for {geometry.context_trained} tokens"
    limits = plan.limits
    ram = f"RAM {mib(limits.ram_bytes)}, " if limits.ram_bytes else ""
    yield (
        f"  {ram}MemoryHigh {mib(limits.memory_high_bytes)} ({limits.basis}), "
        f"worst case must stay below 85 % of it: {mib(limits.budget_bytes)}"
    )


def _components(plan: Plan) -> Iterator[str]:
    settings = plan.asked.settings
    yield (
        f"Demand at -c {settings.context} -np {settings.parallel} "
        f"-ctk {settings.cache_type_k.name} -ctv {settings.cache_type_v.name}:"
    )
    for component in plan.asked.components:
        if component.bytes:
            kept = "reclaimable" if component.reclaimable else "stays"
            yield f"  {component.name:<17}{mib(component.bytes):>12}  {kept:<12}{component.basis}"
    if not plan.models.geometry.modelled:
        lower = plan.asked.total_bytes - plan.asked.cache.total
        yield f"  not modelled: the total is between {mib(lower)} and {mib(plan.asked.total_bytes)}"
    verdict = "fits" if plan.limits.holds(plan.asked.total_bytes) else "does NOT fit"
    yield f"  {'total':<17}{mib(plan.asked.total_bytes):>12}  {verdict}"


def _table(plan: Plan) -> Iterator[str]:
    yield f"  {'context':>8} {'KV':>12} {'compute':>12} {'total':>12}"
    for row in plan.table:
        mark = "fits" if plan.limits.holds(row.total_bytes) else "too large"
        chosen = "  <- asked" if row.settings.context == plan.asked.settings.context else ""
        compute = mib(row.bytes_of("compute"))
        yield (
            f"  {row.settings.context:>8} {mib(row.cache.total):>12} {compute:>12} {mib(row.total_bytes):>12}"
            f"  {mark}{chosen}"
        )


def _recommendation(plan: Plan) -> Iterator[str]:
    proposal = plan.proposal
    if not proposal.fits:
        yield f"Does not fit: {arithmetic(proposal.chosen, plan.limits)}"
        if proposal.would_fit is not None:
            best = proposal.would_fit.settings
            yield (
                f"What would fit: -c {best.context} -np {best.parallel} -ctk {best.cache_type_k.name} "
                f"-ctv {best.cache_type_v.name} -ub {best.micro_batch} ({mib(proposal.would_fit.total_bytes)})"
            )
        else:
            yield "No context fits: take a smaller model or quantisation"
        yield f"What was asked needs MemoryHigh={systemd_size(proposal.needed_high_bytes)} or more"
        return
    chosen = proposal.chosen
    yield (
        f"Recommended: worst case {mib(chosen.total_bytes)}, {mib(proposal.budget_left_bytes)} of the budget left "
        f"(largest safe: -c {proposal.largest_context}, or -np {proposal.largest_parallel} with "
        f"{chosen.settings.context // chosen.settings.parallel} tokens a slot)"
    )
    for saving in proposal.savings:
        yield f"  saves memory: {saving}"
    limits = plan.limits
    yield (
        f"  MemoryHigh={systemd_size(limits.memory_high_bytes)} MemoryMax={systemd_size(limits.memory_max_bytes)}"
        + (" LimitMEMLOCK=infinity" if chosen.settings.load_mode == "mlock" else "")
    )
    if plan.rendered.flags:
        yield f"  {chosen.settings.server} {shlex.join(map(printable, plan.rendered.flags))}"
    elif plan.rendered.environment:
        yield "  " + " ".join(f"{name}={shlex.quote(value)}" for name, value in plan.rendered.environment.items())
