"""The plan as a document for machines (`--json`)."""

from __future__ import annotations

from typing import Any

from slmguard.plan.estimate import Component, Estimate
from slmguard.plan.model_file import ModelFile
from slmguard.plan.plan import Plan
from slmguard.plan.printable import printable
from slmguard.plan.proposal import Proposal, arithmetic
from slmguard.plan.sizes import MIB, systemd_size


def document(plan: Plan) -> dict[str, Any]:
    """The document; its keys are described in docs/reference/plan.md."""
    settings = plan.asked.settings
    return {
        "model": _model(plan),
        "server": settings.server,
        "cpu": plan.cpu.name,
        "context": settings.context,
        "parallel": settings.parallel,
        "cache_type_k": settings.cache_type_k.name,
        "cache_type_v": settings.cache_type_v.name,
        "limits": {
            "ram_bytes": plan.limits.ram_bytes,
            "memory_high_bytes": plan.limits.memory_high_bytes,
            "memory_max_bytes": plan.limits.memory_max_bytes,
            "budget_bytes": plan.limits.budget_bytes,
            "basis": plan.limits.basis,
        },
        "components": _components(plan.asked),
        "total_bytes": plan.asked.total_bytes,
        "fits": plan.limits.holds(plan.asked.total_bytes),
        "table": [_row(plan, estimate) for estimate in plan.table],
        "bounds": _bounds(plan),
        "proposal": _proposal(plan),
        "warnings": list(plan.warnings),
    }


def _bounds(plan: Plan) -> dict[str, int] | None:
    """For an architecture that is not modelled: the total without a cache, and with a full one."""
    if plan.models.geometry.modelled:
        return None
    total, cache = plan.asked.total_bytes, plan.asked.cache.total
    return {"lower_bytes": total - cache, "upper_bytes": total, "kv_lower_bytes": 0, "kv_upper_bytes": cache}


def _model(plan: Plan) -> dict[str, Any]:
    file, geometry = plan.models.file, plan.models.geometry
    return {
        "path": printable(str(file.path), 4096),
        "name": _name(file),
        "architecture": geometry.architecture,
        "modelled": geometry.modelled,
        "kind": geometry.kind,
        "quantisation": file.quantisation,
        "file_bytes": file.file_bytes,
        "tensor_bytes": sum(part.tensor_bytes for part in file.parts),
        "parts": len(file.parts),
        "gguf_version": file.parts[0].version,
        "byte_order": file.parts[0].byte_order,
        "tensors": len(file.tensors),
        "parameters": file.parameter_count,
        "layers": len(geometry.layers),
        "embedding_length": geometry.embedding,
        "context_trained": geometry.context_trained,
        "vocabulary": geometry.vocabulary,
        "window_tokens": geometry.window_tokens,
    }


def _name(file: ModelFile) -> str | None:
    name = file.metadata.get("general.name")
    return printable(name) if isinstance(name, str) else None


def _components(estimate: Estimate) -> list[dict[str, Any]]:
    return [_component(component) for component in estimate.components]


def _component(component: Component) -> dict[str, Any]:
    return {
        "name": component.name,
        "bytes": component.bytes,
        "reclaimable": component.reclaimable,
        "basis": component.basis,
    }


def _row(plan: Plan, estimate: Estimate) -> dict[str, Any]:
    return {
        "context": estimate.settings.context,
        "kv_bytes": estimate.cache.total,
        "compute_bytes": estimate.bytes_of("compute"),
        "total_bytes": estimate.total_bytes,
        "fits": plan.limits.holds(estimate.total_bytes),
    }


def _proposal(plan: Plan) -> dict[str, Any]:
    proposal = plan.proposal
    found: dict[str, Any] = {"fits": proposal.fits, **_settings(proposal.chosen)}
    found |= {
        "worst_case_bytes": proposal.chosen.total_bytes,
        "budget_bytes": plan.limits.budget_bytes,
        "budget_left_bytes": proposal.budget_left_bytes,
        "memory_high_bytes": plan.limits.memory_high_bytes,
        "memory_max_bytes": plan.limits.memory_max_bytes,
        "memory_high": systemd_size(plan.limits.memory_high_bytes),
        "memory_max": systemd_size(plan.limits.memory_max_bytes),
        "largest_safe_context": proposal.largest_context,
        "largest_safe_parallel": proposal.largest_parallel,
        "savings": list(proposal.savings),
        "components": _components(proposal.chosen),
        "arithmetic": arithmetic(proposal.chosen, plan.limits),
        "flags": list(plan.rendered.flags) if proposal.fits else [],
        "environment": plan.rendered.environment if proposal.fits else {},
    }
    if not proposal.fits:
        found["needed_memory_high_bytes"] = proposal.needed_high_bytes
        found["would_fit"] = _would_fit(proposal)
    return found


def _would_fit(proposal: Proposal) -> dict[str, Any] | None:
    if proposal.would_fit is None:
        return None
    return {**_settings(proposal.would_fit), "worst_case_bytes": proposal.would_fit.total_bytes}


def _settings(estimate: Estimate) -> dict[str, Any]:
    settings = estimate.settings
    return {
        "context": settings.context,
        "parallel": settings.parallel,
        "cache_type_k": settings.cache_type_k.name,
        "cache_type_v": settings.cache_type_v.name,
        "batch": settings.batch,
        "micro_batch": settings.micro_batch,
        "cache_ram_mib": settings.cache_ram_bytes // MIB,
        "ctx_checkpoints": settings.checkpoints,
        "repack": settings.repack,
        "load_mode": settings.load_mode,
    }
