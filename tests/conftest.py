"""Session fixtures that real tests share: a Mooncake master, and a tiny target that vLLM and transformers can load."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dspark_train.store.master_process import MasterProcess
from dspark_train.store.ports import reserve_ports

LOOPBACK = "127.0.0.1"
MASTER_START_TIMEOUT_S = 60.0
CLIENT_TTL_S = 60


@pytest.fixture(scope="session")
def mooncake_master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MasterProcess]:
    """A running master; ``.rpc`` is what clients connect to. Keys of different tests must differ."""
    ports = reserve_ports(["rpc", "metrics"])
    rpc, metrics = ports["rpc"].port, ports["metrics"].port
    argv = [
        "mooncake_master",
        f"--rpc_address={LOOPBACK}",
        f"--rpc_port={rpc}",
        f"--metrics_host={LOOPBACK}",
        f"--metrics_port={metrics}",
        f"--client_ttl={CLIENT_TTL_S}",
        "--logtostderr=true",
    ]
    log: Path = tmp_path_factory.mktemp("master") / "master.log"
    master = MasterProcess(argv, {}, log, f"{LOOPBACK}:{rpc}", f"{LOOPBACK}:{metrics}")
    try:
        master.start(MASTER_START_TIMEOUT_S)
        yield master
    finally:
        master.stop(5)
        for lock in ports.values():
            lock.release()


@pytest.fixture(scope="session")
def tiny_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a random Llama of 4 layers and width 64, float32, with a tokenizer of single bytes.

    Its weights are drawn wider than usual, so that hidden states of different layers and tokens clearly differ.
    """
    directory = tmp_path_factory.mktemp("tiny-target")
    save_tiny_target(directory)
    return directory


def save_tiny_target(directory: Path) -> None:
    """Write the tiny target's files."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    specials = ["<s>", "</s>", "<|user|>", "<|assistant|>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(specials + alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", extra_special_tokens=specials[2:]
    )
    fast.chat_template = (
        "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}</s>{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    fast.save_pretrained(directory)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=2,  # vLLM on CPU wants heads of 32 or more
        num_key_value_heads=1,
        max_position_embeddings=2048,
        initializer_range=0.1,
        bos_token_id=0,
        eos_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(directory)
