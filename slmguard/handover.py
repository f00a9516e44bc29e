"""From the validating stage to the daemon: options as JSON in an anonymous file that survives exec."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence

from slmguard.core import codec
from slmguard.options import Options


def give(options: Options) -> int:
    """A descriptor that holds `options` and is inherited over exec."""
    fd = os.memfd_create("slmguard-options", 0)
    os.write(fd, json.dumps(codec.to_json(options)).encode())
    os.lseek(fd, 0, os.SEEK_SET)
    os.set_inheritable(fd, True)
    return fd


def receive(fd: int) -> Options:
    """The options in `fd`, which is closed."""
    with os.fdopen(fd, "rb") as file:
        return decode(file.read())


def decode(data: bytes) -> Options:
    """Options from their JSON.

    Raises ValueError when they are not what `give` writes.
    """
    return codec.from_json(Options, json.loads(data))


def interpreter() -> Sequence[str]:
    """How to start this Python once more with the same isolation."""
    return [sys.executable, *(["-I"] if sys.flags.isolated else [])]
