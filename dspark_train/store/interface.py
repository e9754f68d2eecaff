"""Which network interface has an address: some libraries take only its name."""

from __future__ import annotations

from ipaddress import ip_address

import psutil

from dspark_train.errors import StartError

LOOPBACK = "127.0.0.1"


def interface_of(address: str) -> str:
    """Name of the interface that has ``address``. Raises StartError naming those that there are.

    All of 127.0.0.0/8 is the loopback interface's, though only its first address is listed.
    """
    found = psutil.net_if_addrs()
    for wanted in (address, LOOPBACK) if ip_address(address).is_loopback else (address,):
        for name, addresses in found.items():
            if any(entry.address == wanted for entry in addresses):
                return name
    have = ", ".join(
        sorted(entry.address for entries in found.values() for entry in entries if entry.family.value == 2)
    )
    raise StartError(f"no network interface of this host has the address {address}; it has {have}")
