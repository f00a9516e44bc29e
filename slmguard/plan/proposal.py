"""The recommendation: settings and limits under which the worst case stays below 85 % of MemoryHigh."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from slmguard.core.errors import UserError
from slmguard.plan.cpu import Cpu
from slmguard.plan.estimate import Estimate, Models, estimate
from slmguard.plan.geometry import Geometry
from slmguard.plan.kv_cache import CELL_PADDING
from slmguard.plan.limits import Limits
from slmguard.plan.request import COMFORTABLE_CONTEXT, MAX_PARALLEL, PlanRequest
from slmguard.plan.settings import ServerSettings
from slmguard.plan.sizes import mib
from slmguard.plan.tensor_types import CACHE_TYPES
from slmguard.plan.weights import repacked_bytes

SMALLEST_CONTEXT = 512
# Below this a chat forgets its beginning within minutes; savings are tried before the context goes under it.
_USEFUL_CONTEXT = 4096
_SMALL_MICRO_BATCH = 128
# A proposed context is a number that people recognise.
_ROUND_CONTEXT = 1024


@dataclass(frozen=True, slots=True)
class Proposal:
    """The chosen estimate. When `fits` is False, `chosen` is the most frugal try, and `would_fit` what helps."""

    fits: bool
    chosen: Estimate
    limits: Limits
    savings: tuple[str, ...]
    largest_context: int
    largest_parallel: int
    would_fit: Estimate | None = None

    @property
    def budget_left_bytes(self) -> int:
        """Bytes between the worst case and 85 % of MemoryHigh; negative when it does not fit."""
        return self.limits.budget_bytes - self.chosen.total_bytes

    @property
    def needed_high_bytes(self) -> int:
        """The smallest MemoryHigh, in whole MiB, that would hold the chosen settings."""
        return -(-(self.chosen.total_bytes + 1) * 100 // (85 * 1024 * 1024)) * 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Planner:
    """One search: what is fixed, and the limits."""

    models: Models
    request: PlanRequest
    limits: Limits
    cpu: Cpu

    def estimate(self, settings: ServerSettings) -> Estimate:
        return estimate(self.models, settings, self.cpu)

    def holds(self, settings: ServerSettings) -> bool:
        return self.limits.holds(self.estimate(settings).total_bytes)

    def largest_context(self, settings: ServerSettings, ceiling: int) -> int:
        """The largest context up to `ceiling`, in steps of the padding, that is safe; 0 when none is."""
        step = CELL_PADDING if settings.unified else CELL_PADDING * settings.parallel
        low, high = 0, max(1, ceiling // step)
        while low < high:
            middle = (low + high + 1) // 2
            if self.holds(replace(settings, context=middle * step)):
                low = middle
            else:
                high = middle - 1
        return min(low * step, max(ceiling, step)) if low else 0

    def largest_parallel(self, settings: ServerSettings) -> int:
        """The most slots that are safe when each keeps the context that a slot has now."""
        per_slot = max(CELL_PADDING, settings.context // settings.parallel)
        low, high = 0, MAX_PARALLEL
        while low < high:
            middle = (low + high + 1) // 2
            if self.holds(replace(settings, context=per_slot * middle, parallel=middle)):
                low = middle
            else:
                high = middle - 1
        return low


def propose(models: Models, request: PlanRequest, limits: Limits, cpu: Cpu) -> Proposal:
    """The first settings, in the order of what they cost the user, that are safe."""
    planner = _Planner(models, request, limits, cpu)
    trained = models.geometry.context_trained or _USEFUL_CONTEXT
    wanted = request.context or min(trained, _USEFUL_CONTEXT)
    variants = list(
        _variants(request.settings(wanted, models.geometry), request, models.geometry, _copies_matter(models, cpu))
    )
    for settings, savings in variants:
        if planner.holds(settings):
            return _chosen(planner, settings, savings, trained)
    settings, savings = variants[-1]
    fallback = planner.largest_context(settings, wanted)
    if request.context is None and fallback >= SMALLEST_CONTEXT:
        return _chosen(planner, replace(settings, context=fallback), savings, trained)
    return Proposal(
        fits=False,
        chosen=planner.estimate(settings),
        limits=limits,
        savings=savings,
        largest_context=fallback,
        largest_parallel=0,
        would_fit=planner.estimate(replace(settings, context=fallback)) if fallback else None,
    )


def _chosen(planner: _Planner, settings: ServerSettings, savings: tuple[str, ...], trained: int) -> Proposal:
    largest = planner.largest_context(settings, trained)
    if planner.request.context is None:
        comfortable = min(largest, COMFORTABLE_CONTEXT) // _ROUND_CONTEXT * _ROUND_CONTEXT
        settings = replace(settings, context=max(settings.context, comfortable))
    return Proposal(
        fits=True,
        chosen=planner.estimate(settings),
        limits=planner.limits,
        savings=savings,
        largest_context=max(largest, settings.context),
        largest_parallel=max(planner.largest_parallel(settings), settings.parallel),
    )


def _copies_matter(models: Models, cpu: Cpu) -> bool:
    """Whether the repacked copies are more than a twentieth of the file."""
    return repacked_bytes(models.file, cpu) * 20 > models.file.file_bytes


def _variants(
    settings: ServerSettings, request: PlanRequest, geometry: Geometry, copies_matter: bool
) -> Iterator[tuple[ServerSettings, tuple[str, ...]]]:
    """The settings as asked, then with more and more savings that were not ruled out by the request."""
    native = request.server != "rkllm"
    may_choose_load = request.load_mode is None and not request.preallocate
    allowed = {
        "load": native and copies_matter and may_choose_load and request.repack is not False,
        "copies": native and copies_matter and not may_choose_load and request.repack is None,
        "cache": native and request.cache_type_k is None and request.cache_type_v is None and _takes_q8_0(geometry),
        "batch": native and request.micro_batch is None and settings.micro_batch > _SMALL_MICRO_BATCH,
        "saved": request.checkpoints is None and settings.checkpoints > 0,
    }
    frugal = ("load", "copies")
    plans = [(), frugal, ("cache",), (*frugal, "cache"), ("batch",), (*frugal, "batch"), (*frugal, "cache", "batch")]
    plans.append((*frugal, "cache", "batch", "saved"))
    seen = set()
    for plan in plans:
        effective = tuple(saving for saving in plan if allowed[saving])
        if effective not in seen:
            seen.add(effective)
            yield _with_savings(settings, effective)


def _with_savings(settings: ServerSettings, savings: tuple[str, ...]) -> tuple[ServerSettings, tuple[str, ...]]:
    reasons = []
    if "load" in savings:
        settings = replace(settings, load_mode="none")
        reasons.append("weights read instead of mapped: only their repacked copy stays; full speed, a slower start")
    if "copies" in savings:
        settings = replace(settings, repack=False)
        reasons.append("no repacked copy of the weights: prompts are processed more slowly")
    if "cache" in savings:
        settings = replace(settings, cache_type_k=CACHE_TYPES["q8_0"], cache_type_v=CACHE_TYPES["q8_0"])
        reasons.append("KV cache in q8_0: 53 % of f16, almost no loss of quality")
    if "batch" in savings:
        settings = replace(settings, micro_batch=_SMALL_MICRO_BATCH, batch=_SMALL_MICRO_BATCH)
        reasons.append(f"batches of {_SMALL_MICRO_BATCH} tokens: a smaller compute buffer, somewhat slower prompts")
    if "saved" in savings:
        settings = replace(settings, checkpoints=0)
        reasons.append("no context checkpoints: a changed conversation is processed again from its start")
    return settings, tuple(reasons)


def _takes_q8_0(geometry: Geometry) -> bool:
    rows = [size for layer in geometry.layers for size in (layer.key_values, layer.value_values)]
    return any(rows) and all(size % CACHE_TYPES["q8_0"].block_values == 0 for size in rows)


def arithmetic(plan: Estimate, limits: Limits) -> str:
    """One line that shows the sum: what is needed, part by part, against what there is."""
    parts = " + ".join(f"{part.name} {mib(part.bytes)}" for part in plan.components if part.bytes)
    return (
        f"{parts} = {mib(plan.total_bytes)}; "
        f"85 % of MemoryHigh {mib(limits.memory_high_bytes)} is {mib(limits.budget_bytes)}"
    )


def not_enough(proposal: Proposal) -> UserError:
    """The error for a caller (a unit's start) that must not go on when the model does not fit."""
    return UserError(f"does not fit: {arithmetic(proposal.chosen, proposal.limits)}", exit_code=1)
