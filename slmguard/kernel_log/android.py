"""The low memory killer that Android's kernels had until 4.12 (`drivers/staging/android/lowmemorykiller.c`).

It prints one message over four lines, and the end of a package name as the process's name. The userspace lmkd that
replaced it writes to the system log under the same name ("Kill 'x' (pid), uid …") and is not the kernel.
"""

from __future__ import annotations

import re

from slmguard.kernel_log.event import ANDROID_LMK, OomEvent

KILLING = re.compile(
    r"lowmemorykiller: Killing '(?P<comm>.{0,60}?)' \((?P<pid>\d{1,7})\)(?: \(tgid \d+\))?, adj (?P<adj>-?\d{1,4})\b"
)
SIGKILL = re.compile(
    r"(?:lowmemorykiller: |lowmem_shrink )?send sigkill to (?P<pid>\d{1,7}) \((?P<comm>.{0,60}?)\)"
    r",.*?adj (?P<adj>-?\d{1,4})\b"
)
ON_BEHALF = re.compile(r"(?:lowmemorykiller: .*)?\s*to free -?\d+kB on behalf of '(.{0,60}?)' \(\d+\)")


def parse_lmk(text: str) -> OomEvent | None:
    """The kill of the in-kernel low memory killer, or None."""
    match = KILLING.match(text) or SIGKILL.match(text)
    if match is None:
        return None
    beneficiary = ON_BEHALF.search(text)
    adj = int(match["adj"])
    return OomEvent(
        ANDROID_LMK,
        victim_pid=int(match["pid"]),
        victim_comm=match["comm"],
        oom_score_adj=adj if -1000 <= adj <= 1000 else None,
        invoker_comm=beneficiary[1] if beneficiary else None,
    )


def parse_lmk_beneficiary(text: str) -> str | None:
    """For whom the memory was freed: the second line of the message."""
    match = ON_BEHALF.match(text)
    return match[1] if match else None
