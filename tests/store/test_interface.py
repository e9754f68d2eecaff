"""Addresses of this host, and others."""

import pytest

from dspark_train.errors import StartError
from dspark_train.store.interface import interface_of


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2", "127.8.9.10"])
def test_every_loopback_address_is_the_loopback_interface_s(address: str) -> None:
    assert interface_of(address) == "lo"


def test_an_address_of_another_host_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(StartError, match=r"no network interface of this host has the address 203\.0\.113\.1; .*127"):
        interface_of("203.0.113.1")
