"""Messages about memory that are no OOM kill, each called what it is.

They are told to a person because they explain a failure of a model server (an NPU buffer that does not fit into CMA,
a GPU that is out of memory), and they are kept apart from kills because alarms that cry "OOM" for them are false.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from slmguard.kernel_log.event import Notice
from slmguard.kernel_log.record import Record

LONGEST_TEXT = 300
LONGEST_SEARCHED = 1000  # the patterns hold `.*` and would take seconds on a line of 64 KiB made for them


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of notice. `hints`: one of them is in every such line, tested first because that is 20 times cheaper.

    `from_programs`: a program's own output counts too, for driver libraries print to stderr.
    """

    name: str
    hints: tuple[str, ...]
    pattern: re.Pattern[str]
    from_programs: bool = False


KINDS = (
    Kind(
        "page_allocation_failure",
        ("page allocation", "Unable to allocate"),
        re.compile(r"page allocation (?:failure|stalls)|Unable to allocate memory on node"),
    ),
    Kind(
        "cma_failure",
        ("cma", "CMA", "dma alloc of", "alloc_contig_range"),
        re.compile(
            r"\bcma(?:_alloc)?\b.*\balloc(?:ation)? failed|dma alloc of size \d+ failed|alloc_contig_range: .*busy"
            r"|[Ff]ailed to (?:reserve|allocate).*\b(?:CMA|cma)\b",
        ),
    ),
    Kind(
        "nvmap_failure",
        ("NvMap", "nvmap"),
        re.compile(r"\b(?:NvMap|nvmap)\w*.*(?:\berror\b|[Ff]ail|insufficient)"),
        from_programs=True,
    ),
    Kind(
        "nvrm_failure",
        ("NVRM: ",),
        re.compile(r"\bNVRM: .*(?:NV_ERR_NO_MEMORY|NV_ERR_INSUFFICIENT_RESOURCES|[Oo]ut of memory|[Ff]ailed to alloc)"),
        from_programs=True,
    ),
    Kind(
        "rknpu_failure",
        ("RK", "rk", "npu"),
        re.compile(
            r"\b(?:RKNPU|rknpu|RKNN|rknn|rkllm|RKLLM)\b.*(?:alloc|memory|malloc).*(?:fail|errno|-12)"
            r"|(?:RKNPU|rknpu|RKNN|rknn|rkllm|RKLLM)\b.*[Ff]ail(?:ed)? to (?:alloc|malloc|map|import)"
            r"|(?:malloc|alloc)\w* npu memory.*fail|failed to (?:allocate|malloc) (?:npu|handle)",
        ),
        from_programs=True,
    ),
    Kind(
        "swiotlb_full",
        ("swiotlb", "SW-IOMMU"),
        re.compile(r"swiotlb buffer is full|swiotlb: coherent alloc|Out of SW-IOMMU"),
    ),
    Kind("tcp_memory", ("TCP: ",), re.compile(r"TCP: (?:out of memory|too many orphaned sockets)")),
    Kind(
        "fault_without_kill",
        ("VM_FAULT_OOM", "pagefault_out_of_memory: "),
        re.compile(r"VM_FAULT_OOM leaked out|pagefault_out_of_memory: \d+ callbacks"),
    ),
    Kind(
        "vmalloc_failure",
        ("vmap", "vmalloc"),
        re.compile(r"vmap allocation for size \d+ failed|vmalloc(?: error|: alloc)"),
    ),
)
MENTION = re.compile(
    r"[Oo]ut[ -]of[ -][Mm]emory|\b[Oo][Oo][Mm]\b|OOMKill|oom-kill|Killed process|ALLOC_FAILED|lowmemorykiller"
)


def notice_in(record: Record) -> Notice | None:
    """What the record says about memory, if it is one of the kinds above or a program that speaks of OOM."""
    text = record.text[:LONGEST_SEARCHED]
    for kind in KINDS:
        if (record.from_kernel or kind.from_programs) and _holds(kind, text):
            return Notice(kind.name, text[:LONGEST_TEXT], record.time, record.line)
    if not record.from_kernel and MENTION.search(text):
        return Notice("userspace_mention", text[:LONGEST_TEXT], record.time, record.line)
    return None


def _holds(kind: Kind, text: str) -> bool:
    for hint in kind.hints:
        if hint in text:
            return kind.pattern.search(text) is not None
    return False
