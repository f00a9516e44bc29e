"""Whether this host's cgroup tree can tell the memory of a unit, and if not, what to do about it on this board.

Figures from boards: Raspberry Pi firmware prepends `cgroup_disable=memory` to the kernel command line; JetPack 5 boots
the hybrid hierarchy, in which MemoryHigh has no effect. /proc/cgroups is not asked: kernels from 6.12 without the v1
controllers leave `memory` out of it even when v2 has it.
"""

from __future__ import annotations

from pathlib import Path


def memory_controller_problem(cgroup_root: Path, proc_root: Path) -> str | None:
    """Why cgroup v2 memory figures are not to be had here, with the fix; None when they are."""
    controllers = _read_text(cgroup_root / "cgroup.controllers")
    if controllers is None:
        return _not_unified(cgroup_root, proc_root)
    if "memory" in controllers.split():
        return None
    return f"the memory controller of cgroup v2 is off, so no limit of any unit has effect: {_enable_hint(proc_root)}"


def _not_unified(cgroup_root: Path, proc_root: Path) -> str:
    if (cgroup_root / "unified").is_dir() or (cgroup_root / "memory").is_dir():
        return (
            f"this host boots the cgroup v1 or hybrid hierarchy, in which MemoryHigh has no effect: add "
            f"systemd.unified_cgroup_hierarchy=1 to {_command_line_file(proc_root)} and reboot"
        )
    return f"there is no cgroup v2 file system at {cgroup_root}: is it mounted (`mount -t cgroup2 none {cgroup_root}`)?"


def _enable_hint(proc_root: Path) -> str:
    where = _command_line_file(proc_root)
    if "Raspberry Pi" in board_model(proc_root):
        return (
            f"add cgroup_enable=memory to {where} and reboot (a kernel that is not Raspberry Pi's own ignores it: "
            "there cgroup_disable=memory has to go from the device tree's bootargs)"
        )
    command_line = _read_text(proc_root / "cmdline") or ""
    if "cgroup_disable=memory" in command_line.split():
        return f"take cgroup_disable=memory out of {where} and reboot"
    return f"add cgroup_enable=memory to {where} and reboot; if that changes nothing, the kernel lacks CONFIG_MEMCG"


def board_model(proc_root: Path) -> str:
    """The device tree's name of the board, empty on machines without one."""
    return (_read_text(proc_root / "device-tree" / "model") or "").rstrip("\0\n")


def _command_line_file(proc_root: Path) -> str:
    """Where this board keeps its kernel command line, as a phrase."""
    model = board_model(proc_root)
    if "Raspberry Pi" in model:
        return "the one line of /boot/firmware/cmdline.txt (/boot/cmdline.txt before Bookworm)"
    if "Jetson" in model or "NVIDIA" in model:
        return "the APPEND line of /boot/extlinux/extlinux.conf"
    return "the kernel command line (Armbian: extraargs= in /boot/armbianEnv.txt; GRUB: GRUB_CMDLINE_LINUX)"


def _read_text(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return file.read(65536).decode("utf-8", "replace")
    except OSError:
        return None
