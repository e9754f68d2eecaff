"""A module imports only from its own row of the layout or rows below; each heavy package has one home."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dspark_train.cli.app import COMMANDS

PACKAGE = Path(__file__).parents[1] / "dspark_train"
ROWS = [
    {"errors", "peers", "throttle"},
    {"topology"},
    {"plan"},
    {"schedule"},
    {"balance"},
    {"simulate"},
    {"data"},
    {"evaluate", "report"},
    {"store"},
    {"trainer"},
    {"engine"},
    {"cluster"},
    {"controller"},
    {"bench"},
    {"cli"},
]
ROW_OF = {name: number for number, row in enumerate(ROWS) for name in row}
PURE = {"simulate", "balance", "schedule", "plan", "topology"}
EFFECTS = {
    *("ray", "torch", "vllm", "mooncake", "os", "time", "random", "threading", "asyncio", "socket", "logging"),
    *("subprocess", "multiprocessing", "transformers", "speculators"),
}
HOMES = {
    "ray": {"cluster/on_ray.py"},
    "speculators": {"trainer/drafts.py", "bench/peer_loader.py", "bench/peer_training.py"},
    "speculators.data_generation": {"data/prepare.py"},
    "mooncake": {"store/on_mooncake.py"},
    "wandb": {"controller/on_wandb.py"},
    "mlflow": {"controller/on_mlflow.py"},
    "trackio": {"controller/on_trackio.py"},
    "vllm": {
        *("engine/connector.py", "engine/disk_connector.py", "engine/vllm_bench.py", "engine/vllm_check.py"),
        *("engine/vllm_entry.py", "engine/vllm_plugin.py"),
    },
    "hs_connectors": {"engine/connector.py", "bench/peer_loader.py", "bench/peer_connector.py"},
}
HEAVY = {"ray", "torch", "vllm", "transformers", "speculators", "mooncake", "datasets", "hs_connectors"}
VAGUE_NAMES = {"utils", "helpers", "common", "misc", "manager"}
MAX_MODULE_LINES = 300
MAX_FUNCTION_LINES = 60

MODULES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))


def imports(module: str, tree: ast.AST) -> Iterator[str]:
    """Full names of everything imported below ``tree``, `from a import b` as a.b."""
    parts = ["dspark_train", *Path(module).parts[:-1]]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(parts[: len(parts) - node.level + 1]) if node.level else ""
            origin = ".".join(part for part in (base, node.module or "") if part)
            yield from (f"{origin}.{alias.name}" for alias in node.names)


def parse(module: str) -> ast.Module:
    return ast.parse((PACKAGE / module).read_text(encoding="utf-8"))


def row_name(module: str) -> str:
    return Path(module).parts[0].removesuffix(".py")


def home_rule(name: str) -> str | None:
    """The most exact entry of HOMES that covers an imported name."""
    covering = [package for package in HOMES if name == package or name.startswith(f"{package}.")]
    return max(covering, key=len, default=None)


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_from_its_own_row_or_below(module: str) -> None:
    own = row_name(module)
    if own == "__init__":
        return
    assert own in ROW_OF, f"{module} is in no row of the layout"
    for name in imports(module, parse(module)):
        parts = name.split(".")
        if parts[0] != "dspark_train" or len(parts) == 1 or parts[1] not in ROW_OF:
            continue
        assert ROW_OF[parts[1]] <= ROW_OF[own], f"{module} imports {name} from a row above it"


@pytest.mark.parametrize("module", [module for module in MODULES if row_name(module) in PURE])
def test_a_pure_module_has_no_effects(module: str) -> None:
    found = {name.partition(".")[0] for name in imports(module, parse(module))} & EFFECTS
    assert not found, f"{module} is pure and imports {', '.join(sorted(found))}"


@pytest.mark.parametrize("module", MODULES)
def test_a_heavy_package_is_imported_in_its_home_only(module: str) -> None:
    for name in imports(module, parse(module)):
        rule = home_rule(name)
        if rule is not None:
            homes = HOMES[rule] | HOMES[rule.partition(".")[0]]
            assert module in homes, f"{module} imports {name}: that is for {', '.join(sorted(homes))}"


@pytest.mark.parametrize("module", [module for module in MODULES if row_name(module) == "cli"])
def test_a_command_imports_nothing_heavy_at_its_top(module: str) -> None:
    top = ast.Module(
        body=[n for n in parse(module).body if isinstance(n, ast.Import | ast.ImportFrom)], type_ignores=[]
    )
    found = {name.partition(".")[0] for name in imports(module, top)} & HEAVY
    assert not found, f"{module} imports {', '.join(sorted(found))} when it is loaded"


def test_the_help_of_all_commands_together_imports_nothing_heavy() -> None:
    code = (
        "import sys; from dspark_train.cli.app import COMMANDS, run\n"
        "for name in COMMANDS:\n"
        "    assert run([name, '--help']) == 0, name\n"
        f"print(sorted({HEAVY!r} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "[]"


def test_every_command_is_a_module_of_its_own() -> None:
    assert [name for name in COMMANDS if f"cli/{name}.py" not in MODULES] == []


@pytest.mark.parametrize("module", MODULES)
def test_a_module_says_what_it_owns_and_is_of_a_size_to_be_read(module: str) -> None:
    tree = parse(module)
    assert Path(module).stem not in VAGUE_NAMES
    if Path(module).stem != "__init__":
        assert ast.get_docstring(tree), f"{module} does not say what it owns"
    num_lines = len((PACKAGE / module).read_text(encoding="utf-8").splitlines())
    assert num_lines <= MAX_MODULE_LINES, f"{module} has {num_lines} lines: split it by idea"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            length = node.end_lineno - node.lineno + 1
            assert length <= MAX_FUNCTION_LINES, f"{module}: {node.name} has {length} lines"
