"""The configuration file: every mistake a person can make gets one line that says what, where and what to do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slmguard import config
from slmguard.core.errors import UserError
from slmguard.core.model import Level
from slmguard.core.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
UNIT = '[unit]\nname = "llama-server.service"\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "unit is missing"),
        ("[unit]\n", "unit.name is missing"),
        ("[unit\n", "not valid TOML"),
        (UNIT + "[levls]\n", "unknown key 'levls'; did you mean 'levels'?"),
        (UNIT + "[levels]\nelevatd = 0.8\n", "unknown key 'levels.elevatd'; did you mean 'elevated'?"),
        (UNIT + "[ladder.trim]\natt = 'high'\n", "unknown key 'ladder.trim.att'; did you mean 'at'?"),
        (UNIT + "[ladder.jump]\n", "unknown key 'ladder.jump'"),
        (UNIT + "[levels]\nelevated = 'much'\n", "levels.elevated"),
        (UNIT + "[levels]\nelevated = 0.95\n", "elevated < high < critical"),
        (UNIT + "[levels]\nelevated = nan\n", "levels.elevated"),
        (UNIT + "[levels]\ncritical = 1.5\n", "levels.critical"),
        (UNIT + "[host]\nelevated = 0.01\n", "elevated > high > critical"),
        (UNIT + "[memory]\nbudget = '3 bananas'\n", "is no size"),
        (UNIT + "[memory]\nsource = 'process'\n", "set budget"),
        (UNIT + "[memory]\nsource = 'process'\nbudget = '3G'\nbudget_max = '2G'\n", "above budget_max"),
        (UNIT + "[memory]\nsource = 'gut feeling'\n", "memory.source"),
        (UNIT + "[server]\nkind = 'gpt'\n", "no such adapter; known are none"),
        (UNIT + "[server]\nurl = 'localhost:8080'\n", "server.url"),
        (UNIT + "[server]\nurl = 'http://user:secret@localhost'\n", "server.url"),
        (UNIT + "[server]\napi_key_credential = 'sk-live/../../etc'\n", "names a file in the credentials directory"),
        (UNIT + "[restart]\nmethod = 'command'\n", "needs command"),
        (UNIT + "[restart]\nmethod = 'command'\ncommand = ['reboot']\n", "absolute path"),
        (UNIT + "[restart]\nbudget_per_hour = -1\n", "restart.budget_per_hour"),
        (UNIT + "[metrics]\nlisten = 'everywhere'\n", "metrics.listen"),
        (UNIT + "[control]\nsocket = 'here.sock'\n", "control.socket"),
        (UNIT + "[run]\ninterval_min_s = 5\n", "above interval_max_s"),
        ('[unit]\nname = "--now"\n', "is no unit name"),
        ('[unit]\nname = "a b.service"\n', "is no unit name"),
        ("unit = 3\n", "unit"),
    ],
)
def test_a_mistake_gets_one_line_that_names_file_and_key(text: str, words: str) -> None:
    with pytest.raises(UserError) as caught:
        config.parse(text, "my.toml")
    message = str(caught.value)
    assert message.startswith("my.toml: ")
    assert words in message
    assert "\n" not in message
    assert caught.value.exit_code == 2


@given(st.text(max_size=200))
def test_any_text_is_valid_or_a_user_error(text: str) -> None:
    try:
        config.parse(text, "f")
    except UserError as error:
        assert "\n" not in str(error)  # noqa: PT017 - both outcomes are fine, but never another exception


@given(st.binary(max_size=300))
def test_any_file_is_valid_or_a_user_error(data: bytes) -> None:
    import tempfile

    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        try:
            config.load(Path(file.name))
        except UserError as error:
            assert file.name in str(error)  # noqa: PT017


def test_a_missing_or_huge_file_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        config.load(tmp_path / "none.toml")
    huge = tmp_path / "huge.toml"
    huge.write_bytes(b"#" * (config.MAX_FILE_BYTES + 1))
    with pytest.raises(UserError, match="larger than 1 MiB"):
        config.load(huge)
    with pytest.raises(UserError, match="cannot be read"):
        config.load(tmp_path)


@pytest.mark.parametrize(
    ("text", "size"),
    [("2600M", 2600 << 20), ("2.5G", 5 << 29), ("1k", 1024), ("123", 123), ("1 GiB", 1 << 30), ("3MB", 3 << 20)],
)
def test_sizes_read_as_systemd_writes_them(text: str, size: int) -> None:
    assert config.parse_size(text) == size


def test_a_short_file_means_the_defaults() -> None:
    options = config.parse('[unit]\nname = "llama-server"\n', "f")
    assert options.unit == "llama-server.service"
    assert options.core == Settings()


def test_the_shipped_example_lists_every_key_with_its_default() -> None:
    text = (ROOT / "packaging" / "slmguard.toml").read_text(encoding="utf-8")
    assert config.parse(text, "example").core == Settings()
    assert config.parse(text, "example") == config.parse(UNIT, "short")
    uncommented = re.sub(r"(?m)^#(\w+ = )", r"\1", text)
    for name, field in config.ConfigFile.model_fields.items():
        section = field.annotation
        keys = getattr(section, "model_fields", {})
        for key in keys:
            assert re.search(rf"(?m)^{key} = ", uncommented), f"[{name}] {key} is not in the example"


def test_rungs_can_be_moved_and_switched_off() -> None:
    options = config.parse(UNIT + '[ladder]\ntrim = { at = "critical" }\nrefuse = { enabled = false }\n', "f")
    assert options.core.ladder.trim.at is Level.CRITICAL
    assert not options.core.ladder.refuse.enabled
    assert options.core.ladder.trim.cooldown_s == Settings().ladder.trim.cooldown_s
