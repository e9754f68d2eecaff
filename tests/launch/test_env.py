"""The environment that every node gets, with made-up answers of `ip`, `getent` and `nvidia-smi`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ENV_SH = Path(__file__).parents[2] / "launch" / "env.sh"
UUID = "6f1c1a52-8f3e-4e0f-9a51-0a1b2c3d4e5f"
PROGRAMS = {
    "ip": """case "$*" in
  *"addr show to 10.1.0.7/32") echo "3: enp1    inet 10.1.0.7/24 scope global enp1" ;;
  *"addr show to 192.168.0.7/32") echo "2: eno1    inet 192.168.0.7/24 scope global eno1" ;;
  *"addr show") printf '1: lo inet 127.0.0.1/8 lo\\n2: eno1 inet 192.168.0.7/24 e\\n3: enp1 inet 10.1.0.7/24 e\\n' ;;
  *"route get 192.168.0.1") echo "192.168.0.1 dev eno1 src 192.168.0.7 uid 0" ;;
  *) exit 2 ;;
esac""",
    "getent": 'case "$2" in 192.168.0.1|head) echo "192.168.0.1 STREAM head" ;; *) exit 2 ;; esac',
    "nvidia-smi": f"""printf '    Fabric\\n        State                  : Completed\\n'
printf '        CliqueId               : 3\\n        ClusterUUID            : {UUID}\\n'""",
}
Source = Callable[..., subprocess.CompletedProcess[str]]
SHOWN = ("DSPARK_ADDRESS", "DSPARK_INTERFACE", "DSPARK_LABELS")


@pytest.fixture
def source(tmp_path: Path) -> Source:
    """Sources env.sh, twice as scripts within scripts do, and returns how that ended."""
    for name, body in PROGRAMS.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)

    def run(then: str, **given: str) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("DSPARK_", "RAY_"))}
        env = kept | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "DSPARK_HEAD": "head:6379"} | given
        script = f"set -euo pipefail; . {ENV_SH}; . {ENV_SH}; {then}"
        return subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, timeout=30, check=False)

    return run


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, f"192.168.0.7 eno1 ray.io/gpu-domain={UUID}.3"),
        ({"DSPARK_SUBNET": "10.1."}, f"10.1.0.7 enp1 ray.io/gpu-domain={UUID}.3"),
        ({"DSPARK_ADDRESS": "127.0.0.2"}, f"127.0.0.2 lo ray.io/gpu-domain={UUID}.3"),
        (
            {"DSPARK_ADDRESS": "10.1.0.7", "DSPARK_LABELS": "a=b"},
            f"10.1.0.7 enp1 a=b,ray.io/gpu-domain={UUID}.3",
        ),
        (
            {"DSPARK_INTERFACE": "bond0", "DSPARK_LABELS": "ray.io/gpu-domain=x"},
            "192.168.0.7 bond0 ray.io/gpu-domain=x",
        ),
    ],
)
def test_a_node_finds_its_address_interface_and_domain(source: Source, given: dict[str, str], expected: str) -> None:
    done = source(f"echo {' '.join(f'${name}' for name in SHOWN)}", **given)
    assert (done.stdout.strip(), done.stderr) == (expected, "")


def test_everything_that_ray_starts_gets_the_same(source: Source) -> None:
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "RAY_ENABLE_UV_RUN_RUNTIME_ENV", "OMP_NUM_THREADS")
    done = source(f"env | grep -E '^({'|'.join(names)}|RAY_AUTH.*)='", DSPARK_TOKEN_FILE="/t", OMP_NUM_THREADS="2")
    assert dict(line.split("=", 1) for line in done.stdout.splitlines()) == {
        "GLOO_SOCKET_IFNAME": "eno1",
        "NCCL_SOCKET_IFNAME": "eno1",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        "OMP_NUM_THREADS": "2",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": "/t",
    }


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"DSPARK_SUBNET": "10.9."}, "has no address in '10.9.'"),
        ({"DSPARK_HEAD": "elsewhere:1"}, "nor a way to elsewhere:1: set DSPARK_SUBNET"),
        ({"DSPARK_ADDRESS": "127.0.0.1"}, "use 127.0.0.2 and up"),
        ({"DSPARK_ADDRESS": "10.9.0.1"}, "no interface of"),
        ({"DSPARK_TMP": "/tmp/" + "a" * 40}, "is too long for Ray's sockets"),
    ],
)
def test_a_node_that_cannot_be_one_says_why(source: Source, given: dict[str, str], said: str) -> None:
    done = source("echo went on", **given)
    assert done.returncode != 0
    assert said in done.stderr
    assert "went on" not in done.stdout
