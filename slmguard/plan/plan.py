"""A whole plan: the estimate for what was asked, the table over contexts, the proposal and the warnings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from slmguard.plan.cpu import Cpu
from slmguard.plan.estimate import Estimate, Models, estimate
from slmguard.plan.flags import Binary, Rendered, render
from slmguard.plan.geometry import geometry_of
from slmguard.plan.limits import Limits
from slmguard.plan.model_file import read_model
from slmguard.plan.proposal import Proposal, propose
from slmguard.plan.request import PlanRequest
from slmguard.plan.settings import ServerSettings
from slmguard.plan.warnings import warnings_for

_TABLE_CONTEXTS = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that the command shows."""

    models: Models
    asked: Estimate
    table: tuple[Estimate, ...]
    proposal: Proposal
    rendered: Rendered
    limits: Limits
    cpu: Cpu
    warnings: tuple[str, ...]


def read_models(model: Path, projector: Path | None, draft: Path | None) -> Models:
    """The headers of all files. Raises UserError for the first that is not sound."""
    main = read_model(model)
    draft_file = read_model(draft) if draft else None
    return Models(
        file=main,
        geometry=geometry_of(main),
        projector=read_model(projector) if projector else None,
        draft=draft_file,
        draft_geometry=geometry_of(draft_file) if draft_file else None,
    )


def make_plan(models: Models, request: PlanRequest, limits: Limits, cpu: Cpu, binary: Binary) -> Plan:
    """The plan. Raises UserError when the request cannot be met by any server (a cache type that does not fit)."""
    proposal = propose(models, request, limits, cpu)
    settings = proposal.chosen.settings
    if request.context is not None:
        settings = request.settings(request.context, models.geometry)
    asked = estimate(models, settings, cpu)
    rendered = render(proposal.chosen.settings, _paths(models), binary)
    return Plan(
        models=models,
        asked=asked,
        table=tuple(estimate(models, row, cpu) for row in _rows(models, settings)),
        proposal=proposal,
        rendered=rendered,
        limits=limits,
        cpu=cpu,
        warnings=(*warnings_for(models, asked, request, limits), *rendered.warnings),
    )


def _rows(models: Models, settings: ServerSettings) -> list[ServerSettings]:
    """The settings at the usual contexts up to the trained one, and at the one that was asked for."""
    trained = models.geometry.context_trained or max(settings.context, _TABLE_CONTEXTS[-1])
    contexts = {context for context in _TABLE_CONTEXTS if context <= trained} | {settings.context}
    return [replace(settings, context=context) for context in sorted(contexts)]


def _paths(models: Models) -> dict[str, Path]:
    paths = {"model": models.file.path}
    if models.projector is not None:
        paths["mmproj"] = models.projector.path
    if models.draft is not None:
        paths["draft"] = models.draft.path
    return {name: path.absolute() for name, path in paths.items()}
