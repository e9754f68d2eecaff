"""Whether a draft and a target belong together. Pure: `data/draft.py` reads the files.

The one place that decides it, for eval, export, serve and launch. What is not known on both sides is not held against
a pair.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel, ConfigDict

from dspark_train.topology.facts import TargetFacts

OTHER_TARGET = "the draft was trained for another target"
"""How the reasons begin that `other_target` sets aside."""


class DraftFacts(BaseModel):
    """What a draft's own files say. A figure that they do not give is None, never guessed.

    where: its directory or name. target: what it was trained for; identity: of that target's weights ("" unknown).
    layer_ids: hidden states that it reads, the last layer left out.
    """

    model_config = ConfigDict(frozen=True)

    where: str
    algorithm: str = ""
    target: str = ""
    architectures: tuple[str, ...] = ()
    identity: str = ""
    hidden_size: int | None = None
    vocab_size: int | None = None
    draft_vocab_size: int | None = None
    layer_ids: tuple[int, ...] | None = None
    num_speculative_tokens: int | None = None


class Wanted(BaseModel):
    """What a topology makes of a draft that it starts from."""

    model_config = ConfigDict(frozen=True)

    algorithm: str
    layer_ids: tuple[int, ...]
    draft_vocab_size: int | None = None
    """None: the draft's own is taken."""


def mismatches(
    draft: DraftFacts, target: TargetFacts, name: str, wanted: Wanted | None = None, *, other_target: bool = False
) -> list[str]:
    """Why they do not belong together, each reason a sentence; none where nothing speaks against it.

    name: of the target. other_target: let it be a fine-tuned or quantised copy, with other weights of the same shape.
    """
    found = [*_shape(draft, target, name), *_layers(draft, target, name)]
    if not found and not other_target:
        found += _weights(draft, target, name)
    return found + (list(_wanted(draft, wanted)) if wanted else [])


def _shape(draft: DraftFacts, target: TargetFacts, name: str) -> Iterator[str]:
    if draft.architectures and target.architectures and not set(draft.architectures) & set(target.architectures):
        wants, has = (" or ".join(found) for found in (draft.architectures, target.architectures))
        yield f"{OTHER_TARGET}: it reads the hidden states of a {wants}, and {name} is a {has}"
    if draft.hidden_size and target.hidden_size and draft.hidden_size != target.hidden_size:
        yield f"the draft reads hidden states of width {draft.hidden_size}, and {name} has {target.hidden_size}"
    if draft.vocab_size and target.vocab_size and draft.vocab_size != target.vocab_size:
        yield f"the draft knows a vocabulary of {draft.vocab_size} tokens, and {name} has {target.vocab_size}"


def _layers(draft: DraftFacts, target: TargetFacts, name: str) -> Iterator[str]:
    beyond = [layer for layer in draft.layer_ids or () if target.num_layers and layer > target.num_layers]
    if beyond:
        layers = ", ".join(map(str, beyond))
        yield f"the draft reads layer {layers}, and {name} has {target.num_layers} layers"


def _weights(draft: DraftFacts, target: TargetFacts, name: str) -> Iterator[str]:
    if draft.identity and target.identity and draft.identity != target.identity:
        yield f"{OTHER_TARGET}: it has the shape of {draft.target or 'its own'}, but {name} has other weights"


def _wanted(draft: DraftFacts, wanted: Wanted) -> Iterator[str]:
    if draft.algorithm and draft.algorithm != wanted.algorithm:
        yield f"it is a {draft.algorithm} draft, and draft.algorithm is {wanted.algorithm}"
    if draft.layer_ids is not None and draft.layer_ids != wanted.layer_ids:
        own, given = (", ".join(map(str, layers)) for layers in (draft.layer_ids, wanted.layer_ids))
        yield f"the draft reads layers {own}, and target.layers is {given}"
    own_size, size = draft.draft_vocab_size, wanted.draft_vocab_size
    if own_size and size and own_size != size:
        yield f"the draft proposes from {own_size} tokens, and draft.train.draft_vocab_size is {size}"
