"""Whatever a process is called and whatever a log loses: every kill is found, and nobody is killed who was not."""

from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slmguard.kernel_log.event import OomEvent
from slmguard.kernel_log.record import FORMS
from slmguard.kernel_log.scan import LogScan

from .generated import PREFIXES, STYLES, Kill, kills, lines_of

RUNS = settings(max_examples=120, deadline=None)


def events_of(lines: list[str], form: str = "auto") -> list[OomEvent]:
    data = "\n".join(lines).encode("utf-8", "surrogatepass") + b"\n"
    return list(LogScan(io.BytesIO(data), "generated", form).events())


def printed(all_kills: list[Kill], prefix: str, style: str) -> list[str]:
    texts = [text for kill in all_kills for text in lines_of(kill, style)]
    return [PREFIXES[prefix](number, text) for number, text in enumerate(texts)]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("prefix", PREFIXES)
@settings(RUNS, max_examples=40)
@given(data=st.data())
def test_every_kill_comes_back_whole_through_every_form(prefix: str, style: str, data: st.DataObject) -> None:
    kill = data.draw(kills(for_kmsg=prefix.startswith("kmsg")))
    (event,) = events_of(printed([kill], prefix, style))
    assert (event.victim_pid, event.victim_comm or "", event.kind) == (kill.pid, kill.comm, kill.kind)
    assert event.anon_rss_kb == kill.anon_kb
    if style != "3.x":
        assert (event.uid, event.oom_score_adj) == (kill.uid, kill.adj)
    if style != "rate-limited":
        assert (event.invoker_comm, event.gfp_order) == (kill.invoker, 0)
    if style == "6.x" or (style == "3.x" and kill.kind == "memcg"):
        assert event.task_memcg == kill.task_memcg
        assert event.oom_memcg == (kill.oom_memcg if kill.kind == "memcg" else None)


@pytest.mark.parametrize("style", STYLES)
@RUNS
@given(
    all_kills=st.lists(kills(), min_size=2, max_size=8, unique_by=lambda kill: kill.pid),
    prefix=st.sampled_from(list(PREFIXES)),
)
def test_a_row_of_kills_keeps_its_order_and_mixes_nothing(style: str, all_kills: list[Kill], prefix: str) -> None:
    found = events_of(printed(all_kills, prefix, style))
    assert [(event.victim_pid, event.anon_rss_kb, event.kind) for event in found] == [
        (kill.pid, kill.anon_kb, kill.kind) for kill in all_kills
    ]
    if style == "6.x":
        assert [event.task_memcg for event in found] == [kill.task_memcg for kill in all_kills]


@pytest.mark.parametrize("style", STYLES)
@RUNS
@given(
    all_kills=st.lists(kills(), min_size=1, max_size=4, unique_by=lambda kill: kill.pid),
    prefix=st.sampled_from(list(PREFIXES)),
    data=st.data(),
)
def test_records_cut_or_lost_anywhere_invent_no_victim(
    style: str, all_kills: list[Kill], prefix: str, data: st.DataObject
) -> None:
    lines = []
    for line in printed(all_kills, prefix, style):
        fate = data.draw(st.sampled_from(["whole", "whole", "cut", "lost"]))
        # A name that spells ",pid=1,uid=0" and a cut right behind it cannot be told from a whole line.
        end = (
            data.draw(st.integers(0, len(line)))
            if fate == "cut" and ",pid=" not in "".join(k.comm for k in all_kills)
            else len(line)
        )
        if fate != "lost":
            lines.append(line[:end])
    assert {event.victim_pid for event in events_of(lines)} <= {kill.pid for kill in all_kills}


@RUNS
@given(
    kill=kills(),
    prefix=st.sampled_from(list(PREFIXES)),
    noise=st.lists(
        st.sampled_from(
            [
                "Jul 19 05:19:24 board systemd[1]: x.service: A process has been killed by the OOM killer.",
                "Jul 19 05:19:24 board npd[7]: Out of memory: Killed process 1 (init) total-vm:1kB",
                "docker0: port 2(vethcd0dbfb) entered disabled state",
                "[    7.000000] oom_reaper: reaped process 5 (x), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB",
                "12,5,6,-;Out of memory: Killed process 1 (init) total-vm:1kB",
                " SUBSYSTEM=memory",
                "",
                "\x00\x00\x00",
            ]
        ),
        max_size=8,
    ),
    data=st.data(),
)
def test_lines_of_others_in_between_change_nothing(
    kill: Kill, prefix: str, noise: list[str], data: st.DataObject
) -> None:
    lines = printed([kill], prefix, "6.x")
    expected = [event.document() for event in events_of(lines)]
    for line in noise:
        lines.insert(data.draw(st.integers(0, len(lines))), line)
    assert [event.document() for event in events_of(lines)] == expected


@RUNS
@given(kill=kills(), prefix=st.sampled_from(list(PREFIXES)), repeats=st.integers(2, 4))
def test_a_kill_printed_again_and_again_is_one(kill: Kill, prefix: str, repeats: int) -> None:
    assert len(events_of(printed([kill] * repeats, prefix, "6.x"))) == 1


@RUNS
@given(
    lines=st.lists(
        st.text(max_size=60) | st.binary(max_size=60).map(lambda raw: raw.decode("utf-8", "replace")), max_size=6
    ),
    form=st.sampled_from(["auto", *FORMS]),
)
def test_arbitrary_text_is_read_without_a_crash_and_kills_nobody(lines: list[str], form: str) -> None:
    assert events_of(lines, form) == []
