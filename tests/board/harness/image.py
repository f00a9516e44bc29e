"""The board's disk image: a Debian root with systemd and llama.cpp, built once and cached by its recipe."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.board.harness.lacks import BoardUnavailableError
from tests.board.harness.mirror import debian_mirror

BUILD_LIMIT_S = 540

PACKAGES = (
    *("systemd-sysv", "dbus", "python3", "procps", "iproute2", "kmod", "python3-psutil", "python3-requests"),
    *("python3-prometheus-client", "python3-pydantic", "python3-sdnotify", "llama.cpp", "llama.cpp-services"),
)

# Units that cost boot time and do nothing for a machine that lives for minutes.
MASKED_UNITS = (
    *("systemd-udevd.service", "systemd-udev-trigger.service", "systemd-udevd-kernel.socket"),
    *("systemd-udevd-control.socket", "e2scrub_reap.service", "apt-daily.timer", "apt-daily-upgrade.timer"),
    *("getty@tty1.service", "getty.target", "systemd-random-seed.service", "systemd-hwdb-update.service"),
    *("man-db.timer", "dpkg-db-backup.timer", "fstrim.timer", "systemd-pstore.service"),
    *("systemd-journal-catalog-update.service", "systemd-update-utmp.service", "systemd-logind.service"),
    *("systemd-journal-flush.service", "systemd-networkd.service", "systemd-networkd-wait-online.service"),
    *("e2scrub_all.timer", "systemd-tpm2-setup.service", "systemd-tpm2-setup-early.service"),
    *("systemd-timesyncd.service", "remote-fs.target"),
)

JOB_UNIT = """\
[Unit]
Description=Scenarios of the virtual board
After=basic.target

[Service]
Type=oneshot
OOMScoreAdjust=-1000
TimeoutStartSec=infinity
ExecStartPre=/bin/mount -t hostfs none /host -o ${BOARD_SHARE}
ExecStart=/usr/bin/python3 -m tests.board.guest.runner
ExecStopPost=/bin/systemctl --force --force poweroff
Environment=PYTHONPATH=/host/payload PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
EnvironmentFile=/run/board.env
StandardOutput=journal+console
StandardError=journal+console

[Install]
WantedBy=multi-user.target
"""

# The kernel hands parameters it does not know to init only; the share's path is taken from /proc/cmdline.
ENV_UNIT = """\
[Unit]
Description=Where the host shares its folder
Before=board-job.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -c 'sed -n "s/.*board.share=\\\\([^ ]*\\\\).*/BOARD_SHARE=\\\\1/p" /proc/cmdline > /run/board.env'
ExecStart=/sbin/ip link set lo up

[Install]
WantedBy=multi-user.target
RequiredBy=board-job.service
"""

FILES = {
    "etc/fstab": "/dev/ubda / ext4 defaults,noatime 0 0\n",
    "etc/hostname": "board\n",
    "etc/hosts": "127.0.0.1 localhost board\n",
    "etc/machine-id": "0123456789abcdef0123456789abcdef\n",
    "etc/systemd/journald.conf.d/board.conf": "[Journal]\nStorage=volatile\nRuntimeMaxUse=24M\nRateLimitBurst=0\n",
    "etc/systemd/system/board-job.service": JOB_UNIT,
    "etc/systemd/system/board-env.service": ENV_UNIT,
}

LINKS = {
    "etc/systemd/system/multi-user.target.wants/board-job.service": "/etc/systemd/system/board-job.service",
    "etc/systemd/system/multi-user.target.wants/board-env.service": "/etc/systemd/system/board-env.service",
    "etc/systemd/system/board-job.service.requires/board-env.service": "/etc/systemd/system/board-env.service",
}


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that determines an image; two images of one recipe are interchangeable."""

    suite: str = "forky"
    size_mib: int = 2048
    packages: tuple[str, ...] = PACKAGES
    masked: tuple[str, ...] = MASKED_UNITS
    files: dict[str, str] = field(default_factory=lambda: dict(FILES))
    links: dict[str, str] = field(default_factory=lambda: dict(LINKS))

    @property
    def key(self) -> str:
        """A short hash of the recipe: the name of the image in the cache."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]


def cache_dir() -> Path:
    """Where images and models are kept: `$SLMGUARD_CACHE/board`, else `.cache/board` in the checkout."""
    configured = os.environ.get("SLMGUARD_CACHE")
    root = Path(configured) if configured else Path(__file__).resolve().parents[3] / ".cache"
    return root / "board"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds an exclusive lock on `path` among all processes of this machine; the kernel drops it when we die."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def ensure_image(recipe: Recipe, cache: Path | None = None) -> Path:
    """The image of `recipe`, built when the cache lacks it (about 30 s). Raises BoardUnavailableError."""
    folder = cache or cache_dir()
    image = folder / f"{recipe.suite}-{recipe.key}.ext4"
    with locked(folder / f"{image.name}.lock"):
        if not image.exists():
            with tempfile.TemporaryDirectory(prefix="build-", dir=folder) as work:
                built = _build(recipe, Path(work))
                built.with_suffix(".packages").replace(image.with_suffix(".packages"))
                built.replace(image)
    return image


def _build(recipe: Recipe, work: Path) -> Path:
    root = work / "root"
    _run(
        [
            "mmdebstrap",
            "--mode=root",
            "--variant=minbase",
            # Testing suites may carry an expired Release file; signatures are still checked.
            '--aptopt=Acquire::Check-Valid-Until "false"',
            f"--include={','.join(recipe.packages)}",
            recipe.suite,
            str(root),
            debian_mirror(),
        ],
        "building the root file system",
    )
    _configure(recipe, root)
    image = work / "image.ext4"
    image.with_suffix(".packages").write_text(_package_versions(root))
    with image.open("wb") as handle:
        handle.truncate(recipe.size_mib << 20)
    _run(
        ["mke2fs", "-q", "-F", "-t", "ext4", "-O", "^has_journal", "-m", "0", "-d", str(root), str(image)],
        "writing the image",
    )
    image.chmod(0o444)
    shutil.rmtree(root)
    return image


def _configure(recipe: Recipe, root: Path) -> None:
    for name, text in recipe.files.items():
        target = root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    for name, points_to in recipe.links.items():
        link = root / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(points_to)
    for unit in recipe.masked:
        mask = root / "etc/systemd/system" / unit
        mask.unlink(missing_ok=True)
        mask.symlink_to("/dev/null")
    (root / "host").mkdir(exist_ok=True)


def _package_versions(root: Path) -> str:
    listed = subprocess.run(
        ["dpkg-query", f"--admindir={root}/var/lib/dpkg", "-W", "-f", "${Package} ${Version}\n"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return listed.stdout


def _run(command: list[str], doing: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_LIMIT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise BoardUnavailableError(f"{doing} took more than {BUILD_LIMIT_S} s") from error
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.startswith(("E:", "mke2fs:"))]
        raise BoardUnavailableError(f"{doing} failed: {(lines or done.stderr.splitlines() or ['no message'])[-1]}")
