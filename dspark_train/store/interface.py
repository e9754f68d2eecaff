"""Which network interface has an address: some libraries take only its name."""

from __future__ import annotations

import psutil

from dspark_train.errors import StartError


def interface_of(address: str) -> str:
    """Name of the interface that has ``address``. Raises StartError naming those that there are."""
    found = psutil.net_if_addrs()
    for name, addresses in found.items():
        if any(entry.address == address for entry in addresses):
            return name
    have = ", ".join(
        sorted(entry.address for entries in found.values() for entry in entries if entry.family.value == 2)
    )
    raise StartError(f"no network interface of this host has the address {address}; it has {have}")
