"""One live run on the fake cluster for the tests of a module."""

import pytest

from tests.web.live_run import LiveRun


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    live = LiveRun(tmp_path_factory.mktemp("runs") / "a1", "engines.count.max=4", "trainers.ranks.max=4")
    yield live
    live.end()
