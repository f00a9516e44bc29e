"""A small HTTP client for a daemon that must never wait for a server longer than it said it would.

Built on `http.client`, not on `requests`: importing requests costs 6 MiB of resident memory for life, and its
time-outs are per socket operation, so that a server which dribbles one byte a second holds it for good. Here one
deadline covers connecting, sending and reading; bodies are cut at a limit; every call uses its own connection;
redirects are not followed and proxies of the environment are not used. Only resolving a host name is not covered by the
deadline (the C library has no time-out for it): configure an address, as the example does.
"""

from __future__ import annotations

import http.client
import io
import json
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from slmguard.core.errors import UserError
from slmguard.core.model import Outcome
from slmguard.servers.base import RungReply, ServerOptions

_READ_BYTES = 65536
_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Response:
    """What came back. `cut` is True when the body was longer than the limit and only its beginning is here."""

    status: int
    body: bytes
    cut: bool = False

    def document(self) -> object:
        """The body as JSON; None when it is cut or no JSON (a plain `null` is None as well)."""
        if self.cut:
            return None
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None

    def text(self) -> str:
        """The body as text, undecodable bytes replaced."""
        return self.body.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class Failure:
    """No response; `reason` is one line for people. `timed_out` tells slow from absent."""

    reason: str
    timed_out: bool = False


def printable(text: str, limit_chars: int = 200) -> str:
    """`text` as one harmless line of at most `limit_chars` characters: control characters escaped, blanks folded."""
    folded = " ".join(text[: limit_chars * 4].split())
    safe = "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in folded)
    return safe if len(safe) <= limit_chars else safe[: limit_chars - 1] + "…"


@dataclass(frozen=True, slots=True)
class _Place:
    """Where to connect: TCP host and port, or the path of a Unix socket; and what every path begins with."""

    scheme: str
    host: str
    port: int
    prefix: str

    @property
    def shown(self) -> str:
        """The place as it is written in messages."""
        if self.scheme == "unix":
            return f"unix:{self.host}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.prefix}"


def parse_url(url: str) -> _Place:
    """The place named by `http://host:port[/prefix]`, `https://…` or `unix:/path/of/socket`.

    Raises UserError with what is wrong; a user name or password in the URL is refused, for URLs are shown.
    """
    shown = printable(url)
    if not url.isascii() or not url.isprintable() or " " in url:
        raise UserError(f"[server] url = {shown!r}: has blanks or characters that no URL has")
    if url.startswith("unix:"):
        path = url[len("unix:") :]
        path = path.removeprefix("//")
        if not path.startswith("/"):
            raise UserError(f"[server] url = {shown!r}: write unix:/absolute/path/of/the.sock")
        return _Place("unix", path, 0, "")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise UserError(f"[server] url = {shown!r}: {printable(str(error))}") from None
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
        raise UserError(f"[server] url = {shown!r}: write http://HOST:PORT, https://HOST:PORT or unix:/PATH")
    if parts.username is not None or parts.password is not None:
        raise UserError("[server] url: holds a user name or password; give the key as a credential (api_key) instead")
    if parts.query or parts.fragment:
        raise UserError(f"[server] url = {shown!r}: must not have a query or fragment")
    if port is None:
        port = _DEFAULT_PORTS[parts.scheme]
    return _Place(parts.scheme, parts.hostname, port, parts.path.rstrip("/"))


class _DeadlineReader(io.RawIOBase):
    """The receiving side of a socket, each read limited to what is left of the whole call's time."""

    def __init__(self, sock: socket.socket, left_s: Callable[[], float]) -> None:
        self._sock = sock
        self._left_s = left_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # typeshed wants any writable buffer
        self._sock.settimeout(self._left_s())
        return self._sock.recv_into(buffer)


class _DeadlineSocket:
    """What http.client asks of a socket, with the deadline applied to every operation."""

    def __init__(self, sock: socket.socket, left_s: Callable[[], float]) -> None:
        self._sock = sock
        self._left_s = left_s

    def sendall(self, data: bytes) -> None:
        self._sock.settimeout(self._left_s())
        self._sock.sendall(data)

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_DeadlineReader(self._sock, self._left_s), _READ_BYTES)

    def close(self) -> None:
        self._sock.close()


class HttpClient:
    """Calls to one server. Safe to use from one thread at a time; keeps no connection between calls."""

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        timeout_s: float = 3.0,
        max_body_bytes: int = 1 << 20,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare calls to `url`. Raises UserError for a bad URL or for a key that cannot be sent in a header."""
        self._place = parse_url(url)
        if api_key is not None and not (api_key.isascii() and api_key.isprintable() and api_key.strip()):
            raise UserError("[server] api_key: is empty or holds a line break or non-ASCII character; check its file")
        self._api_key = api_key.strip() if api_key is not None else None
        self.timeout_s = timeout_s
        self._max_body_bytes = max_body_bytes
        self._clock = clock

    @property
    def shown_url(self) -> str:
        """The server's address for messages, without secrets."""
        return self._place.shown

    def get(self, path: str, timeout_s: float | None = None) -> Response | Failure:
        """GET `path` within `timeout_s` seconds (default: the client's). Never raises for what the server does."""
        return self._call("GET", path, None, timeout_s)

    def post(self, path: str, document: Mapping[str, object], timeout_s: float | None = None) -> Response | Failure:
        """POST `document` as JSON to `path`. Never raises for what the server does."""
        return self._call("POST", path, json.dumps(document).encode(), timeout_s)

    def _call(self, method: str, path: str, body: bytes | None, timeout_s: float | None) -> Response | Failure:
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        deadline_s = self._clock() + limit_s

        def left_s() -> float:
            left = deadline_s - self._clock()
            if left <= 0:
                raise TimeoutError
            return left

        where = f"{method} {self._place.shown}{path}"
        try:
            sock = _connect(self._place, left_s)
            try:
                return self._exchange(_DeadlineSocket(sock, left_s), method, self._target(path), body)
            finally:
                sock.close()
        except TimeoutError:
            return Failure(f"{where}: no answer within {limit_s:g} s", timed_out=True)
        except ConnectionRefusedError:
            return Failure(f"{where}: connection refused (nothing listens there)")
        except http.client.HTTPException as error:
            said = printable(str(error), 80)
            return Failure(f"{where}: not a valid HTTP answer ({type(error).__name__}{': ' + said if said else ''})")
        except ValueError as error:  # http.client raises it for nonsense lengths and header values
            return Failure(f"{where}: not a valid HTTP answer ({printable(str(error), 80)})")
        except OSError as error:
            return Failure(f"{where}: {printable(error.strerror or str(error) or type(error).__name__, 120)}")

    def _target(self, path: str) -> str:
        prefix = self._place.prefix
        # People paste OpenAI base URLs, which end in /v1.
        return path if prefix == "/v1" and path.startswith("/v1/") else prefix + path

    def _exchange(self, sock: _DeadlineSocket, method: str, target: str, body: bytes | None) -> Response:
        connection = http.client.HTTPConnection(self._place.host if self._place.scheme != "unix" else "localhost")
        connection.sock = sock  # a stand-in with what http.client uses
        connection.auto_open = 0
        headers = {"Connection": "close", "Accept": "*/*", "User-Agent": "slmguard", "Host": self._host_header()}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if self._api_key is not None:
            headers["Authorization"] = f"Bearer {self._api_key}"
        connection.request(method, target, body, headers)
        response = connection.getresponse()
        try:
            data, cut = _read_bounded(response, self._max_body_bytes)
        finally:
            response.close()
        return Response(response.status, data, cut)

    def _host_header(self) -> str:
        place = self._place
        if place.scheme == "unix":
            return "localhost"
        host = f"[{place.host}]" if ":" in place.host else place.host
        return host if _DEFAULT_PORTS[place.scheme] == place.port else f"{host}:{place.port}"


def _read_bounded(response: http.client.HTTPResponse, limit_bytes: int) -> tuple[bytes, bool]:
    """The body up to the limit, and whether there was more. Raises IncompleteRead when the server closes mid-body.

    Counts for itself against the announced length: before Python 3.12 `read1` does not, and would wait for the peer
    to close the connection.
    """
    announced = response.length  # None when chunked or ended by closing
    wanted = limit_bytes + 1 if announced is None else min(limit_bytes + 1, announced)
    parts: list[bytes] = []
    size = 0
    while size < wanted:
        part = response.read1(min(_READ_BYTES, wanted - size))
        if not part:
            break
        parts.append(part)
        size += len(part)
    data = b"".join(parts)
    if size > limit_bytes:
        return data[:limit_bytes], True
    if announced is not None and size < announced:
        raise http.client.IncompleteRead(b"", announced - size)
    return data, False


def _connect(place: _Place, left_s: Callable[[], float]) -> socket.socket:
    if place.scheme == "unix":
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        return _connected(sock, place.host, left_s)
    last: OSError | None = None
    for family, kind, protocol, _, address in socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM):
        try:
            sock = _connected(socket.socket(family, kind, protocol), address, left_s)
        except TimeoutError:
            raise
        except OSError as error:
            last = error
            continue
        return _with_tls(sock, place.host, left_s) if place.scheme == "https" else sock
    raise last or OSError("the host name has no address")


def _connected(sock: socket.socket, address: tuple[Any, ...] | str, left_s: Callable[[], float]) -> socket.socket:
    try:
        sock.settimeout(left_s())
        sock.connect(address)
    except BaseException:
        sock.close()
        raise
    return sock


def _with_tls(sock: socket.socket, host: str, left_s: Callable[[], float]) -> socket.socket:
    import ssl  # late: OpenSSL costs memory that a loopback server never needs

    try:
        sock.settimeout(left_s())
        return ssl.create_default_context().wrap_socket(sock, server_hostname=host)
    except BaseException:
        sock.close()
        raise


def rung_reply(answer: Response | Failure, done: str) -> RungReply:
    """What an answer to a rung's call means: 200, 202, 204 OK (with the sentence `done`); 404, 405, 501 ABSENT."""
    if isinstance(answer, Failure):
        return RungReply(Outcome.TIMEOUT if answer.timed_out else Outcome.FAILED, answer.reason)
    if answer.status in {200, 202, 204}:
        return RungReply(Outcome.OK, done)
    said = printable(answer.text())
    if answer.status in {404, 405, 501}:
        return RungReply(Outcome.ABSENT, f"the server has no such call (answered {answer.status})")
    if answer.status in {401, 403}:
        return RungReply(
            Outcome.FAILED, f"the server wants an API key (answered {answer.status}); set [server] api_key"
        )
    return RungReply(Outcome.FAILED, f"the server answered {answer.status}{': ' + said if said else ''}")


def trim(client: HttpClient, options: ServerOptions, keep_recent: int) -> RungReply:
    """The generic call: POST the configured body to the configured path, asking for the newest `keep_recent` tokens."""
    template = options.trim_body if options.trim_body is not None else {"keep_recent": "{keep_recent}"}
    body = {name: _filled(value, keep_recent) for name, value in template.items()}
    answer = client.post(options.trim_path, body)
    return rung_reply(answer, f"asked to keep the newest {keep_recent} tokens")


def _filled(value: object, keep_recent: int) -> object:
    """The template with every "{keep_recent}" filled in; a value that is nothing else becomes a number."""
    if value == "{keep_recent}":
        return keep_recent
    if isinstance(value, str):
        return value.replace("{keep_recent}", str(keep_recent))
    if isinstance(value, Mapping):
        return {str(key): _filled(item, keep_recent) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_filled(item, keep_recent) for item in value]
    return value
