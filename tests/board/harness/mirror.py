"""The package mirror that the host itself uses, read from its apt sources."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.board.harness.lacks import BoardUnavailableError


@dataclass(frozen=True, slots=True)
class Source:
    """One archive of the host: its address, the suite and the components taken from it."""

    uri: str
    suite: str
    components: tuple[str, ...]


def one_line_sources(text: str) -> Iterator[Source]:
    """The binary archives of a `sources.list` file; options in brackets are passed over."""
    for raw in text.splitlines():
        line = re.sub(r"\[[^\]]*\]", " ", raw.split("#", 1)[0])
        words = line.split()
        if len(words) >= 3 and words[0] == "deb":
            yield Source(words[1].rstrip("/"), words[2], tuple(words[3:]))


def deb822_sources(text: str) -> Iterator[Source]:
    """The enabled binary archives of a `.sources` file (stanzas of `Field: value` with continuation lines)."""
    for stanza in re.split(r"\n\s*\n", text):
        fields: dict[str, str] = {}
        name = ""
        for line in stanza.splitlines():
            if line.startswith("#") or not line.strip():
                continue
            if line[0] in " \t":
                fields[name] = fields.get(name, "") + " " + line.strip()
                continue
            name, _, value = line.partition(":")
            name = name.strip().lower()
            fields[name] = value.strip()
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() in ("no", "false"):
            continue
        for uri in fields.get("uris", "").split():
            for suite in fields.get("suites", "").split():
                yield Source(uri.rstrip("/"), suite, tuple(fields.get("components", "").split()))


def host_sources(apt_dir: Path) -> list[Source]:
    """All binary archives under an `/etc/apt` folder, in apt's own order."""
    found: list[Source] = []
    listed = apt_dir / "sources.list"
    if listed.is_file():
        found += one_line_sources(listed.read_text(errors="replace"))
    parts = apt_dir / "sources.list.d"
    for path in sorted(parts.iterdir()) if parts.is_dir() else ():
        if path.suffix == ".list":
            found += one_line_sources(path.read_text(errors="replace"))
        elif path.suffix == ".sources":
            found += deb822_sources(path.read_text(errors="replace"))
    return found


def debian_mirror(apt_dir: Path = Path("/etc/apt"), os_release: Path = Path("/etc/os-release")) -> str:
    """The address of the Debian archive that this host installs from.

    It is the source whose suite is the host's own release and that has `main`; security and third-party
    archives have other suites. Raises BoardUnavailableError when there is none.
    """
    pairs = (line.partition("=") for line in os_release.read_text().splitlines())
    release = {key: value.strip('"') for key, _, value in pairs}
    if release.get("ID") != "debian":
        raise BoardUnavailableError(f"the host is {release.get('ID', 'unknown')}, not Debian: no mirror for the image")
    codename = release.get("VERSION_CODENAME", "")
    for source in host_sources(apt_dir):
        if source.suite == codename and "main" in source.components:
            return source.uri
    raise BoardUnavailableError(f"no source for suite {codename!r} with component main in {apt_dir}")
