"""Messages about memory that are no OOM kill, each called what it is.

They are told to a person because they explain a failure of a model server (an NPU buffer that does not fit into CMA,
a GPU that is out of memory), and they are kept apart from kills because alarms that cry "OOM" for them are false.
"""

from __future__ import annotations

import re

from slmguard.kernel_log.event import Notice
from slmguard.kernel_log.record import Record

LONGEST_TEXT = 300

# kind, pattern, whether a program's own output counts too (driver libraries print to stderr)
KINDS: tuple[tuple[str, re.Pattern[str], bool], ...] = (
    (
        "page_allocation_failure",
        re.compile(r"page allocation (?:failure|stalls)|SLUB: Unable to allocate memory"),
        False,
    ),
    (
        "cma_failure",
        re.compile(
            r"\bcma(?:_alloc)?\b.*\balloc(?:ation)? failed|dma alloc of size \d+ failed|alloc_contig_range: .*busy"
            r"|[Ff]ailed to (?:reserve|allocate).*\b(?:CMA|cma)\b",
        ),
        False,
    ),
    ("nvmap_failure", re.compile(r"\b(?:NvMap|nvmap)\w*.*(?:\berror\b|[Ff]ail|insufficient)"), True),
    (
        "nvrm_failure",
        re.compile(r"\bNVRM: .*(?:NV_ERR_NO_MEMORY|NV_ERR_INSUFFICIENT_RESOURCES|[Oo]ut of memory|[Ff]ailed to alloc)"),
        True,
    ),
    (
        "rknpu_failure",
        re.compile(
            r"\b(?:RKNPU|rknpu|RKNN|rknn|rkllm|RKLLM)\b.*(?:alloc|memory|malloc).*(?:fail|errno|-12)"
            r"|(?:RKNPU|rknpu|RKNN|rknn|rkllm|RKLLM)\b.*[Ff]ail(?:ed)? to (?:alloc|malloc|map|import)"
            r"|(?:malloc|alloc)\w* npu memory.*fail|failed to (?:allocate|malloc) (?:npu|handle)",
        ),
        True,
    ),
    (
        "swiotlb_full",
        re.compile(r"swiotlb buffer is full|swiotlb: coherent allocation failed|DMA: Out of SW-IOMMU"),
        False,
    ),
    ("tcp_memory", re.compile(r"TCP: (?:out of memory|too many orphaned sockets)"), False),
    ("fault_without_kill", re.compile(r"VM_FAULT_OOM leaked out|pagefault_out_of_memory: \d+ callbacks"), False),
    (
        "vmalloc_failure",
        re.compile(r"vmap allocation for size \d+ failed|vmalloc error|vmalloc: allocation failure"),
        False,
    ),
)
MENTION = re.compile(
    r"[Oo]ut[ -]of[ -][Mm]emory|\b[Oo][Oo][Mm]\b|OOMKill|oom-kill|Killed process|ALLOC_FAILED|lowmemorykiller"
)


def notice_in(record: Record) -> Notice | None:
    """What the record says about memory, if it is one of the kinds above or a program that speaks of OOM."""
    text = record.text
    for kind, pattern, from_programs in KINDS:
        if (record.from_kernel or from_programs) and pattern.search(text):
            return Notice(kind, text[:LONGEST_TEXT], record.time, record.line)
    if not record.from_kernel and MENTION.search(text):
        return Notice("userspace_mention", text[:LONGEST_TEXT], record.time, record.line)
    return None
