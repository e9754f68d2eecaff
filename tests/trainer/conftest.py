"""The recorded run's data set, once a session; and no import of torch where no test needs it."""

import sys
from pathlib import Path

import pytest

from tests.trainer import recorded


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip modules full of torch tests where these are deselected: importing them takes ten seconds."""
    if "not torch" not in config.option.markexpr or collection_path.suffix != ".py":
        return None
    return "pytestmark = pytest.mark.torch" in collection_path.read_text(encoding="utf-8") or None


@pytest.fixture(scope="session")
def recorded_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a small prepared data set of random tokens."""
    directory = tmp_path_factory.mktemp("recorded") / "data"
    recorded.write_dataset(directory)
    return directory


@pytest.fixture(autouse=True)
def _no_group_left_behind():
    yield
    if "torch" in sys.modules:
        from dspark_train.trainer.process_group import dissolve

        dissolve()
