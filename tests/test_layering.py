"""The arrows of the code map point inward; this reads the imports and complains otherwise."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent / "slmguard"
EDGES = {"sources", "servers", "actions", "kernel_log", "gate", "plan", "bench", "incidents", "alerts", "host"}
FORBIDDEN_IN_CORE = {"os", "time", "socket", "logging", "threading", "subprocess", "pathlib", "select", "io", "sys"}


def imports(path: Path) -> set[str]:
    """Every module that `path` imports, wherever in the file, with full names."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names if node.module == "slmguard")
    return found


def room(module: str) -> str:
    """The folder or file right under slmguard that a module lives in."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[0] == "slmguard" else ""


def modules(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def test_the_core_imports_nothing_of_the_project_and_touches_no_system() -> None:
    assert modules("core")
    for path in modules("core"):
        for name in imports(path):
            assert name.split(".")[0] not in FORBIDDEN_IN_CORE, f"{path.name} imports {name}"
            assert room(name) in {"", "core"}, f"{path.name} imports {name}"


def test_edges_do_not_import_each_other() -> None:
    for edge in EDGES:
        for path in modules(edge):
            for name in imports(path):
                other = room(name)
                assert other not in EDGES - {edge}, f"{path.relative_to(ROOT)} imports {name}"


def test_nobody_but_the_entry_point_imports_the_daemon_or_the_command_line() -> None:
    for path in sorted(ROOT.rglob("*.py")):
        inside = path.relative_to(ROOT)
        if inside.parts[0] in {"__main__.py", "cli.py", "commands"}:
            continue
        for name in imports(path):
            assert room(name) not in {"daemon", "cli", "commands"}, f"{inside} imports {name}"


def test_only_the_configuration_and_commands_import_pydantic_and_requests() -> None:
    for path in sorted(ROOT.rglob("*.py")):
        inside = path.relative_to(ROOT)
        for name in imports(path):
            package = name.split(".")[0]
            if package == "pydantic":
                assert inside.parts[0] == "config.py", f"{inside} imports {name}"
            if package == "requests":
                assert inside.parts[0] in {"commands", "demo", "alerts", "bench"}, f"{inside} imports {name}"
