from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slmguard.sources.driver_memory import (
    DMA_BUF_INFO,
    NVMAP_CLIENTS,
    DmaHeapProbe,
    NvmapProbe,
    find_driver_probe,
    parse_dma_buf_info,
    parse_nvmap_clients,
)

Sample = Callable[[str], bytes]
KB = 1024


def placed(root: Path, where: Path, content: bytes) -> Path:
    (root / where).parent.mkdir(parents=True)
    (root / where).write_bytes(content)
    return root


def test_nvmap_clients_of_an_orin(sample: Sample) -> None:
    clients = parse_nvmap_clients(sample("nvmap_iovmm_clients.orin-gem.txt").decode())
    assert clients.bytes_by_pid == {4481: 118372 * KB, 2831: 5384 * KB, 1731: 18140 * KB, 1012: 0}
    assert clients.total_bytes == 141896 * KB == sum(clients.bytes_by_pid.values())


def test_nvmap_clients_with_a_pss_column_take_size_from_the_last(sample: Sample) -> None:
    clients = parse_nvmap_clients(sample("nvmap_iovmm_clients.pss-column.txt").decode())
    assert clients.bytes_by_pid == {4678: 76 * KB}
    assert clients.total_bytes == 76 * KB


def test_a_process_name_with_blanks_and_digits_is_read_from_the_right() -> None:
    text = "CLIENT PROCESS PID SIZE\nuser   llama server 7 12     4211    3145728K\ntotal   3145728K\n"
    assert parse_nvmap_clients(text).bytes_by_pid == {4211: 3145728 * KB}


def test_the_service_gets_its_own_clients_and_never_more_than_the_total(tmp_path: Path, sample: Sample) -> None:
    root = placed(tmp_path, NVMAP_CLIENTS, sample("nvmap_iovmm_clients.orin-gem.txt"))
    probe = find_driver_probe(root)
    assert isinstance(probe, NvmapProbe)
    assert probe.read([4481, 1731, 9]) == (118372 + 18140) * KB
    assert probe.read([9]) == 0
    (root / NVMAP_CLIENTS).write_text("CLIENT PROCESS PID SIZE\nuser a 1 90K\nuser b 2 90K\ntotal 100K\n")
    assert probe.read([1, 2]) == 100 * KB


def test_a_table_of_zeros_as_on_thor_tells_nothing(tmp_path: Path) -> None:
    root = placed(tmp_path, NVMAP_CLIENTS, b"CLIENT PROCESS PID SIZE\nuser a 1 0K\ntotal 0K\n")
    assert NvmapProbe(root).read([1]) is None


def test_a_board_without_these_files_tells_nothing(tmp_path: Path) -> None:
    assert find_driver_probe(tmp_path) is None
    assert NvmapProbe(tmp_path).read([1]) is None
    assert DmaHeapProbe(tmp_path).read([1]) is None


def test_dma_buffers_with_inode_and_name(sample: Sample) -> None:
    buffers = parse_dma_buf_info(sample("dma_buf_bufinfo.cma-npu-fixture.txt").decode())
    assert sum(buffer.size_bytes for buffer in buffers) == 3674112
    assert [(buffer.exporter, buffer.inode, buffer.name) for buffer in buffers] == [
        ("linux,cma", 14, ""),
        ("simaai,dms", 13, "weights"),
        ("linux,cma", 4, "input"),
        ("linux,cma", 3, "camera"),
    ]


@pytest.mark.parametrize(
    ("name", "sizes", "inodes"),
    [
        ("dma_buf_bufinfo.etnaviv-2017.txt", [8294400], [None]),
        ("dma_buf_bufinfo.radeon-5.19-head.txt", [3784704, 8355840], [110, 106]),
    ],
)
def test_dma_buffers_of_older_kernels(sample: Sample, name: str, sizes: list[int], inodes: list[int | None]) -> None:
    buffers = parse_dma_buf_info(sample(name).decode())
    assert [buffer.size_bytes for buffer in buffers] == sizes
    assert [buffer.inode for buffer in buffers] == inodes
    assert {buffer.exporter for buffer in buffers} == {"drm"}


def test_only_buffers_that_no_cgroup_pays_for_are_counted(tmp_path: Path, sample: Sample) -> None:
    root = placed(tmp_path, DMA_BUF_INFO, sample("dma_buf_bufinfo.cma-npu-fixture.txt"))
    assert DmaHeapProbe(root).read([]) == 4096 + 1048576 + 524288


TEXTS = st.text(max_size=300) | st.text(alphabet="userCLINTPOS DZEKtal0123456789\n\t_xpnamiod", max_size=300)


@given(TEXTS)
def test_no_text_makes_the_parsers_raise(text: str) -> None:
    for table in ("CLIENT PROCESS PID SIZE\n" + text, text):
        assert parse_nvmap_clients(table) == parse_nvmap_clients(table)
    for table in ("size flags mode count exp_name ino name\n" + text, text):
        assert all(buffer.size_bytes >= 0 for buffer in parse_dma_buf_info(table))


@given(
    st.dictionaries(st.integers(1, 2**22), st.integers(0, 2**33), max_size=10),
    TEXTS.filter(lambda text: "\n" not in text),
)
def test_every_client_is_found_whatever_its_name(clients: dict[int, int], name: str) -> None:
    rows = [f"user {name} {pid} {size}K" for pid, size in clients.items()]
    text = "\n".join(["CLIENT PROCESS PID SIZE", *rows])
    if len(text.splitlines()) == len(rows) + 1 and name.strip():
        assert parse_nvmap_clients(text).bytes_by_pid == {pid: size * KB for pid, size in clients.items()}
