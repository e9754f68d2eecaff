"""What a scale order asks for, and whether it may be had. Pure."""

from __future__ import annotations

import re

from dspark_train.controller.roster import Pool
from dspark_train.errors import UsageError
from dspark_train.topology.schema import Count, Topology

OPTION: dict[Pool, str] = {"inference": "--inference", "trainers": "--trainers"}
KEY: dict[Pool, str] = {"inference": "engines.count", "trainers": "trainers.ranks"}
_TARGET = re.compile(r"([+-]?)(\d{1,6})")


def target(pool: Pool, now: int, text: str, topology: Topology) -> int:
    """The number of members that ``text`` asks for: "+N" and "-N" change it, "N" sets it.

    Raises UsageError for anything else, and beyond the bounds of the topology.
    """
    match = _TARGET.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{OPTION[pool]} {text}: not a number of members: say +1, -1, or how many there shall be")
    sign, digits = match.groups()
    num = {"+": now + int(digits), "-": now - int(digits)}.get(sign, int(digits))
    bounds: Count = topology.engines.count if pool == "inference" else topology.trainers.ranks
    for name, limit, is_beyond in (("max", bounds.max, num > bounds.max), ("min", bounds.min, num < bounds.min)):
        if is_beyond:
            raise UsageError(
                f"{OPTION[pool]} {text}: {num} is beyond {KEY[pool]}.{name} ({limit}); the run has {now}. "
                f"Another bound needs `stop` and `launch --resume --set {KEY[pool]}.{name}={num}`"
            )
    return num
