"""The topology file as types: one default for each value, units in names, unknown keys refused.

Pure. Reading a file and reporting its problems is `load.py`; values derived from others are made once, in `resolve.py`.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from dspark_train.errors import Problem
from dspark_train.topology.source import Finding, Source


class Strict(BaseModel):
    """Base of every section: unknown keys are errors, values are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=True, allow_inf_nan=False)


class TargetShape(Strict):
    """Figures of the target for planning where its config.json cannot be read here. Checked against it at launch."""

    num_layers: int | None = Field(default=None, ge=1, description="Number of decoder layers.")
    hidden_size: int | None = Field(default=None, ge=1, description="Width of the hidden states.")
    vocab_size: int | None = Field(default=None, ge=1, description="Size of the vocabulary.")
    weight_gib: float | None = Field(default=None, gt=0, le=1e6, description="Size of the weights as served, GiB.")


class Target(Strict):
    """The large model whose hidden states are extracted."""

    model: str = Field(min_length=1, description="Directory or Hugging Face id of the target.")
    trust_remote_code: bool = Field(default=False, description="Let the target's repository run its own code.")
    layers: tuple[int, ...] = Field(
        description="Hidden-state ids that the draft reads; id i is the output of layer i (0 is the embedding). "
        "The last layer is added by itself; mtp reads no other: [].",
    )
    dtype: Literal["float32", "bfloat16"] | None = Field(
        default=None,
        description="Type the target runs in and of its hidden states; off: float32 on CPU, else bfloat16.",
    )
    shape: TargetShape = Field(default_factory=TargetShape)


class Draft(Strict):
    """The draft model: an algorithm of speculators and its training fields."""

    algorithm: Literal["dspark", "dflash", "dflash2", "eagle3", "peagle", "mtp"] = Field(
        default="dspark", description="Kind of draft; every one that speculators trains from hidden states."
    )
    train: dict[str, Any] = Field(
        default_factory=dict, description="Fields of speculators' TrainConfig, checked against its own schema."
    )
    other_target: bool = Field(
        default=False, description="Let train.from_pretrained be a draft of a target with other weights, of this shape."
    )


class Data(Strict):
    """The prepared training set, and how it is cut into packs and steps."""

    path: str = Field(min_length=1, description="Directory that `prepare` writes and `launch` reads.")
    source: tuple[str, ...] = Field(default=(), description="Conversation files that `prepare` reads.")
    seq_len: int = Field(ge=16, description="Tokens in one pack; longer samples are cut.")
    step_packs: int = Field(ge=1, description="Packs in one optimizer step, whatever the number of ranks.")
    validation_frac: float = Field(default=0.1, ge=0, lt=1, description="Part of the samples held out.")
    hidden_states: str = Field(
        default="",
        description="Directory of hidden states that `extract` writes: the run trains from them and needs no engine. "
        "Empty: engines extract them while the run goes on.",
    )


class NodeGroup(Strict):
    """A group of equal nodes within one set."""

    count: int = Field(ge=1, le=1000, description="Nodes of this kind in one set.")
    gpus: int = Field(ge=0, le=1000, description="GPUs in each; 0 means the node computes on CPU.")


class Nodes(Strict):
    """What one set is made of: `shared` alone (engines and ranks together), or `inference` and `training`."""

    shared: NodeGroup | None = None
    inference: NodeGroup | None = None
    training: NodeGroup | None = None


class Count(Strict):
    """How many members a pool starts with, and the bounds that scaling keeps."""

    start: int = Field(ge=1, le=10_000, description="Members at the start.")
    min: int = Field(default=1, ge=1, description="Scaling keeps at least so many.")
    max: int = Field(ge=1, le=10_000, description="Scaling keeps at most so many; may be more than these nodes hold.")


class Engines(Strict):
    """The inference pool: vLLM instances that extract hidden states."""

    count: Count
    nodes_per_engine: int = Field(default=1, ge=1, description="Nodes that one engine spans.")
    tensor_parallel: int = Field(default=1, ge=1, description="Tensor-parallel size over all nodes of one engine.")
    entry: str = Field(
        default="dspark_train.engine.vllm_entry",
        pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$",
        description="Module that is run as the engine's process; dspark_train.engine.stand_in serves tests and "
        "rehearsals: it runs no model.",
    )
    vllm: dict[str, Any] = Field(
        default_factory=dict, description="Further `vllm serve` options, with underscores; true means a bare flag."
    )
    env: dict[str, str] = Field(default_factory=dict, description="Further environment of the engine's processes.")
    cpu_threads: int = Field(default=1, ge=1, description="OpenMP threads of an engine on CPU.")
    cpu_kv_cache_gib: int = Field(default=1, ge=1, description="KV cache of an engine on CPU, GiB.")
    num_writer_threads: int | None = Field(
        default=None, ge=1, description="Threads that put hidden states into the store; off: 1 on CPU, else 2."
    )
    max_in_flight: int = Field(default=16, ge=1, description="Requests in flight to one engine, at most.")
    max_in_flight_tokens: int = Field(
        default=65536, ge=1, description="Prompt tokens in flight to one engine, at most."
    )
    start_timeout_s: float = Field(default=900, gt=0, description="From start to a right probe extraction.")
    request_timeout_s: float = Field(default=50, gt=0, description="One extraction, put included.")


class Trainers(Strict):
    """The training pool: ranks of one torch.distributed group."""

    ranks: Count
    sharding: Literal["replicate", "fsdp"] = Field(
        default="replicate", description="Whether each rank holds the whole draft, or a part of it."
    )
    cpu_threads: int = Field(default=1, ge=1, description="OpenMP threads of a rank on CPU.")
    prefetch_steps: int = Field(default=2, ge=2, description="Steps that a rank's ring of pack buffers holds.")
    start_timeout_s: float = Field(default=600, gt=0, description="From start to a built draft and a mounted segment.")
    group_timeout_s: float = Field(default=120, gt=0, description="Collectives and the forming of a group.")
    fetch_timeout_s: float = Field(default=30, gt=0, description="One read from the store.")
    min_step_s: float = Field(
        default=0, ge=0, description="A step takes at least so long: leaves a shared machine time for other work."
    )


class Store(Strict):
    """Mooncake, with a segment of memory in every rank; or a directory."""

    protocol: Literal["tcp", "rdma", "disk"] = Field(
        default="tcp", description="How hidden states travel: by Mooncake over tcp or rdma, or as files."
    )
    path: str = Field(
        default="", description="Directory of the files, for protocol disk: engines and ranks must all see it."
    )
    device: str = Field(default="", description="RDMA devices, such as mlx5_0,mlx5_1; empty lets Mooncake choose.")
    segment_gib: float = Field(
        gt=0, le=1e6, description="Memory that each rank gives to the store, or its share of the files, GiB."
    )
    client_buffer_mib: int = Field(default=64, ge=16, description="Local buffer of each client, MiB.")
    client_ttl_s: int = Field(default=60, ge=10, description="Silence after which the master drops a client.")
    start_timeout_s: float = Field(default=60, gt=0, description="From start to a healthy master.")
    high_mark_frac: float = Field(default=0.9, ge=0.1, le=1, description="Part of the store that leases may fill.")


class Ledger(Strict):
    """The exactly-once flow of samples."""

    lease_s: float = Field(default=60, gt=0, description="Time in which a leased sample must become ready.")
    max_attempts: int = Field(default=4, ge=1, description="Attempts at a sample before it is masked as failed.")
    max_failed_frac: float = Field(default=0.01, ge=0, le=1, description="Part of failed samples that ends the run.")


BalanceMode = Literal["auto", "advise", "off"]


class Balance(Strict):
    """How the pools are rebalanced. docs/balance.md tells what each value does."""

    mode: BalanceMode = Field(
        default="off", description="auto: decide and act; advise: decide and record; off: neither."
    )
    inference: BalanceMode = Field(
        default="auto", description="The same for the engines alone; the more cautious of it and mode holds."
    )
    trainers: BalanceMode = Field(
        default="auto", description="The same for the ranks alone; the more cautious of it and mode holds."
    )
    window_s: float = Field(default=30, gt=0, description="Time between two looks at the rates.")
    num_windows: int = Field(
        default=3, ge=1, description="Windows in a row that must find a move in the same direction better."
    )
    min_gain_frac: float = Field(
        default=0.05, gt=0, le=1, description="Gain of throughput, at its lower bound, that is worth a move."
    )
    confidence_z: float = Field(
        default=1.64, ge=0, le=5, description="Standard errors between a gain and its lower bound; 1.64 is 95 %."
    )
    cost_factor: float = Field(
        default=2, ge=0, le=100, description="A move must win so many times its cost in the time that remains."
    )
    cooldown_s: float = Field(default=300, ge=0, description="Rest after a move, from when its members are settled.")
    warm_up_s: float = Field(default=30, ge=0, description="Time after an engine's start that its rate leaves out.")
    memory_s: float = Field(
        default=600, gt=0, description="Time at work over which a rate is averaged; a jump is noticed at once."
    )
    release_frac: float | None = Field(
        default=None,
        ge=0,
        le=10,
        description="Engines that no rank waits for are released, down to what is needed and so much more; off: never.",
    )
    release_windows: int = Field(default=10, ge=1, description="Windows in a row that must find engines idle.")
    engine_start_s: float = Field(default=120, ge=0, description="An engine's start, until one was measured.")
    rank_start_s: float = Field(default=60, ge=0, description="A rank's start, until one was measured.")
    pause_s: float = Field(
        default=20, ge=0, description="How long training stands still when ranks change, until it was measured."
    )


class Run(Strict):
    """Length and seed of the run. At least one of max_steps and epochs is set."""

    seed: int = Field(default=42, ge=0, lt=2**63, description="Of the order of samples and of all random draws.")
    max_steps: int | None = Field(default=None, ge=1, description="End after so many optimizer steps.")
    epochs: int | None = Field(default=None, ge=1, description="End after so many passes over the samples.")
    log_max_mib: int = Field(default=256, ge=0, description="Size at which a member's log is rotated; 0: never.")
    log_keep: int = Field(default=2, ge=1, le=100, description="Rotated logs of a member that are kept.")
    trackers: tuple[Literal["wandb", "mlflow", "trackio"], ...] = Field(
        default=(), description="Experiment trackers that get every step's figures, beside TensorBoard."
    )


class Validation(Strict):
    """Evaluation on the held-out packs, before the first step, every N steps, and after the last."""

    every_steps: int = Field(default=200, ge=1, description="Steps between two evaluations.")
    max_packs: int | None = Field(default=None, ge=1, description="Cut the held-out packs to so many; off: all.")
    stop_after_rounds: int | None = Field(
        default=None, ge=1, description="End training after so many rounds without a longer acceptance; off: never."
    )
    min_gain: float = Field(default=0.01, ge=0, description="What the acceptance length must gain to count as longer.")


class Checkpoint(Strict):
    """When the state is written, and how many states are kept."""

    every_steps: int = Field(default=200, ge=1, description="Steps between two checkpoints.")
    keep: int = Field(default=3, ge=1, description="Checkpoints kept, the newest.")
    keep_best: bool = Field(
        default=True, description="Keep that of the highest validated acceptance length as well, whatever its age."
    )
    timeout_s: float = Field(default=600, gt=0, description="Writing one checkpoint.")


class Supervision(Strict):
    """When a member counts as dead."""

    silence_s: float = Field(
        default=120, gt=0, description="How long a member may leave the controller without an answer."
    )
    max_deaths: int = Field(
        default=5, ge=1, description="Deaths of one member within death_window_s after which it is given up."
    )
    fence_s: float = Field(
        default=900, gt=0, description="A member that the controller has not asked for so long stops itself."
    )
    death_window_s: float = Field(default=600, gt=0, description="Older deaths are forgiven.")


class Topology(Strict):
    """A whole topology file."""

    name: str = Field(pattern=r"^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$", description="Lower case, digits, . _ -")
    sets: int = Field(default=1, ge=1, le=1000, description="How often the group of nodes below is repeated.")
    target: Target
    draft: Draft = Field(default_factory=Draft)
    data: Data
    nodes: Nodes
    engines: Engines
    trainers: Trainers
    store: Store
    ledger: Ledger = Field(default_factory=Ledger)
    balance: Balance = Field(default_factory=Balance)
    run: Run
    validation: Validation = Field(default_factory=Validation)
    checkpoint: Checkpoint = Field(default_factory=Checkpoint)
    supervision: Supervision = Field(default_factory=Supervision)
    _source: Source = PrivateAttr(default_factory=Source)

    def problem(self, key: str, text: str, remedy: str) -> Problem:
        """A problem with the value of ``key``, at the line where it was written (the file's name alone if unknown)."""
        return self._source.problem(Finding(key, text, remedy))

    def written_by(self, source: Source) -> Topology:
        """Remember where the values of this topology were written; returns it."""
        self._source = source
        return self
