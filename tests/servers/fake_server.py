"""A scripted HTTP server on loopback: answers as told, well or badly, one thread a connection."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

Misdeed = Callable[[socket.socket, threading.Event], None]


@dataclass(frozen=True)
class Reply:
    """An ordinary answer."""

    status: int = 200
    body: bytes = b""
    content_type: str = "application/json"
    length: int | None = None  # announced, when it shall differ from the real one
    headers: tuple[str, ...] = ()

    def raw(self) -> bytes:
        length = len(self.body) if self.length is None else self.length
        head = [f"HTTP/1.1 {self.status} X", f"Content-Type: {self.content_type}", f"Content-Length: {length}"]
        return "\r\n".join([*head, *self.headers, "", ""]).encode() + self.body


def document(value: object, status: int = 200) -> Reply:
    return Reply(status, json.dumps(value).encode())


def error(status: int, message: str, kind: str = "server_error") -> Reply:
    return document({"error": {"code": status, "message": message, "type": kind}}, status)


@dataclass
class FakeServer:
    """`routes` by "METHOD /path?query"; `otherwise` for the rest. Every request is kept in `requests`."""

    routes: dict[str, Reply | Misdeed | Callable[[], Reply]] = field(default_factory=dict)
    otherwise: Reply | Misdeed = field(default_factory=lambda: error(404, "File Not Found", "not_found_error"))
    requests: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)
    port: int = 0
    closing: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def serve(self, listener: socket.socket) -> None:
        while not self.closing.is_set():
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._talk, args=(peer,), daemon=True).start()

    def _talk(self, peer: socket.socket) -> None:
        with peer, suppress(OSError, ValueError):
            peer.settimeout(20)
            head, _, body = self._receive(peer)
            method, target, _ = head.split(b"\r\n")[0].decode().split(" ")
            self.requests.append(f"{method} {target}")
            self.heads.append(head.decode())
            self.bodies.append(body)
            answer = self.routes.get(f"{method} {target}", self.otherwise)
            if isinstance(answer, Reply):
                peer.sendall(answer.raw())
                return
            said = answer(peer, self.closing) if _is_misdeed(answer) else answer()  # type: ignore[call-arg]
            if isinstance(said, Reply):
                peer.sendall(said.raw())

    @staticmethod
    def _receive(peer: socket.socket) -> tuple[bytes, bytes, bytes]:
        data = b""
        while b"\r\n\r\n" not in data:
            part = peer.recv(65536)
            if not part:
                raise ValueError("no request")
            data += part
        head, _, body = data.partition(b"\r\n\r\n")
        for line in head.split(b"\r\n"):
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                while len(body) < int(value):
                    body += peer.recv(65536)
        return head, b"", body


def _is_misdeed(answer: object) -> bool:
    return getattr(answer, "is_misdeed", False)


def _misdeed(function: Misdeed) -> Misdeed:
    function.is_misdeed = True  # type: ignore[attr-defined]
    return function


@_misdeed
def hang(_peer: socket.socket, closing: threading.Event) -> None:
    closing.wait(20)


@_misdeed
def dribble(peer: socket.socket, closing: threading.Event) -> None:
    peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    while not closing.wait(0.05):
        peer.sendall(b" ")


@_misdeed
def dribble_headers(peer: socket.socket, closing: threading.Event) -> None:
    peer.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    while not closing.wait(0.05):
        peer.sendall(b"a")


@_misdeed
def huge(peer: socket.socket, closing: threading.Event) -> None:
    peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 10485760\r\n\r\n")
    for _ in range(160):
        if closing.is_set():
            return
        peer.sendall(b"[" * 65536)


@_misdeed
def endless_chunks(peer: socket.socket, closing: threading.Event) -> None:
    peer.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while not closing.is_set():
        peer.sendall(b"1000\r\n" + b"x" * 4096 + b"\r\n")


@_misdeed
def endless_headers(peer: socket.socket, closing: threading.Event) -> None:
    peer.sendall(b"HTTP/1.1 200 OK\r\n")
    while not closing.is_set():
        peer.sendall(b"X-More: " + b"y" * 1000 + b"\r\n")


@_misdeed
def not_http(peer: socket.socket, _closing: threading.Event) -> None:
    peer.sendall(b"220 mail.example ESMTP\x1b[31m\r\n\x00\xff\r\n")


@_misdeed
def close_at_once(_peer: socket.socket, _closing: threading.Event) -> None:
    return


@_misdeed
def close_mid_body(peer: socket.socket, _closing: threading.Event) -> None:
    peer.sendall(Reply(body=b'{"status":', length=4000).raw())


@_misdeed
def keep_open(peer: socket.socket, closing: threading.Event) -> None:
    """A good answer on a connection that stays open although it was asked to be closed."""
    peer.sendall(Reply(body=b'{"status":"ok"}').raw())
    closing.wait(20)


MISDEEDS: dict[str, Reply | Misdeed] = {
    "401": error(401, "Invalid API Key", "authentication_error"),
    "404": error(404, "File Not Found", "not_found_error"),
    "500": error(500, "boom"),
    "501": error(501, "not supported", "not_supported_error"),
    "503": error(503, "Loading model", "unavailable_error"),
    "redirect": Reply(302, headers=("Location: http://192.0.2.1/",)),
    "empty": Reply(),
    "null": Reply(body=b"null"),
    "html": Reply(body=b"<html>\x1b[2J</html>", content_type="text/html"),
    "deep nesting": Reply(body=b"[" * 100_000),
    "long number": Reply(body=b"9" * 100_000),
    "wrong shapes": document({"data": [1, None, {"id": 3}], "status": [], "error": "x", "total_slots": "many"}),
    "not UTF-8": Reply(body=b'{"status":"\xff\xfe"}'),
    "nonsense length": Reply(headers=("Content-Length: many",)),
    "hang": hang,
    "dribble": dribble,
    "dribbled headers": dribble_headers,
    "10 MB body": huge,
    "endless chunks": endless_chunks,
    "endless headers": endless_headers,
    "not HTTP": not_http,
    "close at once": close_at_once,
    "close mid-body": close_mid_body,
}


@contextmanager
def running(server: FakeServer) -> Iterator[FakeServer]:
    """Serve on a free port of 127.0.0.1 inside the block."""
    listener = socket.create_server(("127.0.0.1", 0))
    server.port = listener.getsockname()[1]
    thread = threading.Thread(target=server.serve, args=(listener,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.closing.set()
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)


def free_port() -> int:
    """A port on which nothing listens (now)."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
