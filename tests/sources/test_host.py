from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from slmguard.sources.host import HostProbe, HostSource, estimate_available
from slmguard.sources.kernel_text import find_keyed

from .trees import PRESSURE, Tree

MEMINFO = """MemTotal:        3884204 kB
MemFree:          410020 kB
MemAvailable:    1203456 kB
Buffers:           30000 kB
Cached:           900000 kB
Active(file):     300000 kB
Inactive(file):   500000 kB
SwapTotal:       1048572 kB
SwapFree:         948572 kB
AnonPages:       2000000 kB
Mapped:           250000 kB
Shmem:             50000 kB
SReclaimable:      60000 kB
SUnreclaim:        70000 kB
KernelStack:        4000 kB
PageTables:         9000 kB
Percpu:             1000 kB
CmaTotal:         262144 kB
CmaFree:          180000 kB
"""
VMSTAT = (
    "nr_free_pages 100\nworkingset_refault_file 9\npgscan_kswapd 50\npgscan_direct 7\npgscan_direct_throttle 1000\n"
    "pgsteal_kswapd 40\npgsteal_direct 5\npgmajfault 77\noom_kill 2\n"
)
KB = 1024


def board(tree: Tree, meminfo: str = MEMINFO, vmstat: str = VMSTAT, pressure: str | None = PRESSURE) -> Tree:
    (tree.proc / "meminfo").write_text(meminfo)
    (tree.proc / "vmstat").write_text(vmstat)
    (tree.proc / "pressure").mkdir()
    if pressure is not None:
        (tree.proc / "pressure" / "memory").write_text(pressure)
    return tree


def test_headroom_leaves_out_free_cma(tree: Tree) -> None:
    board(tree)
    probe = HostProbe(tree.proc, tree.cgroup)
    host = probe.read()
    assert host is not None
    assert host.total_bytes == 3884204 * KB
    assert host.headroom_bytes == (1203456 - 180000) * KB
    assert (host.swap_total_bytes, host.swap_free_bytes) == (1048572 * KB, 948572 * KB)
    assert (host.psi_some_us, host.psi_full_us) == (93052, 36906)
    assert host.oom_kills == 2
    assert probe.degraded == ()
    probe.close()


def test_a_kernel_without_psi_and_oom_counter_says_so_once_and_gives_none(tree: Tree) -> None:
    board(tree, vmstat="nr_free_pages 1\n", pressure=None)
    probe = HostProbe(tree.proc, tree.cgroup)
    for _ in range(3):
        host = probe.read()
        assert host is not None
        assert (host.psi_full_us, host.oom_kills) == (None, None)
    assert len(probe.degraded) == 2
    probe.close()


def test_a_kernel_without_memavailable_gets_an_estimate_and_says_so(tree: Tree) -> None:
    board(tree, meminfo=MEMINFO.replace("MemAvailable:    1203456 kB\n", ""))
    (tree.proc / "sys" / "vm").mkdir(parents=True)
    (tree.proc / "sys" / "vm" / "min_free_kbytes").write_text("16000\n")
    probe = HostProbe(tree.proc, tree.cgroup)
    host = probe.read()
    assert host is not None
    assert host.available_bytes == (410020 - 20000 + 800000 - 20000 + 60000 - 20000) * KB
    assert any("MemAvailable" in note for note in probe.degraded)
    probe.close()


def test_the_estimate_is_near_what_this_kernel_says() -> None:
    probe = HostProbe()
    rows = probe.rows()
    probe.close()
    assert abs(estimate_available(rows, 0) - rows[b"MemAvailable"]) < rows[b"MemTotal"] // 10


def test_a_truncated_or_absent_meminfo_is_none_with_a_sentence(tree: Tree) -> None:
    (tree.proc / "meminfo").write_text("MemTotal:        38842")
    for root in (tree.proc, tree.root / "nowhere"):
        probe = HostProbe(root, tree.cgroup)
        assert probe.read() is None
        assert any("is not watched" in note for note in probe.degraded)
        probe.close()


def test_the_limit_of_a_container_cuts_the_headroom(tree: Tree, sample: Callable[[str], bytes]) -> None:
    board(tree, meminfo=sample("meminfo.container-sees-host-1T.txt").decode())
    gib = 1 << 30
    (tree.cgroup / "memory.max").write_text(f"{90 * gib}\n")
    (tree.cgroup / "memory.current").write_text(f"{80 * gib}\n")
    (tree.cgroup / "memory.stat").write_text(f"anon {75 * gib}\ninactive_file {3 * gib}\nactive_file {gib}\n")
    probe = HostProbe(tree.proc, tree.cgroup)
    host = probe.read()
    assert host is not None
    assert host.total_bytes == 90 * gib
    assert host.available_bytes == 14 * gib
    assert any("container" in note for note in probe.degraded)
    probe.close()


def test_a_container_without_a_limit_sees_the_host(tree: Tree, sample: Callable[[str], bytes]) -> None:
    board(tree, meminfo=sample("meminfo.container-sees-host-1T.txt").decode())
    (tree.cgroup / "memory.max").write_bytes(sample("memory.max.lxc-unlimited.txt"))
    (tree.cgroup / "memory.current").write_text("5\n")
    probe = HostProbe(tree.proc, tree.cgroup)
    host = probe.read()
    assert host is not None
    assert host.total_bytes == 1056450248 * KB
    probe.close()


def test_the_board_as_a_source(tree: Tree) -> None:
    board(tree, meminfo=MEMINFO + "NvMapMemUsed:     512000 kB\n")
    source = HostSource(budget_bytes=3 << 30, proc_root=tree.proc, cgroup_root=tree.cgroup)
    reading = source.read()
    assert reading is not None
    assert reading.source == "host"
    assert reading.current_bytes == (3884204 - 410020) * KB
    assert reading.anon_bytes == 2000000 * KB
    assert reading.swap_bytes == 100000 * KB
    assert reading.kernel_unreclaimable_bytes == 84000 * KB
    assert reading.file_mapped_bytes == 250000 * KB
    assert reading.driver_bytes == 512000 * KB
    assert (reading.high_bytes, reading.max_bytes) == (3 << 30, 3884204 * KB)
    assert (reading.scanned_pages, reading.stolen_pages, reading.major_faults) == (57, 45, 77)
    assert reading.events is not None
    assert reading.events.oom_kill == 2
    assert any("whole board" in note for note in source.degraded)
    source.close()


def test_a_thousand_reads_of_this_host_keep_the_descriptors_constant(
    open_descriptors: Callable[[], int], no_leaked_descriptors: None
) -> None:
    probe, source = HostProbe(), HostSource()
    held = open_descriptors()
    for _ in range(1000):
        host, reading = probe.read(), source.read()
    assert open_descriptors() == held
    assert host is not None
    assert reading is not None
    assert 0 < host.available_bytes <= host.total_bytes
    assert 0 < reading.anon_bytes < reading.current_bytes <= host.total_bytes
    probe.close()
    source.close()


def test_a_list_that_the_kernel_hands_out_by_pages_is_read_to_its_end(tree: Tree) -> None:
    filler = "".join(f"row_{number} {number}\n" for number in range(900))
    board(tree, vmstat=filler + "oom_kill 5\n")

    def a_page_at_most(fd: int, count: int, offset: int) -> bytes:
        return os.pread(fd, min(count, 4096), offset)

    probe = HostProbe(tree.proc, tree.cgroup, pread=a_page_at_most)
    host = probe.read()
    assert host is not None
    assert host.oom_kills == 5
    probe.close()


def test_the_oom_count_of_this_host_is_the_one_in_the_whole_file() -> None:
    probe = HostProbe()
    host = probe.read()
    assert host is not None
    assert (host.oom_kills is not None) == ("\noom_kill " in Path("/proc/vmstat").read_text())
    probe.close()


def test_one_row_is_found_only_as_a_whole_row() -> None:
    assert find_keyed(b"a 1\noom_kill 7\n", b"oom_kill") == 7
    assert find_keyed(b"oom_kill 7\na 1\n", b"oom_kill") == 7
    assert find_keyed(b"a 1\noom_kill 7", b"oom_kill") is None
    assert find_keyed(b"oom_kill x\n", b"oom_kill") is None
    assert find_keyed(b"a 1\nxoom_kill 7\n", b"oom_kill") is None
    assert find_keyed(b"", b"oom_kill") is None
