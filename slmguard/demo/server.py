"""The demo's inference server: llama.cpp's own HTTP server, in a process of its own, on loopback.

    python -m slmguard.demo.server --model FILE.gguf --port N

It behaves like `llama-server` on a board in the two ways that matter here:
- the weights lie in anonymous memory (`--load-mode none`), as they do on ARM boards, where llama.cpp repacks them;
- the RAM prompt cache is as good as unbounded (llama-server's default of 8192 MiB is more than such a board has).
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from pathlib import Path

HOST = "127.0.0.1"


def build_parser() -> argparse.ArgumentParser:
    """The options of the server process."""
    parser = argparse.ArgumentParser(prog="python -m slmguard.demo.server", description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="GGUF file")
    parser.add_argument("--port", type=int, required=True, help=f"port on {HOST}")
    parser.add_argument("--ctx", type=int, default=2048, help="context cells for all slots together")
    parser.add_argument("--slots", type=int, default=2, help="requests computed at the same time")
    parser.add_argument("--cache-ram", type=int, default=8192, metavar="MIB", help="bound of the RAM prompt cache")
    parser.add_argument("--slots-dir", default="", help="folder for saved slots; without one slots cannot be erased")
    parser.add_argument("--threads", type=int, default=-1, help="compute threads, -1: llama.cpp chooses")
    parser.add_argument("--stop-timeout", type=float, default=5.0, metavar="SECONDS", help="see TimeoutStopSec=")
    return parser


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code.

    llama.cpp keeps all its memory after SIGTERM until the last client has disconnected (300 s were seen), so a timer
    ends the process after `--stop-timeout`, as systemd's TimeoutStopSec= would.
    """
    try:
        import xllamacpp
    except ImportError as error:
        print(f"slmguard.demo.server: {error}; pip install 'slmguard[demo]'", file=sys.stderr)
        return 3
    stop_signals = {signal.SIGTERM, signal.SIGINT}
    # Blocked before llama.cpp starts its threads, so that they inherit it and sigwait below gets the signal.
    signal.pthread_sigmask(signal.SIG_BLOCK, stop_signals)
    try:
        server = xllamacpp.Server(_params(xllamacpp, args))
    except Exception as error:  # noqa: BLE001 - the binding raises bare RuntimeErrors for every cause
        print(f"slmguard.demo.server: llama.cpp did not start: {error}", file=sys.stderr)
        return 1
    print(f"listening on {server.listening_address}", flush=True)
    signal.sigwait(stop_signals)
    timer = threading.Timer(args.stop_timeout, os._exit, (1,))
    timer.daemon = True
    timer.start()
    del server
    timer.cancel()
    return 0


def _params(xllamacpp: object, args: argparse.Namespace) -> object:
    params = xllamacpp.CommonParams()  # type: ignore[attr-defined]
    params.model.path = str(args.model)
    params.hostnames = [HOST]
    params.port = args.port
    params.n_ctx = args.ctx
    params.n_parallel = args.slots
    params.cpuparams.n_threads = args.threads
    params.cache_ram_mib = args.cache_ram
    params.n_ctx_checkpoints = 0
    params.n_batch = params.n_ubatch = 256
    params.n_threads_http = args.slots + 4
    params.load_mode = xllamacpp.llama_load_mode.LLAMA_LOAD_MODE_NONE  # type: ignore[attr-defined]
    params.fit_params = False  # it would measure the host's memory at every start, and nothing here needs fitting
    params.slot_save_path = args.slots_dir
    params.endpoint_metrics = True
    params.endpoint_slots = True
    params.ui = False
    params.verbosity = 2  # warnings: its own log must not grow
    return params


if __name__ == "__main__":
    sys.exit(run(build_parser().parse_args()))
