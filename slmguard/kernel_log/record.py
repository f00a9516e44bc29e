"""One kernel log record, whatever text it came in."""

from __future__ import annotations

from dataclasses import dataclass

FORMS = ("kmsg", "dmesg", "dmesg-T", "journal", "syslog")

KERNEL_FACILITY = 0


@dataclass(frozen=True, slots=True)
class Record:
    """The message without its prefix, and what the prefix said.

    `uptime_s` is the kernel's own clock (seconds since boot, stops during suspend); `time` is the stamp as text,
    ISO 8601 where the log gives a full date, else as printed. `caller` is the CONFIG_PRINTK_CALLER field ("T9694").
    `from_kernel` is False when the prefix names another program or facility: such text is never believed.
    `line` is the line number in the file, 0 for live records.
    """

    text: str
    form: str
    from_kernel: bool = True
    time: str | None = None
    uptime_s: float | None = None
    facility: int | None = None
    seq: int | None = None
    caller: str | None = None
    line: int = 0
