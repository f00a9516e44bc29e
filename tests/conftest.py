"""What all tests share: every test that did not run is named in the last lines of the output, with the reason."""

from __future__ import annotations

from collections.abc import Generator

import pytest


def skipped_tests(reports: list[pytest.TestReport | pytest.CollectReport]) -> list[str]:
    """One line for each skipped test, or file of tests: its name and why."""
    lines = []
    for report in reports:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        lines.append(f"NOT RUN {report.nodeid}: {reason.removeprefix('Skipped: ')}")
    return lines


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Generator[None, None, None]:
    """Writes them after everything that pytest itself has to say."""
    yield
    lines = skipped_tests(terminalreporter.stats.get("skipped", []))
    if lines:
        terminalreporter.section(f"{len(lines)} tests were not run", yellow=True)
        for line in lines:
            terminalreporter.line(line, yellow=True)
