"""Fixtures for the sources: a tree of our own, and the samples of real boards."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .trees import Clock, Tree

SAMPLES = Path(__file__).parent.parent / "fixtures" / "boards"


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sample() -> Callable[[str], bytes]:
    def read(name: str) -> bytes:
        source, _, content = (SAMPLES / name).read_bytes().partition(b"\n")
        assert source.startswith(b"# source: ")
        return content

    return read


@pytest.fixture
def open_descriptors() -> Callable[[], int]:
    return lambda: len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - counts itself the same way each time


@pytest.fixture
def no_leaked_descriptors(open_descriptors: Callable[[], int]) -> Iterator[None]:
    before = open_descriptors()
    yield
    assert open_descriptors() == before
