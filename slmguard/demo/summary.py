"""What a run came to, as a JSON-ready document and as text."""

from __future__ import annotations

from typing import Any

from slmguard.demo.story import Story
from slmguard.demo.watch import HONEST
from slmguard.ui import words
from slmguard.ui.picture import RungRun


def document(story: Story, interrupted: bool, unfinished: int) -> dict[str, Any]:
    """The summary. Times are seconds since the start of the run, latencies are those of served requests."""
    settings = story.settings
    requests = story.requests()
    latencies = sorted(request.seconds for request in requests if request.verdict == "served")
    return {
        "guard": settings.guard,
        "gate": story.gated,
        "interrupted": interrupted,
        "seconds": round(story.elapsed_s(), 1),
        "model": settings.model.name,
        "budget_bytes": settings.budget_bytes,
        "budget_max_bytes": settings.budget_max_bytes,
        "peak_bytes": story.peak_bytes,
        "peak_ratio": round(story.peak_bytes / settings.budget_bytes, 4),
        "lines_crossed": story.lines_crossed(),
        "levels_seen": story.levels_seen(),
        "rungs": [_rung(at_s, run) for at_s, run in story.rungs()],
        "requests": {**story.counts(), "unfinished": unfinished},
        "latency_s": {
            "median": _quantile(latencies, 0.5),
            "p95": _quantile(latencies, 0.95),
            "max": _quantile(latencies, 1.0),
        },
        "tokens": {
            "prompt": sum(request.prompt_tokens for request in requests),
            "completion": sum(request.completion_tokens for request in requests),
        },
        "kills": story.kills,
        "restarts": story.restarts,
        "metrics_url": story.metrics_url or None,
    }


def _rung(at_s: float, run: RungRun) -> dict[str, Any]:
    return {
        "at_s": round(at_s, 1),
        "rung": run.rung,
        "level": run.level,
        "outcome": run.outcome,
        "freed_bytes": run.freed_bytes,
        "seconds": run.seconds,
        "detail": run.detail,
    }


def text(summary: dict[str, Any]) -> str:
    """The summary for people, ending in a newline."""
    requests, tokens, latency = summary["requests"], summary["tokens"], summary["latency_s"]
    guard = "on, gate in front" if summary["gate"] else "on" if summary["guard"] else "OFF"
    kept = "interrupted after" if summary["interrupted"] else "in"
    peak, budget, limit = (words.short_size(summary[key]) for key in ("peak_bytes", "budget_bytes", "budget_max_bytes"))
    asked = f"{requests['served']} served, {requests['failed']} failed, {requests['refused']} told to come back later"
    told = f"median {words.duration(latency['median'])}, longest {words.duration(latency['max'])}"
    lines = [
        f"Summary: guard {guard}, {kept} {words.duration(summary['seconds'])}",
        f"  memory     peak {peak}, {words.percent(summary['peak_ratio'])} of the {budget} budget (kill above {limit})",
        f"  requests   {asked}",
        f"  answers    {tokens['completion']} tokens to {tokens['prompt']} prompt tokens; {told}",
        f"  kills      {summary['kills']}" + (f"   ({HONEST})" if summary["kills"] else ""),
        f"  restarts   {summary['restarts']}",
    ]
    lines += _guard_lines(summary) if summary["guard"] else ["  nothing guarded this run; compare: make demo"]
    return "\n".join(lines) + "\n"


def _guard_lines(summary: dict[str, Any]) -> list[str]:
    levels = " → ".join(summary["levels_seen"]) or "none"
    lines = [f"  levels     {levels}"]
    totals: dict[str, list[int | None]] = {}
    for run in summary["rungs"]:
        totals.setdefault(f"{run['rung']} {run['outcome']}", []).append(run["freed_bytes"])
    for name, each in totals.items():
        rung, outcome = name.split()
        known = [freed for freed in each if freed is not None]
        word = f", {outcome}" if outcome != "ok" else f", freed {words.short_size(sum(known))}" if known else ""
        lines.append(f"  rung       {rung.replace('_', ' ')}: {len(each)} ×{word}")
    if not totals:
        lines.append("  rung       none was needed")
    if summary["metrics_url"]:
        lines.append(f"  metrics    were at {summary['metrics_url']} during the run")
    return lines


def _quantile(values: list[float], share: float) -> float | None:
    return round(values[min(len(values) - 1, int(share * len(values)))], 2) if values else None
