"""slmguard as a user has it: installed, configured in /etc, enabled in systemd, asked by status and metrics."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path
from typing import Any

from tests.board.guest.load import get
from tests.board.guest.machine import SHARE, Machine, WaitedInVainError

UNIT = "slmguard.service"
CONFIG = Path("/etc/slmguard/slmguard.toml")
SOCKET = "/run/slmguard/control.sock"
METRICS_PORT = 10985
ANSWER_LIMIT_S = 10


def install(machine: Machine) -> None:
    """Puts the checkout's package, launcher and units where the distribution's package would put them."""
    payload = SHARE / "payload"
    package = Path("/usr/lib/python3/dist-packages/slmguard")
    if package.exists():
        return
    shutil.copytree(payload / "slmguard", package)
    machine.run("python3", "-m", "compileall", "-q", str(package), limit_s=120)
    launcher = "#!/usr/bin/python3\nimport sys\n\nfrom slmguard.__main__ import main\n\nsys.exit(main())\n"
    machine.write("/usr/bin/slmguard", launcher, 0o755)
    for unit in sorted((payload / "systemd").rglob("*")):
        if unit.suffix in (".service", ".socket", ".slice", ".timer", ".target") and unit.is_file():
            machine.write(Path("/usr/lib/systemd/system") / unit.name, unit.read_text())
    machine.systemctl("daemon-reload")


def configure(machine: Machine, text: str) -> None:
    """Writes the configuration file."""
    machine.write(CONFIG, text)


def enable(machine: Machine, text: str) -> dict[str, Any]:
    """`systemctl enable --now slmguard` with this configuration; the first status that has figures."""
    install(machine)
    configure(machine, text)
    machine.systemctl("enable", "--now", UNIT)
    return wait_for(machine, lambda told: told["figure_bytes"] is not None, "the guard to see the unit")


def disable(machine: Machine) -> None:
    """Stops the guard and forgets its state."""
    machine.systemctl("disable", "--now", UNIT, check=False)
    machine.systemctl("reset-failed", UNIT, check=False)
    shutil.rmtree("/var/lib/slmguard", ignore_errors=True)


def ask() -> dict[str, Any]:
    """The status document, straight from the control socket (starting the command takes seconds here)."""
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(ANSWER_LIMIT_S)
        peer.connect(SOCKET)
        peer.sendall(b'{"cmd": "status"}\n')
        received = b""
        while not received.endswith(b"\n"):
            part = peer.recv(65536)
            if not part:
                raise ConnectionError("the daemon hung up")
            received += part
    document: dict[str, Any] = json.loads(received)
    return document


def wait_for(machine: Machine, condition: Any, what: str, limit_s: float = 60) -> dict[str, Any]:
    """The first status document that satisfies `condition`."""

    def told() -> dict[str, Any] | None:
        document = ask()
        return document if condition(document) else None

    try:
        return machine.wait_until(told, what, limit_s, 1)
    except WaitedInVainError as error:
        log = "\n".join(journal(machine)[-25:])
        raise WaitedInVainError(f"{str(error)[:1500]}\njournal of {UNIT}:\n{log}") from None


def command(machine: Machine, *words: str) -> dict[str, Any]:
    """Exit code and output of `slmguard` with these words."""
    done = machine.run("slmguard", *words, limit_s=60)
    return {"code": done.returncode, "stdout": done.stdout, "stderr": done.stderr}


def metrics() -> dict[str, float]:
    """The samples of the metrics page, by their full name with labels."""
    status, text = get(METRICS_PORT, "/metrics", ANSWER_LIMIT_S)
    if status != 200:
        raise ConnectionError(f"metrics answered {status}")
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, value in lines}


def own_metrics() -> dict[str, float]:
    """The guard's own samples, without histograms."""
    return {
        name: value
        for name, value in metrics().items()
        if name.startswith(("slmguard_", "process_")) and "_bucket" not in name
    }


def journal(machine: Machine) -> list[str]:
    """What the guard wrote to the journal in this boot."""
    told = machine.run("journalctl", "-b", "-u", UNIT, "--no-pager", "-o", "short-monotonic", limit_s=60)
    return told.stdout.splitlines()


def main_pid(machine: Machine) -> int:
    """The daemon's process, 0 when it is not running."""
    return int(machine.show(UNIT, "MainPID")["MainPID"] or 0)


def resident_kb(pid: int) -> int:
    """Resident memory of a process, KiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    return 0
