"""The lean imports leave nothing behind: what they held back can be had afterwards, and the libraries work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import sys
from slmguard import lean_imports
lean_imports.prepare()
assert not [n for n, m in sys.modules.items() if m is None or isinstance(m, lean_imports.StandIn)]
for heavy in ("http.server", "urllib.request", "ssl", "wsgiref.simple_server"):
    assert heavy not in sys.modules, heavy
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
class One:
    def collect(self):
        yield GaugeMetricFamily("one", "One.", value=1)
registry = CollectorRegistry()
registry.register(One())
assert b"one 1.0" in generate_latest(registry)
import http.client, http.server, ssl, urllib.request
assert issubclass(http.server.HTTPServer, object) and ssl.create_default_context() and urllib.request.Request("http://x")
print("fine")
"""


def test_libraries_work_and_the_real_modules_can_be_had_afterwards() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.stdout.strip(), done.stderr) == ("fine", "")


def test_a_library_that_does_not_bear_it_is_imported_as_usual() -> None:
    program = PROGRAM.replace(
        "lean_imports.prepare()",
        "lean_imports.StandIn.__getattr__ = lambda self, name: 1 / 0 if False else (_ for _ in ()).throw(TypeError())\n"
        "lean_imports.prepare()",
    ).replace('for heavy in ("http.server", "urllib.request", "ssl", "wsgiref.simple_server"):', "for heavy in ():")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.stdout.strip(), done.stderr) == ("fine", "")
