"""The tiny drafts' data set, and no import of torch where no test needs it."""

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip modules full of torch tests where these are deselected: importing them takes ten seconds."""
    if "not torch" not in config.option.markexpr or collection_path.suffix != ".py":
        return None
    return "pytestmark = pytest.mark.torch" in collection_path.read_text(encoding="utf-8") or None


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared data set of random tokens, whose frequencies a reduced vocabulary is chosen from."""
    from tests.trainer import recorded

    directory = tmp_path_factory.mktemp("tiny-data")
    recorded.write_dataset(directory)
    return directory


@pytest.fixture(scope="session")
def target(tiny_target: Path):
    from dspark_train.evaluate.target import load_target

    return load_target(str(tiny_target), (1, 2, 3))
