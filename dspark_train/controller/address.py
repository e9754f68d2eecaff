"""Where a run's API listens, and the token that it asks for.

Both stay over the controller's death, so that pages that are open and scrapers go on.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from urllib.parse import urlsplit

from dspark_train.errors import StartError
from dspark_train.store.ports import PortLock, reserve_known, reserve_port

PORT_TIMEOUT_S = 2.0
"""How long to wait for the port of the controller before this one."""


def api_port(last_url: str) -> PortLock:
    """The port of ``last_url`` where that is free, else another. Raises StartError where none is left."""
    port = urlsplit(last_url).port if last_url else None
    if port is not None:
        try:
            return reserve_known(port, PORT_TIMEOUT_S)
        except StartError:
            pass  # somebody else has it by now
    return reserve_port()


def api_token(path: Path, *, is_kept: bool) -> str:
    """The run's token; made anew, in a file that only its owner reads, unless the one there ``is_kept``."""
    if is_kept and path.exists() and (token := path.read_text(encoding="utf-8").strip()):
        return token
    token = secrets.token_urlsafe(32)
    path.touch(mode=0o600)
    path.chmod(0o600)
    path.write_text(token, encoding="utf-8")
    return token
