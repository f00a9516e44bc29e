"""What the machine lacks to run the virtual board, and getting it where that is allowed."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess

# Debian package of each program that the harness runs.
PACKAGES = {"linux.uml": "user-mode-linux", "mmdebstrap": "mmdebstrap", "mke2fs": "e2fsprogs"}
INSTALL_LIMIT_S = 300


class BoardUnavailableError(Exception):
    """This machine cannot run the virtual board; the message is the one-line reason."""


def missing_programs() -> list[str]:
    """The programs of the harness that are not on PATH."""
    return [name for name in PACKAGES if shutil.which(name) is None]


def ensure_machine() -> None:
    """Returns when the harness can run here; installs missing packages as root.

    Raises BoardUnavailableError with a one-line reason otherwise.
    """
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        raise BoardUnavailableError(f"user-mode-linux needs x86-64 Linux, this is {platform.machine()}")
    if os.geteuid() != 0:
        raise BoardUnavailableError("not root: building the image needs it")
    missing = missing_programs()
    if missing:
        _install(sorted({PACKAGES[name] for name in missing}))
    still = missing_programs()
    if still:
        raise BoardUnavailableError(f"not installable here: {', '.join(still)}")


def _install(packages: list[str]) -> None:
    if shutil.which("apt-get") is None:
        raise BoardUnavailableError(f"missing {', '.join(packages)} and no apt-get to install them")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "-q", "update"], ["apt-get", "-qy", "install", "--no-install-recommends", *packages]):
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=INSTALL_LIMIT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BoardUnavailableError(f"installing {', '.join(packages)} failed: {error}") from error
        # `update` fails when one third-party archive is down; what counts is whether the packages install.
        if done.returncode != 0 and "install" in command:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise BoardUnavailableError(f"installing {', '.join(packages)} failed: {last}")
