"""Secrets out of what is shown. Pure."""

from __future__ import annotations

import re

from dspark_train.plan.spec import Plan, ProcessSpec

HIDDEN = "***"
_SECRET = re.compile(
    r"(^|[-_])(secrets?|password|passwd|credentials?|(api|access|private)[-_]?key|token$|token[-_])", re.I
)


def is_secret(name: str) -> bool:
    """Whether an environment variable or a flag of that name holds a secret."""
    return bool(_SECRET.search(name.lstrip("-")))


def redacted(plan: Plan) -> Plan:
    """``plan`` as it may be shown: values of secret environment variables and flags hidden."""
    return plan.model_copy(update={"processes": tuple(_process(spec) for spec in plan.processes)})


def _process(spec: ProcessSpec) -> ProcessSpec:
    env = {name: HIDDEN if is_secret(name) else value for name, value in spec.env.items()}
    argv = list(spec.argv)
    for place, argument in enumerate(argv[:-1]):
        if argument.startswith("--") and is_secret(argument) and not argv[place + 1].startswith("--"):
            argv[place + 1] = HIDDEN
    return spec.model_copy(update={"env": env, "argv": tuple(argv)})
