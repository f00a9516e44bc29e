"""A stand-in that speaks llama-server's HTTP and has every rung: conversations, idle slots and a trim call.

Real llama-server has no trim and, on a dense model, frees nothing on erase. This one holds real memory and gives it
back when told, so that each rung can be seen to leave the hardened guard, arrive, and free bytes in the unit's cgroup.
"""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

MIB = 1 << 20


class Memory:
    """What the stand-in holds, in blocks of a MiB; `tokens` is its progress counter.

    A trim frees `history`, an erase frees `cache`, only a restart frees `leak`.
    """

    held: ClassVar[dict[str, list[bytes]]] = {"history": [], "cache": [], "leak": []}
    tokens: ClassVar[int] = 0


class Handler(BaseHTTPRequestHandler):
    """Answers as llama-server does; prints each rung that arrives."""

    protocol_version = "HTTP/1.1"  # as llama-server: connections are kept

    def do_GET(self) -> None:
        """Health, slots, props, metrics."""
        if self.path == "/health":
            self._answer(200, {"status": "ok"})
        elif self.path == "/props":
            self._answer(200, {"total_slots": 1, "endpoint_slots": True, "endpoint_metrics": True})
        elif self.path.startswith("/slots"):
            self._answer(200, [{"id": 0, "n_ctx": 2048, "is_processing": False}])
        elif self.path == "/metrics":
            text = f"# TYPE llamacpp:tokens_predicted_total counter\nllamacpp:tokens_predicted_total {Memory.tokens}\n"
            self._send(200, text.encode(), "text/plain")
        elif self.path == "/api/v1/context/trim":
            self._answer(405, {"error": "use POST"})
        else:
            self._answer(404, {"error": "no such path"})

    def do_POST(self) -> None:
        """Growth, erase, trim."""
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        if self.path == "/grow":
            Memory.tokens += 10
            for kind, mib in json.loads(body).items():
                Memory.held[kind].extend(bytes([65 + len(Memory.held[kind]) % 26]) * MIB for _ in range(mib))
            self._answer(200, {kind: len(blocks) for kind, blocks in Memory.held.items()})
        elif self.path == "/api/v1/context/trim":
            print(f"told to trim: {body.decode()}", flush=True)
            Memory.held["history"].clear()
            self._answer(200, {"status": "ok"})
        elif self.path == "/slots/0?action=erase":
            print("told to erase slot 0", flush=True)
            Memory.held["cache"].clear()
            self._answer(200, {"id_slot": 0, "n_erased": 10})
        elif self.path.startswith("/slots/"):
            self._answer(400, {"error": {"message": "Invalid action", "type": "invalid_request_error"}})
        else:
            self._answer(404, {"error": "no such path"})

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
        """Requests are not logged; the rungs are printed."""

    def _answer(self, status: int, document: object) -> None:
        self._send(status, json.dumps(document).encode(), "application/json")

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
