"""The HTTP client: one deadline for all, bounded bodies, no surprises."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slmguard.core.errors import UserError
from slmguard.servers.http import Failure, HttpClient, Response, parse_url, printable
from tests.servers import fake_server
from tests.servers.fake_server import FakeServer, Reply, document, free_port, running

LONG_S = 20.0


def failure(answer: Response | Failure) -> Failure:
    assert isinstance(answer, Failure)
    assert answer.reason.isprintable()
    return answer


def response(answer: Response | Failure) -> Response:
    assert isinstance(answer, Response), answer
    return answer


@pytest.mark.parametrize("misdeed", [fake_server.dribble, fake_server.dribble_headers, fake_server.hang])
def test_bytes_that_trickle_in_do_not_extend_the_deadline(misdeed: fake_server.Misdeed) -> None:
    with running(FakeServer(otherwise=misdeed)) as server:
        assert failure(HttpClient(server.url, timeout_s=0.4).get("/")).timed_out


def test_a_10_mb_body_is_cut_and_said_to_be() -> None:
    with running(FakeServer(otherwise=fake_server.huge)) as server:
        answer = response(HttpClient(server.url, timeout_s=LONG_S, max_body_bytes=1000).get("/"))
    assert (answer.cut, len(answer.body), answer.document()) == (True, 1000, None)


def test_an_endless_chunked_body_is_cut() -> None:
    with running(FakeServer(otherwise=fake_server.endless_chunks)) as server:
        answer = response(HttpClient(server.url, timeout_s=LONG_S, max_body_bytes=1000).get("/"))
    assert (answer.cut, len(answer.body)) == (True, 1000)


def test_a_body_of_just_the_limit_is_whole() -> None:
    with running(FakeServer(otherwise=Reply(body=b"x" * 1000))) as server:
        answer = response(HttpClient(server.url, timeout_s=LONG_S, max_body_bytes=1000).get("/"))
    assert (answer.cut, len(answer.body)) == (False, 1000)


def test_an_answer_ends_at_its_length_although_the_connection_stays_open() -> None:
    with running(FakeServer(otherwise=fake_server.keep_open)) as server:
        assert response(HttpClient(server.url, timeout_s=LONG_S).get("/")).document() == {"status": "ok"}


def test_a_body_that_breaks_off_is_a_failure() -> None:
    with running(FakeServer(otherwise=fake_server.close_mid_body)) as server:
        assert "IncompleteRead" in failure(HttpClient(server.url, timeout_s=LONG_S).get("/")).reason


def test_endless_headers_are_a_failure() -> None:
    with running(FakeServer(otherwise=fake_server.endless_headers)) as server:
        assert not failure(HttpClient(server.url, timeout_s=LONG_S).get("/")).timed_out


def test_a_redirect_is_an_answer_and_is_not_followed() -> None:
    with running(FakeServer()) as other:
        here = FakeServer(otherwise=Reply(307, headers=(f"Location: {other.url}/",)))
        with running(here):
            assert response(HttpClient(here.url, timeout_s=LONG_S).get("/")).status == 307
        assert other.requests == []


def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    with running(FakeServer(otherwise=document(1))) as server:
        assert response(HttpClient(server.url, timeout_s=LONG_S).get("/")).document() == 1


def test_no_descriptors_are_left_open_whatever_happens() -> None:
    with running(FakeServer(otherwise=fake_server.close_mid_body)) as server:
        client = HttpClient(server.url, timeout_s=LONG_S)
        client.get("/")
        before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - counting only
        for _ in range(20):
            client.get("/")
        refused = HttpClient(f"http://127.0.0.1:{free_port()}")
        refused.get("/")
    assert len(os.listdir("/proc/self/fd")) <= before + 1  # noqa: PTH208 - the fake server's own, perhaps


def test_talks_over_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "llm.sock"
    server = FakeServer(otherwise=document("yes"))
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    thread = threading.Thread(target=server.serve, args=(listener,), daemon=True)
    thread.start()
    try:
        assert response(HttpClient(f"unix:{path}", timeout_s=LONG_S).get("/health")).document() == "yes"
    finally:
        server.closing.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)
    assert "no such file" in failure(HttpClient(f"unix:{tmp_path}/none").get("/")).reason.lower()


def test_a_base_path_comes_first_and_a_pasted_v1_is_not_doubled() -> None:
    with running(FakeServer(otherwise=document(1))) as server:
        HttpClient(server.url + "/llm/", timeout_s=LONG_S).get("/v1/models")
        HttpClient(server.url + "/v1", timeout_s=LONG_S).get("/v1/models")
    assert server.requests == ["GET /llm/v1/models", "GET /v1/models"]


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("127.0.0.1:8080", "write http://HOST:PORT"),
        ("ftp://h", "write http://HOST:PORT"),
        ("http://", "write http://HOST:PORT"),
        ("http://h:99999", "ort"),
        ("http://u:p@h", "user name or password"),
        ("http://h/?q=1", "query"),
        ("http://h\r\nX: y", "blanks or characters"),
        ("http://h/\x1b[31m", "blanks or characters"),
        ("unix:relative", "unix:/absolute"),
        ("http://[::1", "IPv6"),
    ],
)
def test_a_bad_url_is_one_line_that_says_what_to_write(url: str, says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        parse_url(url)
    assert str(caught.value).isprintable()
    assert "u:p" not in str(caught.value)


@pytest.mark.parametrize("key", ["", "  ", "a\nb", "schlüssel"])
def test_a_key_that_no_header_can_carry_is_refused_without_being_shown(key: str) -> None:
    with pytest.raises(UserError) as caught:
        HttpClient("http://127.0.0.1", api_key=key)
    assert not key.strip() or key not in str(caught.value)


@given(st.text(max_size=2000), st.integers(10, 300))
def test_printable_is_one_harmless_line_within_its_limit(text: str, limit: int) -> None:
    shown = printable(text, limit)
    assert len(shown) <= limit
    assert shown.isprintable()


@given(st.text(max_size=60))
def test_any_url_is_taken_or_refused_with_a_sentence(url: str) -> None:
    try:
        parse_url(url)
    except UserError as error:
        assert str(error).isprintable()  # noqa: PT017 - both outcomes are right
