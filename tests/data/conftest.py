import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.data.tiny_chat import FIRST_BYTE
from tests.data.tiny_server import TinyServer


@pytest.fixture
def tiny_server() -> Iterator[TinyServer]:
    server = TinyServer()
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def tokenizer_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The least that transformers loads a tokenizer from."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    directory = tmp_path_factory.mktemp("target")
    words = {f"t{number}": number for number in range(FIRST_BYTE + 256)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="t0")), unk_token="t0", eos_token="t2"
    )
    tokenizer.save_pretrained(directory)
    (directory / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": len(words)}))
    return directory
