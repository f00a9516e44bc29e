"""How near `slmguard plan` comes to what llama.cpp takes: promised and measured, per model, context, type and slots.

    python benchmarks/plan_accuracy.py MODEL.gguf [MODEL.gguf …] [--made DIR] [--contexts 512,2048,8192] [--json FILE]

Each cell starts a real llama.cpp server (the xllamacpp package) in a process of its own, fills all slots at once with
prompts as long as the slots, and compares: KV cache and recurrent state with the sizes that the engine prints (to its
0.01 MiB), the repacked weights with its CPU_REPACK lines, and the total with VmHWM, which is exact.
`--made DIR` adds small models of the other families (latent, hybrid, recurrent, shared cache, experts, windows).
Exit code 1 when a cache differs or a total is more than 5 % off.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from slmguard.bench.saved_output import SavedOutput
from slmguard.plan.cpu import CPUS
from slmguard.plan.estimate import Estimate, Models, estimate
from slmguard.plan.geometry import geometry_of
from slmguard.plan.model_file import read_model
from slmguard.plan.settings import ServerSettings
from slmguard.plan.tensor_types import CACHE_TYPES

MIB = 1024 * 1024
TOLERATED_RATIO = 0.05
# The engine prints two decimals of MiB, once for each of at most four buffers.
PRINTED_BYTES = 4 * 0.005 * MIB
CELL_TIMEOUT_S = 300
HEAD = (
    f"{'model':28} {'ctx':>6} {'type':>5} {'slots':>5} {'KV MiB':>9} {'printed':>9} {'':>7} "
    f"{'promised':>9} {'peak':>9} {'error':>7}"
)
# xllamacpp's wheel is built for AVX2, whatever this CPU has beyond it.
WHEEL_CPU = "x86-avx2"


@dataclasses.dataclass
class Cell:
    """One configuration, in the child's terms too."""

    model: str
    context: int
    cache_type: str
    parallel: int


@dataclasses.dataclass
class Result:
    """Promised and measured bytes of one cell."""

    cell: Cell
    promised: Estimate
    kv_bytes: int
    repack_bytes: int
    peak_bytes: int

    @property
    def kv_exact(self) -> bool:
        """Whether the cache is what the engine printed."""
        return abs(self.promised.cache.total - self.kv_bytes) <= PRINTED_BYTES

    @property
    def error_ratio(self) -> float:
        """How far the promise is above (or below) the measured peak."""
        return self.promised.total_bytes / self.peak_bytes - 1

    def row(self) -> str:
        """The table's line."""
        cell = self.cell
        return (
            f"{Path(cell.model).stem[:28]:28} {cell.context:>6} {cell.cache_type:>5} {cell.parallel:>5} "
            f"{self.promised.cache.total / MIB:>9.2f} {self.kv_bytes / MIB:>9.2f} "
            f"{'exact' if self.kv_exact else 'DIFFERS':>7} "
            f"{self.promised.total_bytes / MIB:>9.1f} {self.peak_bytes / MIB:>9.1f} {self.error_ratio:>+7.1%}"
        )


def main() -> int:
    """Measure all cells and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL.gguf")
    parser.add_argument("--made", type=Path, metavar="DIR", help="make small models of the other families there")
    parser.add_argument("--contexts", default="512,2048,8192")
    parser.add_argument("--types", default="f16,q8_0")
    parser.add_argument("--slots", default="1,4")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--child", metavar="CELL", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(Cell(**json.loads(args.child)))
    models = [*args.models, *(make_models(args.made) if args.made else [])]
    results = []
    print(HEAD)
    for cell in cells(models, args):
        result = measure(cell)
        if result is not None:
            results.append(result)
            print(result.row(), flush=True)
    worst = max((abs(result.error_ratio) for result in results), default=0.0)
    exact = sum(result.kv_exact for result in results)
    print(f"{exact} of {len(results)} caches exact, largest error of the total {worst:.1%}")
    if args.json:
        args.json.write_text(json.dumps([document(result) for result in results], indent=2))
    return 0 if results and exact == len(results) and worst <= TOLERATED_RATIO else 1


def cells(models: list[str], args: argparse.Namespace) -> list[Cell]:
    """All combinations."""
    return [
        Cell(str(Path(model).resolve()), int(context), cache_type, int(slots))
        for model in models
        for context in args.contexts.split(",")
        for cache_type in args.types.split(",")
        for slots in args.slots.split(",")
    ]


def make_models(folder: Path) -> list[str]:
    """Small models of families that no packaged model covers."""
    from tests.plan import family_makers
    from tests.plan.model_makers import transformer

    folder.mkdir(parents=True, exist_ok=True)
    mha = transformer("llama", layers=8, embedding=768, feed_forward=2048, heads=12, kv_heads=12, vocab=32000)
    makers = {
        "mha-llama-q4_0": transformer(
            "llama", layers=8, embedding=768, feed_forward=2048, heads=12, kv_heads=12, vocab=32000, weight_type="q4_0"
        ),
        "mha-llama-q8_0": mha,
        "latent-deepseek2": family_makers.deepseek2(),
        "hybrid-lfm2": family_makers.lfm2(),
        "recurrent-mamba": family_makers.mamba(),
        "shared-gemma4": family_makers.gemma4(),
        "experts-qwen3moe": family_makers.qwen3moe(),
    }
    return [str(maker.write(folder / f"{name}.gguf")) for name, maker in makers.items()]


def measure(cell: Cell) -> Result | None:
    """One cell, in a child; None (and a line that says so) when the engine did not run."""
    command = [sys.executable, __file__, "--child", json.dumps(dataclasses.asdict(cell))]
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=CELL_TIMEOUT_S, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        print(f"{cell}: no answer within {CELL_TIMEOUT_S} s")
        return None
    output = SavedOutput()
    output.lines(line + "\n" for line in done.stderr.decode(errors="replace").splitlines())
    buffers = output.document()["buffers"]
    if done.returncode != 0 or not done.stdout.strip():
        print(f"{cell}: the engine failed ({done.returncode}): {done.stderr[-300:].decode(errors='replace')}")
        return None
    return Result(
        cell,
        promise(cell),
        (buffers["kv_bytes"] or 0) + (buffers["rs_bytes"] or 0),
        buffers["repack_bytes"] or 0,
        int(done.stdout.split()[-1]),
    )


def promise(cell: Cell) -> Estimate:
    """What the plan says for the cell."""
    file = read_model(Path(cell.model))
    settings = ServerSettings(
        context=cell.context,
        parallel=cell.parallel,
        cache_type_k=CACHE_TYPES[cell.cache_type],
        cache_type_v=CACHE_TYPES[cell.cache_type],
    )
    return estimate(Models(file, geometry_of(file)), settings, CPUS[WHEEL_CPU])


def child(cell: Cell) -> int:
    """Run the server on a loopback port, fill all slots at once, print this process's VmHWM in bytes."""
    import os
    from concurrent.futures import ThreadPoolExecutor

    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = cell.model
    params.n_ctx, params.n_parallel, params.kv_unified = cell.context, cell.parallel, False
    params.cache_type_k = params.cache_type_v = getattr(xllamacpp.ggml_type, f"GGML_TYPE_{cell.cache_type.upper()}")
    params.cache_ram_mib, params.n_ctx_checkpoints = 0, 0
    params.hostnames, params.port, params.verbosity = ["127.0.0.1"], 0, 4
    server = xllamacpp.Server(params)
    slot = -(-cell.context // cell.parallel // 256) * 256
    host = server.listening_address.split("//")[-1].rstrip("/")
    with ThreadPoolExecutor(cell.parallel) as threads:
        answers = list(threads.map(lambda number: ask(host, slot - 24, number), range(cell.parallel)))
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    print(int(fields["VmHWM"].split()[0]) * 1024, flush=True)
    # The server's threads would keep the process; nothing is left to be written.
    os._exit(0 if set(answers) == {200} else 1)


def ask(host: str, tokens: int, number: int) -> int:
    """One request with a prompt of its own; the HTTP status."""
    import http.client

    prompt = [300 + (index * 37 + number * 11) % 200 for index in range(tokens)]
    connection = http.client.HTTPConnection(host, timeout=CELL_TIMEOUT_S)
    body = json.dumps({"prompt": prompt, "n_predict": 8, "ignore_eos": True})
    connection.request("POST", "/completion", body, {"Content-Type": "application/json"})
    return connection.getresponse().status


def document(result: Result) -> dict[str, object]:
    """One cell for a file."""
    return {
        **dataclasses.asdict(result.cell),
        "kv_promised_bytes": result.promised.cache.total,
        "kv_printed_bytes": result.kv_bytes,
        "repack_promised_bytes": result.promised.bytes_of("weights_repacked"),
        "repack_printed_bytes": result.repack_bytes,
        "total_promised_bytes": result.promised.total_bytes,
        "peak_measured_bytes": result.peak_bytes,
    }


if __name__ == "__main__":
    sys.exit(main())
