"""A group's sockets are found among a process's own, missed when a peer closes one, and cut without touching others."""

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pytest

from dspark_train.trainer.connections import Connections

WAIT_S = 10.0


@dataclass
class Mesh:
    """As gloo has it: a poller that watches a listening socket and the connections to peers."""

    poller: select.epoll
    connections: list[socket.socket]
    peers: list[socket.socket]


@contextmanager
def mesh(num_peers: int) -> Iterator[Mesh]:
    with ExitStack() as stack:
        poller = stack.enter_context(select.epoll())
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        poller.register(listening)
        ends = []
        for _ in range(num_peers):
            peer = stack.enter_context(socket.create_connection(listening.getsockname()))
            own = stack.enter_context(listening.accept()[0])
            poller.register(own)
            ends.append((own, peer))
        yield Mesh(poller, [own for own, _ in ends], [peer for _, peer in ends])


@pytest.fixture
def rendezvous():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def test_a_group_is_whole_until_a_connection_of_it_is_closed(rendezvous):
    connections = Connections(*rendezvous.getsockname())
    with mesh(2) as group:
        connections.settle()
        assert connections.is_whole()
        group.connections[0].close()
        assert not connections.is_whole()


def test_cutting_ends_what_blocks_in_the_group_and_at_its_rendezvous_and_nothing_else(rendezvous):
    with mesh(1) as other:
        connections = Connections(*rendezvous.getsockname())
        with mesh(2) as group, socket.create_connection(rendezvous.getsockname()) as client:
            connections.settle()
            blocked = [*group.connections, client]
            ended: list[bytes] = []
            threads = [threading.Thread(target=lambda s=s: ended.append(s.recv(1)), daemon=True) for s in blocked]
            for thread in threads:
                thread.start()
            connections.cut()
            for thread in threads:
                thread.join(WAIT_S)
            assert ended == [b""] * 3
            assert connections.is_cut
            assert not connections.is_whole()
            assert [peer.recv(1) for peer in group.peers] == [b"", b""]
            connections.cut()
        other.peers[0].sendall(b"x")
        assert other.connections[0].recv(1) == b"x"


def test_a_group_that_is_being_formed_can_be_cut_as_well(rendezvous):
    connections = Connections(*rendezvous.getsockname())
    with mesh(1) as group:
        connections.cut()
        assert group.peers[0].recv(1) == b""
