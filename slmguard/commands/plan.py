"""`slmguard plan`: will this model fit, with which flags and limits?"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slmguard.plan.plan import Plan
    from slmguard.plan.request import PlanRequest

HELP = "will this model fit on the board, with which flags and limits?"
DESCRIPTION = """Computes from a GGUF file's header what a server will take: weights (mapped and repacked), KV cache,
compute buffer, checkpoints, prompt cache, projector, draft model and process; then proposes flags, MemoryHigh and
MemoryMax such that the worst case stays below 85 % of MemoryHigh. Without a limit, this host's RAM is the limit."""
EPILOG = """examples:
  slmguard plan model.gguf --ram 4G                        table and recommendation for a 4 GB board
  slmguard plan model.gguf --high 2600M --ctx 4096         does this context fit under MemoryHigh=2600M?
  slmguard plan model.gguf --ram 4G --cpu arm-dotprod      planned on a PC for an RK3588, Orin Nano or Pi 5
  slmguard plan model.gguf --write-env /etc/slmguard/llama.env
  slmguard plan model.gguf --config edge_llm_config.ini    take everything at start, or say why not
  slmguard plan model.gguf --html plan.html                memory against context as a chart

exit codes: 0 it fits, 1 it does not fit, 2 usage or an unsound model file, 3 the environment lacks something
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("model", type=Path, metavar="MODEL.gguf", help="model file, or any part of a split one")
    parser.add_argument("--ram", metavar="SIZE", help="the board's RAM, like 4G (default: this host's)")
    parser.add_argument("--high", metavar="SIZE", help="MemoryHigh of the unit, like 2600M")
    parser.add_argument("--ctx", "-c", type=int, metavar="N", help="context over all slots (default: chosen)")
    parser.add_argument("--parallel", "-np", type=int, metavar="N", help="number of slots (default: 1)")
    parser.add_argument("--cache-type-k", "-ctk", metavar="T", help="type of the cached keys (default: f16)")
    parser.add_argument("--cache-type-v", "-ctv", metavar="T", help="type of the cached values (default: f16)")
    parser.add_argument("--kv-unified", action="store_true", help="all slots share one cache (--kv-unified)")
    parser.add_argument("--swa-full", action="store_true", help="full-size cache for sliding windows (--swa-full)")
    parser.add_argument("--ubatch", "-ub", type=int, metavar="N", help="micro-batch (default: 512)")
    parser.add_argument("--no-repack", action="store_true", help="without repacked copies of the weights")
    parser.add_argument("--load-mode", choices=["mmap", "none", "mlock"], help="how the weights are held")
    parser.add_argument("--cache-ram", type=int, default=0, metavar="MIB", help="prompt cache in MiB (default: 0)")
    parser.add_argument("--ctx-checkpoints", type=int, metavar="N", help="context checkpoints a slot")
    parser.add_argument("--mmproj", type=Path, metavar="FILE", help="multimodal projector")
    parser.add_argument("--draft", "-md", type=Path, metavar="FILE", help="draft model")
    parser.add_argument("--server", choices=["llama-server", "ollama", "rkllm"], default="llama-server")
    parser.add_argument(
        "--cpu",
        choices=["auto", "none", "x86-avx2", "x86-avx512", "arm-dotprod", "arm-i8mm"],
        default="auto",
        help="the CPU that will run it, which decides what is repacked (default: this one's)",
    )
    parser.add_argument("--binary", type=Path, metavar="PATH", help="llama-server binary, asked for the flags it has")
    parser.add_argument("--config", type=Path, metavar="FILE", help="edge_llm_config.ini with caps to honour")
    parser.add_argument(
        "--write-env", type=Path, metavar="FILE", help="write the proposal as a systemd EnvironmentFile"
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a chart of memory against context")
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")


def run(args: argparse.Namespace) -> int:
    """Print the plan; 1 when nothing that was asked fits."""
    from slmguard.plan.document import document
    from slmguard.plan.terminal import lines

    plan = _plan(args)
    if args.html:
        from slmguard.plan.chart import chart_page
        from slmguard.plan.whole_file import write_whole

        write_whole(args.html, chart_page(plan))
    if args.json:
        print(json.dumps(document(plan), indent=2))
    else:
        print("\n".join(lines(plan)))
    if plan.proposal.fits and args.write_env:
        _write_env(plan, args.write_env)
        if not args.json:
            print(f"written: {args.write_env}")
    return 0 if plan.proposal.fits else 1


def _plan(args: argparse.Namespace) -> Plan:
    from slmguard.plan.cpu import CPUS, this_cpu
    from slmguard.plan.flags import Binary, probe
    from slmguard.plan.limits import limits_for
    from slmguard.plan.plan import make_plan, read_models
    from slmguard.plan.sizes import parse_size

    limits = limits_for(parse_size(args.ram) if args.ram else None, parse_size(args.high) if args.high else None)
    request = _request(args)
    cpu = this_cpu() if args.cpu == "auto" else CPUS[args.cpu]
    binary = probe(args.binary) if args.binary else Binary()
    return make_plan(read_models(args.model, args.mmproj, args.draft), request, limits, cpu, binary)


def _request(args: argparse.Namespace) -> PlanRequest:
    from slmguard.core.errors import UserError
    from slmguard.plan.edge_config import EdgeConfig, read_edge_config
    from slmguard.plan.request import PlanRequest, cache_type
    from slmguard.plan.sizes import MIB

    config = read_edge_config(args.config) if args.config else EdgeConfig(None, False, False, ())
    context = args.ctx if args.ctx is not None else config.max_context_tokens
    if args.ctx is not None and config.max_context_tokens is not None and args.ctx > config.max_context_tokens:
        raise UserError(f"--ctx {args.ctx} is above max_context_tokens = {config.max_context_tokens} of {args.config}")
    if not 0 <= args.cache_ram <= 1024 * 1024:
        raise UserError(f"--cache-ram {args.cache_ram}: give 0 or more MiB; without a bound it fills the board")
    return PlanRequest(
        context=context,
        parallel=args.parallel,
        cache_type_k=cache_type(args.cache_type_k) if args.cache_type_k else None,
        cache_type_v=cache_type(args.cache_type_v) if args.cache_type_v else None,
        unified=args.kv_unified,
        micro_batch=args.ubatch,
        repack=False if args.no_repack else None,
        load_mode=args.load_mode or ("mlock" if config.mlock else None),
        cache_ram_bytes=args.cache_ram * MIB,
        checkpoints=args.ctx_checkpoints,
        full_window=args.swa_full,
        server=args.server,
        preallocate=config.preallocate_tensor_pool,
        unused_keys=config.unknown,
    )


def _write_env(plan: Plan, path: Path) -> None:
    from slmguard.plan.env_file import env_text
    from slmguard.plan.sizes import mib, systemd_size
    from slmguard.plan.whole_file import write_whole

    limits = plan.limits
    comments = [
        f"slmguard plan {plan.models.file.path.name}: worst case {mib(plan.proposal.chosen.total_bytes)}",
        f"for MemoryHigh={systemd_size(limits.memory_high_bytes)} MemoryMax={systemd_size(limits.memory_max_bytes)}",
    ]
    write_whole(path, env_text(plan.rendered.environment, comments))
