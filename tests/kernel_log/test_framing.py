"""What stands before a kernel message in the logs of this world, and whom it makes the speaker."""

from __future__ import annotations

import json

import pytest

from slmguard.kernel_log.framing import frame

KILL = "Out of memory: Killed process 42 (x y) total-vm:1kB, anon-rss:2kB, file-rss:3kB, shmem-rss:0kB, UID:0"
BARE_KILL = "Killed process 42 (x y) total-vm:1kB, anon-rss:2kB"
INVOKED = "llama-server invoked oom-killer: gfp_mask=0x100cca(GFP_HIGHUSER_MOVABLE), order=0, oom_score_adj=0"
KVM_INVOKED = "CPU 0/KVM invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=972"
SUMMARY = "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task=x,pid=42,uid=0"
MESSAGES = (KILL, BARE_KILL, INVOKED, KVM_INVOKED, SUMMARY, "Out of memory and no killable processes...")

KERNEL_PREFIXES = [
    # dmesg
    "",
    "[  123.456789] ",
    "[12345.678901] ",
    "[  123.456789,0] ",
    "[    0.123456] [    T1] ",
    "[  123.456789][ T9694] ",
    "[  123.456789][   C0] ",
    "[  +0.000012] ",
    "[ 1234.567890 <    0.000012>] ",
    "[<    0.000012>] ",
    "[May 6 10:00] ",
    "[May 6 10:00:01] ",
    "kern  :err   : [  123.456789] ",
    "kern  :err   : ",
    "2023-05-06T10:00:00,123456+02:00 ",
    # dmesg -T, in the language of the machine
    "[Wed Apr 26 15:46:13 2023] ",
    "[Di Aug 12 03:54:03 2025] ",
    "[五 5月 15 17:19:17 2026] ",
    "[mer. mars 26 02:14:58 2025] ",
    "[Срд Апр 26 15:46:13 2023] ",
    "kern  :err   : [Wed Apr 26 15:46:13 2023] ",
    # console and pstore
    "<3>[  123.456789] ",
    "<3>",
    "<4>[  123.456789] [  T12] ",
    "[2023-05-06 10:00:00] [   12.345678] ",
    "[10:00:00.123] [   12.345678] ",
    # vendor kernels
    "[  123.456789]  (2)[1234:kworker/2:1]",
    "[  123.456789] [0:  swapper/0:    1] ",
    "[  123.456789] c0      1 ",
    "[  123.456789] (CPU:0-pid:1:swapper/0) ",
    "[  123.456789] [pid:1,cpu0,init] ",
    # journalctl -k
    "kernel: ",
    "Oct 03 06:22:43 kernel: ",
    "18:20:47 kernel: ",
    "апр 28 01:23:30 board kernel: ",
    "3月 30 23:22:58 board kernel: ",
    "mars 01 10:28:39 board kernel: ",
    "28. Apr 01:23:30 board kernel: ",
    "2026-09-13T07:47:06-0400 board kernel: ",
    "2026-09-13T07:47:06.123456-0400 board kernel: ",
    "Mon 2023-05-06 10:00:00 CEST board kernel: ",
    "Jul 19 05:19:24.123456 board kernel: ",
    "1683360000.123456 board kernel: ",
    "[ 1234.567890] board kernel: ",
    # syslog daemons
    "kernel:",
    "Jul 19 05:19:24 board kernel: ",
    "Jul  9 05:19:24 board kernel[0]: ",
    "Jul 19 05:19:24 board kernel: [  123.456789] ",
    "Jul 19 05:19:24 board-1.example.org kernel: [123456.789012] [T1234] ",
    "2026-09-13T07:47:06.123456-04:00 board kernel: [  123.456789] ",
    "2023 Jul 19 05:19:24 board kernel: ",
    "Sat May  6 10:00:00 2023 kern.err kernel: [  12.345678] ",
    "Jan  1 00:00:12 (none) kern.err kernel: ",
    "<3>Jul 19 05:19:24 board kernel: [ 1.234567] ",
    "<0>1 2023-05-06T10:00:00.123Z board kernel - - - ",
    '<3>1 2023-05-06T10:00:00.123+02:00 board kernel - - [meta sequenceId="3"] [ 12.345678] ',
    "1 2023-05-06T10:00:00.123Z board kernel - - - ",
    "2023 May  6 10:00:00 switch %KERN-3-SYSTEM_MSG: [2324.230000] ",
    # netconsole
    "2016-12-17 21:37:07 192.0.2.23:6665 [ 1287.974353] ",
    "192.0.2.23:6665 [ 1287.974353] ",
    "6.4.0-rc1,3,1234,5678901,-;",
    "3,1234,5678901,-,ncfrag=0/1;",
    "2016-12-17 21:37:07 192.0.2.23:6665 3,1234,5678901,-;",
    # logcat -b kernel
    "05-06 10:00:00.123     0     0 E         : ",
    "05-06 10:00:00.123     0     0 W [  12.345678] ",
    "05-06 10:00:00.123     0     0 W ",
    "05-06 10:00:00.123  root     0     0 E         : ",
    # containers that print the kernel log, grep, mail, damaged starts of lines
    "2023-05-06T10:00:00.123456789Z stdout F [   12.345678] ",
    "klog_1  | [   12.345678] ",
    "kern.log:Jul 19 05:19:24 board kernel: ",
    "/var/log/kern.log.1:12:Jul 19 05:19:24 board kernel: [ 12.3456] ",
    "123:[  123.456789] ",
    "> [  123.456789] ",
    "41066.536886] ",
    "\x1b[32m[  123.456789] \x1b[0m\x1b[31m",
    "\ufeff[  123.456789] ",
    "\x00\x00Jul 19 05:19:24 board kernel: ",
]

FOREIGN_PREFIXES = [
    "Jul 19 05:19:24 board logger: ",
    "Jul 19 05:19:24 board root[123]: ",
    "Jul 19 05:19:24 board kernel[4711]: ",
    "Jul 19 05:19:24 board node-problem-detector[12]: ",
    "Jul 19 05:19:24 board systemd[1]: kernel: ",
    "Jul 19 05:19:24 board systemd[1]: [ 12.345678] ",
    "Jul 19 05:19:24 board journal: ",
    "Jul 19 05:19:24 board my-kernel: ",
    "Jul 19 05:19:24 board app: board kernel: ",
    "<13>Jul 19 05:19:24 board kernel: ",
    "<11>[  12.345678] ",
    "<14>1 2023-05-06T10:00:00.123Z board kernel - - - ",
    "<3>1 2023-05-06T10:00:00.123Z board app 12 - - ",
    "May  6 10:00:00 board user.err kernel: ",
    "May  6 10:00:00 board user.notice root: ",
    "May  6 10:00:00 user.err kernel: ",
    "2016-12-17 21:37:07 192.0.2.23:6665 12,1234,5678901,-;",
    "12,5,6,-;",
    "user  :err   : [  123.456789] ",
    "36m         Warning   OOMKilling          node/board   ",
    "2023-05-06T10:00:00.123456789Z stdout F ",
    "web_1  | ",
    "I0504 10:00:00.000000       1 log_monitor.go:160] New status: ",
    'time="2023-05-06T10:00:00Z" level=info msg="',
    "2023-05-06 10:00:00,123 INFO app: ",
    "2023-05-06 10:00:00 INFO ",
    "[ 1234.567890] board earlyoom[123]: ",
    "05-06 10:00:00.123   300   300 I kernel: ",
    "[Wed Apr 26 15:46:13 2023] [error] ",
    "$ echo ",
    "type=USER msg=audit(1.2:3): ",
    "systemd-oomd[666]: ",
]


@pytest.mark.parametrize("message", MESSAGES, ids=[message[:18] for message in MESSAGES])
@pytest.mark.parametrize("prefix", KERNEL_PREFIXES, ids=repr)
def test_the_kernels_message_is_left_when_its_prefix_is_taken_off(prefix: str, message: str) -> None:
    record = frame(prefix + message)
    assert record is not None
    assert record.from_kernel
    assert record.text == message


@pytest.mark.parametrize("prefix", FOREIGN_PREFIXES, ids=repr)
def test_what_another_program_quotes_is_not_the_kernels(prefix: str) -> None:
    for message in MESSAGES:
        record = frame(prefix + message)
        assert record is None or not record.from_kernel or record.text != message


def test_times_are_iso_where_the_log_has_a_full_date() -> None:
    times = {
        "[Wed Apr 26 15:46:13 2023] ": "2023-04-26T15:46:13",
        "2026-09-13T07:47:06-0400 board kernel: ": "2026-09-13T07:47:06-04:00",
        "2023-05-06T10:00:00,123456+02:00 ": "2023-05-06T10:00:00.123456+02:00",
        "Jul  9 05:19:24 board kernel: ": "Jul 9 05:19:24",
        "[  123.456789] ": "123.456789",
        "": None,
    }
    for prefix, time in times.items():
        record = frame(prefix + KILL)
        assert record is not None
        assert record.time == time


def test_sources_are_named_by_their_form() -> None:
    forms = {
        "": "dmesg",
        "[  123.456789] ": "dmesg",
        "[Wed Apr 26 15:46:13 2023] ": "dmesg-T",
        "Oct 03 06:22:43 board kernel: ": "journal",
        "Oct 03 06:22:43 board kernel: [  123.456789] ": "syslog",
        "3,5,6,-;": "kmsg",
    }
    assert {prefix: record.form for prefix in forms if (record := frame(prefix + KILL))} == forms
    named = frame(KILL, form="syslog")
    assert named is not None
    assert named.form == "syslog"


def test_a_raw_record_keeps_sequence_clock_caller_and_facility() -> None:
    record = frame(r"6,727,35945901675,-,caller=T123,future=1;a\x5cx2d \x09 \xf0\x9f\x98\x80 \xf0\x9f")
    assert record is not None
    assert (record.seq, record.uptime_s, record.caller, record.facility) == (727, 35945.901675, "T123", 0)
    assert record.text == "a\\x2d \t 😀 \ufffd"
    assert record.time == "35945.901675"


def test_a_raw_log_holds_nothing_but_raw_records() -> None:
    assert frame(" SUBSYSTEM=memory", form="kmsg") is None
    assert frame(KILL, form="kmsg") is None


def test_the_caller_of_a_dmesg_line_is_kept() -> None:
    record = frame("[   71.146532][ T9694] " + KILL)
    assert record is not None
    assert (record.caller, record.uptime_s) == ("T9694", 71.146532)


def test_a_repeated_message_is_read_inside_its_wrapper() -> None:
    record = frame(f"Jul 19 05:19:24 board kernel: message repeated 2 times: [ [ 12.345678] {KILL}]")
    assert record is not None
    assert record.text == KILL


def journal(**fields: object) -> str:
    return json.dumps({"MESSAGE": KILL, "__REALTIME_TIMESTAMP": "1700000000123456", **fields})


def test_a_journal_entry_is_the_kernels_when_journald_says_so() -> None:
    record = frame(journal(_TRANSPORT="kernel", _SOURCE_MONOTONIC_TIMESTAMP="12345678"))
    assert record is not None
    assert (record.text, record.from_kernel, record.uptime_s) == (KILL, True, 12.345678)
    assert record.time == "2023-11-14T22:13:20.123456+00:00"
    spoofed = frame(journal(_TRANSPORT="syslog", SYSLOG_IDENTIFIER="kernel", SYSLOG_FACILITY="0"))
    assert spoofed is not None
    assert not spoofed.from_kernel


def test_a_journal_message_that_is_no_utf_8_comes_as_bytes() -> None:
    record = frame(journal(MESSAGE=[*b"Killed process 1 (\xf0\x9f", *b") total-vm:1kB"], _TRANSPORT="kernel"))
    assert record is not None
    assert record.text == "Killed process 1 (\ufffd) total-vm:1kB"


def test_json_that_wraps_a_log_line_is_believed_only_with_a_kernel_prefix_inside() -> None:
    bare = frame(json.dumps({"log": KILL + "\n", "stream": "stdout", "time": "2023-05-06T10:00:00Z"}))
    framed = frame(json.dumps({"log": f"[  12.345678] {KILL}\n", "stream": "stdout", "time": "2023-05-06T10:00:00Z"}))
    assert bare is not None
    assert not bare.from_kernel
    assert framed is not None
    assert (framed.from_kernel, framed.text, framed.time) == (True, KILL, "2023-05-06T10:00:00Z")


def test_dmesg_json_is_read_line_by_line() -> None:
    record = frame(f'         "msg": {json.dumps(KILL)}')
    assert record is not None
    assert (record.text, record.form) == (KILL, "dmesg")


@pytest.mark.parametrize(
    "line", ["{", "{}", "[]", '{"MESSAGE": 5}', '{"MESSAGE": null}', "{" * 5000, '{"log": 1}', '"', "\x00"]
)
def test_damaged_json_is_no_record(line: str) -> None:
    assert frame(line) is None or line == "[]"
