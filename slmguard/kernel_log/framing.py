"""From a line of text to a Record: takes off what dmesg, journalctl, syslog daemons, netconsole or logcat put first.

Captures mix forms (serial console, mail, two prefixes on one line), so the forms are not chosen per file: prefixes are
taken off one after the other until a message is left. What matters most is who speaks. A prefix that names a program
other than the kernel makes the whole line untrusted, whatever it quotes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from slmguard.kernel_log.kmsg_record import parse_kmsg
from slmguard.kernel_log.record import Record
from slmguard.kernel_log.stamps import iso_or_as_printed

# A kernel message about OOM may itself look like "time host tag:", so these beginnings end the search for prefixes.
MESSAGE_START = re.compile(
    r"(?:Memory cgroup )?[Oo]ut of [Mm]emory|Kill(?:ed)? process \d|oom-kill(?:er)?:|Tasks? in /|Memory limit reached"
    r"|Kernel panic|lowmemorykiller: |OOM killed process|send sigkill to"
)
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
JUNK_BEFORE = " \t\r\x00\ufeff>`"
MAX_PREFIXES = 10

FOREIGN_FACILITY = r"(?:user|daemon|auth|authpriv|syslog|cron|mail|local\d)\.[a-z]+\s+kernel"  # BusyBox without a host

# The two most common beginnings, alone or together, in one step: half of the time of the general way.
COMMON = re.compile(
    r"(?:([A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d) (?!kernel:|" + FOREIGN_FACILITY + r")[^\s:\[\]]{1,255} kernel: )?"
    r"(?:\[ {0,12}(\d{1,12}\.\d{6})\] +)?"
)

PRIORITY = re.compile(r"<(\d{1,3})>\s?")
SYSLOG_5424 = re.compile(
    r"1 (\S+) (\S+) (\S+) (\S+) (\S+) (?:-|(?:\[(?:[^\]\\]|\\.)*\])+)(?: |$)(?:\ufeff)?",
)
UPTIME = re.compile(r"\[?<?\s*(\d{1,12}\.\d{1,9})(?:,\d)?(?:\s*<\s*-?\d+\.\d+>)?\s*\]\s*")
DELTA = re.compile(r"\[\s*(?:\+\d+\.\d+|<\s*\d+\.\d+>)\s*\]\s?")
CALLER = re.compile(r"\[\s*([TC]\d+)(?:@[TC]?\d+)?\]\s?")
# Vendor kernels (MediaTek, Samsung, Qualcomm, Huawei, Spreadtrum) print cpu and task after the time.
VENDOR = re.compile(
    r"(?:\(\d+\)\s?)?\[\d+:[^\]\[]{0,40}\]\s?|\(CPU:\d+-pid:[^)]*\)\s?|\[pid:[^\]]{0,60}\]\s?|c\d\s+\d+\s|\(\d\)\s?"
)
BRACKETED_DATE = re.compile(
    r"\[([^\[\]]{0,40}?\b\d{1,2}:\d\d(?::\d\d)?(?:[.,]\d+)?(?:\s[^\[\]]{0,24}|[Z+-][^\[\]]{0,6})?)\]\s?"
)
# A zone's name follows only after a weekday (journalctl -o short-full): elsewhere it is a log level.
ISO_DATE = re.compile(
    r"(\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:\s?(?:Z|[+-]\d\d:?\d\d))?"
    r"|[^\W\d]{1,5}\.?\s\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?(?:\s[A-Z]{3,5}|\s[+-]\d\d)?)[:\s]\s*"
)
UNIX_TIME = re.compile(r"(\d{10}\.\d{3,9})\s+")
# Up to four words of a date in any language, then a time of day.
WORDY_DATE = re.compile(
    r"((?:[^\s:\[\]<>()=]{1,12}\s+){0,4}?\d{1,2}:\d\d:\d\d(?:[.,]\d+)?(?:\s?(?:AM|PM|Z|[+-]\d\d:?\d\d))?"
    r"(?:\s[A-Z]{3,5}(?=\s\d{4}))?(?:\s+(?:19|20)\d\d(?=\s))?):?\s+"
)
DMESG_FACILITY = re.compile(r"(kern|user|mail|daemon|auth|syslog|lpr|news|uucp|cron|authpriv|ftp|local\d)\s*:\w+\s*:\s")
KERNEL_TAG = re.compile(
    r"(?:(?!" + FOREIGN_FACILITY + r")(\S+)\s+)?(?:([a-z0-9]+)\.[a-z]+\s+)?"
    r"(?:kernel|klogd|vmunix)(?:\[0\])?:\s?(?:kernel:\s)?"
)
NX_OS_TAG = re.compile(r"(?:\S+\s+)?%KERN-\d-SYSTEM_MSG:\s")
PROGRAM_TAG = re.compile(r"(?:\S+\s+)?(?:[a-z0-9]+\.[a-z]+\s+)?[^\s:\[\]]+(?:\[[^\]\s]*\])?:(?:\s|$)")
HOST_THEN_UPTIME = re.compile(r"\S+\s+(?=\[\s*\d+\.\d+\])")
NETCONSOLE = re.compile(r"(?:\d{1,3}\.){3}\d{1,3}(?::\d{1,5})?\s+(?=\[|<|\d+,\d+,\d+,)")
LOGCAT = re.compile(
    r"(?:\d{4}-)?\d\d-\d\d \d\d:\d\d:\d\d\.\d+\s+(?:"
    r"(?:[a-z_]\w*\s+)?(?P<pid>\d+)[\s-]+(?P<tid>\d+)\s+(?P<rest>.*)|[VDIWEF]/(?P<tag>[^(]*)\(\s*(?P<briefpid>\d+)\):\s?(?P<brief>.*))"
)
LOGCAT_REST = re.compile(r"[VDIWEF]\s+(?:(?:kernel)?\s*:\s)?(.*)")  # what stands before a colon is taken for a tag
CONTAINER = re.compile(r"\d{4}-\d\d-\d\dT\S+ (?:stdout|stderr) [FP] |[\w.-]+\s+\| ")
GREP_FILE = re.compile(
    r"(?:[\w./@+-]{0,200}[/.][\w./@+-]{0,200}[:-])?(?:\d{1,10}[:-])?(?=\[\s*\d+\.\d|<\d+>|\w{3}\s+\d{1,2}\s\d\d:|\d{4}-\d\d-\d\d)"
)
REPEATED = re.compile(r"message repeated \d+ times: \[ ?(.*)\]$")


@dataclass(slots=True)
class _Prefix:
    """What the prefixes have said so far."""

    rest: str
    stamp: str | None = None
    uptime: str | None = None
    facility: int | None = None
    caller: str | None = None
    kernel_tag: bool = False
    foreign: bool = False
    container: bool = False
    date_in_brackets: bool = False

    def try_take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self.rest)
        if match is None or match.end() == 0:
            return None
        self.rest = self.rest[match.end() :]
        return match


def frame(line: str, *, number: int = 0, form: str = "auto") -> Record | None:
    """The record in one line of a log, or None when there is none (an empty line, a kmsg dictionary line).

    `form` is one of FORMS or "auto". It is a hint: "kmsg" accepts raw records only, the others name the source
    where the line itself does not tell.
    """
    line = line.rstrip("\r\n\x00 \t")
    if form == "kmsg" or (form == "auto" and line[:1].isdigit()):
        record = parse_kmsg(line, line=number)
        if record is not None or form == "kmsg":
            return record
    if "\x1b" in line:
        line = COLOUR.sub("", line)
    line = line.lstrip(JUNK_BEFORE)
    if not line:
        return None
    if line[0] in '{"':
        from slmguard.kernel_log.json_lines import frame_json

        return frame_json(line, number)
    prefix = _strip(line)
    if prefix.stamp is not None and prefix.rest[:1].isdigit():
        record = parse_kmsg(prefix.rest, line=number, time=iso_or_as_printed(prefix.stamp))  # extended netconsole
        if record is not None:
            return record
    return _record(prefix, number, form)


def _strip(line: str) -> _Prefix:
    prefix = _Prefix(line)
    common = COMMON.match(line)
    if common is not None and common.end() > 0:
        prefix.rest = line[common.end() :]
        prefix.stamp, prefix.uptime = common[1], common[2]
        prefix.kernel_tag = common[1] is not None
    for _ in range(MAX_PREFIXES):
        if prefix.foreign or MESSAGE_START.match(prefix.rest):
            break
        if not _take_one(prefix):
            break
    repeated = REPEATED.match(prefix.rest)
    if repeated:
        return _strip_repeated(prefix, repeated[1])
    return prefix


def _strip_repeated(prefix: _Prefix, inner: str) -> _Prefix:
    prefix.rest = inner
    prefix.try_take(UPTIME)
    return prefix


def _take_one(prefix: _Prefix) -> bool:
    """Take one prefix off; False when none is left."""
    first = prefix.rest[:1]
    if first == "<":
        return _take_priority(prefix)
    if (first in "[(" or first.isdigit()) and _take_bracket(prefix):
        return True
    if prefix.uptime is not None and not prefix.kernel_tag and prefix.try_take(VENDOR):
        return True
    return _take_words(prefix)


def _take_priority(prefix: _Prefix) -> bool:
    match = prefix.try_take(PRIORITY)
    if match is None:
        return False
    prefix.facility = int(match[1]) >> 3
    prefix.foreign = prefix.facility != 0
    match = prefix.try_take(SYSLOG_5424)
    if match:
        _apply_5424(prefix, match)
    return True


def _apply_5424(prefix: _Prefix, match: re.Match[str]) -> None:
    prefix.stamp = match[1]
    prefix.kernel_tag = match[3] == "kernel"
    prefix.foreign = prefix.foreign or not prefix.kernel_tag


def _take_bracket(prefix: _Prefix) -> bool:
    match = prefix.try_take(UPTIME)
    if match:
        prefix.uptime = match[1]
        return True
    match = prefix.try_take(CALLER)
    if match:
        prefix.caller = match[1]
        return True
    match = prefix.try_take(BRACKETED_DATE)
    if match:
        prefix.stamp = match[1]
        prefix.date_in_brackets = True
        return True
    if prefix.try_take(DELTA):
        return True
    return prefix.uptime is not None and prefix.try_take(VENDOR) is not None


def _take_words(prefix: _Prefix) -> bool:
    if prefix.kernel_tag:
        return False
    if _take_logcat(prefix) or _take_date(prefix) or prefix.try_take(NETCONSOLE):
        return True
    match = prefix.try_take(KERNEL_TAG)
    if match:
        prefix.kernel_tag = True
        prefix.foreign = (match[2] or "kern") != "kern"
        return True
    if prefix.try_take(NX_OS_TAG):
        prefix.kernel_tag = True
        return True
    match = prefix.try_take(DMESG_FACILITY)
    if match:
        prefix.foreign = match[1] != "kern"
        return True
    if prefix.stamp is not None and prefix.uptime is None and not prefix.date_in_brackets:
        return _take_tag(prefix)
    return prefix.stamp is None and prefix.uptime is None and prefix.try_take(GREP_FILE) is not None


def _take_date(prefix: _Prefix) -> bool:
    if CONTAINER.match(prefix.rest):
        prefix.try_take(CONTAINER)
        prefix.container = True
        return True
    if prefix.stamp is not None:
        return False
    match = prefix.try_take(ISO_DATE) or prefix.try_take(UNIX_TIME)
    if match is None and (match := SYSLOG_5424.match(prefix.rest)):
        prefix.rest = prefix.rest[match.end() :]
        _apply_5424(prefix, match)
        return True
    if match is None and prefix.uptime is None:
        match = prefix.try_take(WORDY_DATE)
    if match is None:
        return False
    prefix.stamp = match[1]
    return True


def _take_tag(prefix: _Prefix) -> bool:
    """After a date: another program's tag makes the line foreign; a host (netconsole) may stand before the uptime."""
    if prefix.try_take(HOST_THEN_UPTIME):
        return True
    if PROGRAM_TAG.match(prefix.rest) and not KERNEL_ONLY.match(prefix.rest):
        prefix.foreign = True
        return True
    return False


# "comm invoked oom-killer: …" after a bare date is two words and no tag; other kernel messages with a one-word
# beginning are of no interest, so they may pass for a program's.
KERNEL_ONLY = re.compile(r"oom_reaper: |oom-kill")


def _take_logcat(prefix: _Prefix) -> bool:
    if prefix.stamp is not None or not prefix.rest[:1].isdigit():
        return False
    match = LOGCAT.match(prefix.rest)
    if match is None:
        return False
    prefix.stamp = " ".join(match[0].split()[:2])
    if match["pid"] is not None:
        rest = LOGCAT_REST.match(match["rest"]) if int(match["pid"]) == 0 and int(match["tid"]) == 0 else None
        message = rest[1] if rest else None
    else:
        message = match["brief"] if match["tag"].strip() in ("", "kernel") and int(match["briefpid"]) == 0 else None
    prefix.foreign = message is None
    prefix.kernel_tag = message is not None
    prefix.rest = message if message is not None else match[0]
    return True


def _record(prefix: _Prefix, number: int, form: str) -> Record:
    from_kernel = not prefix.foreign and (
        not prefix.container or prefix.uptime is not None or prefix.kernel_tag or prefix.facility == 0
    )
    return Record(
        text=prefix.rest,
        form=_form(prefix) if form == "auto" else form,
        from_kernel=from_kernel,
        time=iso_or_as_printed(prefix.stamp) if prefix.stamp else prefix.uptime,
        uptime_s=float(prefix.uptime) if prefix.uptime else None,
        facility=prefix.facility,
        caller=prefix.caller,
        line=number,
    )


def _form(prefix: _Prefix) -> str:
    """The source's name. journalctl -k and syslog files print the same; the kernel's own time tells them apart."""
    if prefix.date_in_brackets:
        return "dmesg-T"
    if prefix.stamp is not None:
        return "syslog" if prefix.uptime is not None or prefix.facility is not None else "journal"
    return "journal" if prefix.kernel_tag or prefix.foreign else "dmesg"
