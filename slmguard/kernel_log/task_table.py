"""The table of tasks that an OOM prints (unless vm.oom_dump_tasks is 0), for the incident report.

Columns differ by kernel: `nr_ptes` before 4.15, `pgtables_bytes` since, rss split into rss_anon, rss_file and
rss_shmem since 6.8, cpu and oom_adj in 2.6. The header says which are there, the name is the rest of the line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

PAGE_KB = 4
HEADER = re.compile(r"\[\s*pid\s*\]\s+uid\s+tgid\s+total_vm\b.*\bname\s*$")
ROW = re.compile(r"\[\s*(\d{1,10})\]\s+(.*)$")


@dataclass(frozen=True, slots=True)
class TaskRow:
    """One task at the moment of the OOM; None where the table has no such column. `rss_kb` is all resident memory."""

    pid: int
    comm: str
    uid: int | None
    rss_kb: int | None
    rss_anon_kb: int | None
    swap_kb: int | None
    oom_score_adj: int | None


def parse_task_table(lines: Iterable[str], page_kb: int = PAGE_KB) -> list[TaskRow]:
    """The rows of the last table in `lines`; cut and foreign lines are left out. `page_kb`: the page size."""
    columns: list[str] = []
    rows: list[TaskRow] = []
    for line in lines:
        if HEADER.match(line):
            columns = line.partition("]")[2].split()[:-1]
            rows = []
            continue
        match = ROW.match(line) if columns else None
        row = _row(int(match[1]), match[2], columns, page_kb) if match else None
        if row is not None:
            rows.append(row)
    return rows


def _row(pid: int, rest: str, columns: list[str], page_kb: int) -> TaskRow | None:
    fields = rest.split(None, len(columns))
    if len(fields) != len(columns) + 1:
        return None
    try:
        values = {name: int(field) for name, field in zip(columns, fields, strict=False)}
    except ValueError:
        return None

    def kb(name: str) -> int | None:
        return values[name] * page_kb if name in values else None

    return TaskRow(
        pid=pid,
        comm=fields[-1],
        uid=values.get("uid"),
        rss_kb=kb("rss"),
        rss_anon_kb=kb("rss_anon"),
        swap_kb=kb("swapents"),
        oom_score_adj=values.get("oom_score_adj"),
    )
