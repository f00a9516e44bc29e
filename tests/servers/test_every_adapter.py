"""The contract, run by every adapter that there is."""

from __future__ import annotations

import pytest

from slmguard.core.errors import UserError
from slmguard.servers.base import ServerOptions, kinds, load
from tests.servers.contract import AdapterContract
from tests.servers.good_servers import llama_router, llama_server, openai


class TestLlamaServer(AdapterContract):
    kind = "llama-server"
    good = staticmethod(llama_server)


class TestLlamaRouter(AdapterContract):
    kind = "llama-server"
    good = staticmethod(llama_router)


class TestOpenAi(AdapterContract):
    kind = "openai"
    good = staticmethod(openai)


def test_every_kind_runs_the_contract() -> None:
    assert set(kinds()) == {contract.kind for contract in AdapterContract.__subclasses__()}


def test_an_unknown_kind_names_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"no such adapter; known are .*llama-server.*openai"):
        load("lama-server", ServerOptions("http://127.0.0.1:1"))
