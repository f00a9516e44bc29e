"""What the kernel's ring holds right now, as a stream of raw records."""

from __future__ import annotations

import io
import os
from typing import IO

from slmguard.core.errors import EnvironmentLacksError, UserError
from slmguard.kernel_log.reader import FORBIDDEN, RECORD_BYTES, open_kmsg

MOST_READS = 1_000_000  # far beyond any ring; ends the reading of one that is being filled as fast as it is read


def kmsg_snapshot(path: str) -> IO[bytes]:
    """All records of a kmsg device. Raises EnvironmentLacksError when reading it is not permitted."""
    try:
        fd = open_kmsg(path)
    except OSError as error:
        if error.errno in FORBIDDEN:
            text = f"{path}: {error.strerror}; run as root, or set kernel.dmesg_restrict to 0, or use journalctl -k"
            raise EnvironmentLacksError(text) from error
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    try:
        return io.BytesIO(_drain(fd))
    finally:
        os.close(fd)


def _drain(fd: int) -> bytes:
    records = []
    for _ in range(MOST_READS):
        try:
            record = os.read(fd, RECORD_BYTES)
        except BlockingIOError:
            break
        except (BrokenPipeError, OSError):
            continue  # overwritten in the meantime: the next read goes on at the oldest that is left
        if not record:
            break
        records.append(record)
    return b"".join(records)
