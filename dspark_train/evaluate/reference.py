"""Speculative decoding in plain torch: draft, verify, go on, a batch of prompts at a time.

What is counted is what vLLM counts: a verification whose tokens run over the end of the text still counts in full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dspark_train.evaluate.acceptance import Acceptance, of_rounds
from dspark_train.evaluate.dice import Chooser, Dice, probabilities
from dspark_train.evaluate.drafter import Drafter, Proposal
from dspark_train.evaluate.prompts import Prompt
from dspark_train.evaluate.target import PREFILL_CHUNK, Prefilled, Target
from dspark_train.evaluate.verify import Verified, verify_greedy, verify_sampled


@dataclass(frozen=True)
class Decoding:
    """How tokens are chosen.

    temperature: 0 takes the most likely token. draft_samples: the draft samples too, instead of taking its most likely
    token; either way the output is the target's. stop_ids: tokens that end a text.
    """

    temperature: float = 0.0
    max_tokens: int = 128
    seed: int = 0
    draft_samples: bool = False
    stop_ids: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Generated:
    """What came of one prompt.

    ids: the new tokens, the end token included. accepted: of each verification, how many drafted tokens stood.
    confidence: of each verification, the confidence head's logits of all drafted tokens; empty without such a head.
    """

    prompt: Prompt
    ids: tuple[int, ...]
    accepted: tuple[int, ...]
    confidence: tuple[tuple[float, ...], ...]

    def acceptance(self, num_drafted: int) -> Acceptance:
        return of_rounds(self.accepted, num_drafted, len(self.ids))


@dataclass
class _Row:
    prompt: Prompt
    ids: list[int]
    accepted: list[int] = field(default_factory=list)
    confidence: list[tuple[float, ...]] = field(default_factory=list)

    def take(self, new: Sequence[int], decoding: Decoding) -> bool:
        """Add tokens; True when the text is at its end."""
        for token in new:
            self.ids.append(token)
            if token in decoding.stop_ids or len(self.ids) >= decoding.max_tokens:
                return True
        return False

    def generated(self) -> Generated:
        return Generated(self.prompt, tuple(self.ids), tuple(self.accepted), tuple(self.confidence))


def generate(
    target: Target,
    drafter: Drafter,
    prompts: Sequence[Prompt],
    decoding: Decoding,
    batch_size: int,
    on_progress: Callable[[int], None] = lambda num_done: None,
) -> tuple[Generated, ...]:
    """Generate for every prompt, in the order given. on_progress: called with the number of prompts done."""
    by_length = sorted(prompts, key=lambda prompt: len(prompt.ids))
    done: dict[tuple[str, int], Generated] = {}
    for start in range(0, len(by_length), batch_size):
        for one in _Batch(target, drafter, by_length[start : start + batch_size], decoding).run():
            done[one.prompt.id, one.prompt.context_tokens] = one
            on_progress(len(done))
    return tuple(done[prompt.id, prompt.context_tokens] for prompt in prompts)


class _Batch:
    """Prompts that go through verification together; one that has ended leaves."""

    def __init__(self, target: Target, drafter: Drafter, prompts: Sequence[Prompt], decoding: Decoding) -> None:
        self._target, self._drafter, self._decoding = target, drafter, decoding
        self._prompts = prompts
        sampled = decoding.temperature > 0
        seeds = [decoding.seed * 1_000_003 + prompt.seed for prompt in prompts]
        self._dice = Dice(seeds, target.device) if sampled else None
        self._chooser = Chooser(decoding.temperature, self._dice if sampled and decoding.draft_samples else None)

    def run(self) -> Iterator[Generated]:
        prefilled = self._target.prefill([prompt.ids for prompt in self._prompts])
        first, _ = Chooser(self._decoding.temperature, self._dice).choose(prefilled.logits)
        self._columns = prefilled.columns
        self._drafter.start(len(self._prompts))
        self._read_prompts(prefilled, first)
        self._last, self._at = first, prefilled.positions[:, -1] + 1
        self._rows = [_Row(prompt, []) for prompt in self._prompts]
        yield from self._leave([row.take([token], self._decoding) for row, token in self._with(first)])
        while self._rows:
            yield from self._leave(self._round())

    def _read_prompts(self, prefilled: Prefilled, first: Tensor) -> None:
        next_ids = torch.cat([prefilled.ids[:, 1:], first.unsqueeze(1)], dim=1)
        for start in range(0, next_ids.shape[1], PREFILL_CHUNK):
            piece = slice(start, start + PREFILL_CHUNK)
            parts = (prefilled.hidden, next_ids, prefilled.positions, prefilled.valid)
            self._drafter.read(*(part[:, piece] for part in parts))

    def _round(self) -> list[bool]:
        """Draft, verify, take over. Returns which rows are at their end."""
        proposal = self._drafter.propose(self._last, self._at, self._chooser)
        block = torch.cat([self._last.unsqueeze(1), proposal.ids], dim=1)
        places = torch.arange(block.shape[1], device=block.device)
        positions = self._at.unsqueeze(1) + places
        logits, hidden = self._target.run(self._columns, block, positions)
        verified = self._verify(proposal, logits)
        stands = places <= verified.num_accepted.unsqueeze(1)
        self._columns.refuse(stands)
        self._columns.compact()
        at_end = places[:-1] == verified.num_accepted.unsqueeze(1)
        next_ids = torch.where(at_end, verified.next_ids.unsqueeze(1), proposal.ids)
        next_ids = torch.cat([next_ids, verified.next_ids.unsqueeze(1)], dim=1)
        self._drafter.read(hidden, next_ids, positions, stands)
        self._last, self._at = verified.next_ids, self._at + verified.num_accepted + 1
        return self._take(proposal, verified)

    def _verify(self, proposal: Proposal, logits: Tensor) -> Verified:
        if self._dice is None:
            return verify_greedy(proposal.ids, logits)
        probs = probabilities(logits, self._decoding.temperature)
        return verify_sampled(proposal.ids, proposal.probs, probs, self._dice.uniforms(logits.shape[1]))

    def _take(self, proposal: Proposal, verified: Verified) -> list[bool]:
        drafted, ended = proposal.ids.tolist(), []
        confidence = None if proposal.confidence is None else proposal.confidence.tolist()
        for index, (row, token) in enumerate(self._with(verified.next_ids)):
            num = int(verified.num_accepted[index])
            row.accepted.append(num)
            if confidence is not None:
                row.confidence.append(tuple(confidence[index]))
            ended.append(row.take([*drafted[index][:num], token], self._decoding))
        return ended

    def _with(self, ids: Tensor) -> Iterator[tuple[_Row, int]]:
        return zip(self._rows, ids.tolist(), strict=True)

    def _leave(self, ended: Sequence[bool]) -> Iterator[Generated]:
        """Hand out rows that are at their end, and go on without them."""
        if not any(ended):
            return
        yield from (row.generated() for row, over in zip(self._rows, ended, strict=True) if over)
        kept = [index for index, over in enumerate(ended) if not over]
        self._rows = [self._rows[index] for index in kept]
        if not kept:
            return
        rows = torch.tensor(kept, device=self._target.device)
        self._columns.keep_rows(rows)
        self._drafter.keep_rows(rows)
        self._last, self._at = self._last[rows], self._at[rows]
        if self._dice is not None:
            self._dice.keep_rows(rows)
