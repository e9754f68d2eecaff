"""With a draft, good or bad, the target says what it says alone; and what stood is counted as it stood."""

import pytest
import torch

from dspark_train.evaluate.drafter import Proposal, make_drafter
from dspark_train.evaluate.lossless import check_greedy
from dspark_train.evaluate.reference import Decoding, generate
from tests.evaluate.tiny import BLOCK, TRAIN, greedy, prompts, tiny_draft

pytestmark = pytest.mark.torch
LENGTHS = [12, 5, 30, 21, 8]
NUM_TOKENS = 24


class Planted:
    """Proposes the target's own text, wrong from a planted place on. plan: of each prompt, how many stand each time."""

    num_tokens = BLOCK

    def __init__(self, texts, plan):
        self._texts, self._plan = texts, plan
        self.rows = list(range(len(texts)))
        self.places = [0] * len(texts)
        self.turn = 0

    def start(self, num_rows):
        assert num_rows == len(self.rows)
        self.num_read = [0] * num_rows

    def read(self, hidden, next_ids, positions, valid):
        for index, row in enumerate(self.rows):
            self.num_read[row] += int(valid[index].sum())

    def propose(self, last_ids, positions, chooser):
        ids = []
        for index, row in enumerate(self.rows):
            place = self.num_read[row] - len(self.prompts[row].ids)
            assert self._texts[row][place] == int(last_ids[index]), "it was not read what was accepted"
            own = (self._texts[row] + [0] * BLOCK)[place + 1 : place + 1 + BLOCK]
            stand = self._plan[row][self.turn % len(self._plan[row])]
            ids.append([token if k < stand else (token + 1) % 256 for k, token in enumerate(own)])
        self.turn += 1
        return Proposal(torch.tensor(ids), None, None)

    def keep_rows(self, rows):
        self.rows = [self.rows[row] for row in rows.tolist()]


class Fixed:
    """Proposes the same tokens whatever was said."""

    num_tokens = BLOCK

    def start(self, num_rows):
        pass

    def read(self, hidden, next_ids, positions, valid):
        pass

    def propose(self, last_ids, positions, chooser):
        return Proposal(torch.full((len(last_ids), BLOCK), 7), None, None)

    def keep_rows(self, rows):
        pass


@pytest.fixture(scope="module")
def own_texts(tiny_target):
    return [greedy(tiny_target, prompt, NUM_TOKENS) for prompt in prompts(LENGTHS)]


@pytest.mark.parametrize("algorithm", list(TRAIN))
def test_greedy_output_with_a_draft_is_the_targets_own(algorithm, target, tiny_target, tiny_data, own_texts):
    drafter = make_drafter(tiny_draft(algorithm, tiny_target, tiny_data))
    found = generate(target, drafter, prompts(LENGTHS), Decoding(max_tokens=NUM_TOKENS), batch_size=3)
    assert [list(one.ids) for one in found] == own_texts
    assert check_greedy(target, found).num_differing == 0


def test_what_stands_is_counted_and_the_text_stays_the_targets_own(target, own_texts):
    texts = prompts(LENGTHS)
    order = sorted(range(len(texts)), key=lambda i: len(texts[i].ids))
    plan = [[4, 0, 2], [1], [0], [4], [3, 3, 0]]
    drafter = Planted([own_texts[i] for i in order], [plan[i] for i in order])
    drafter.prompts = [texts[i] for i in order]
    found = generate(target, drafter, texts, Decoding(max_tokens=NUM_TOKENS), batch_size=8)
    assert [list(one.ids) for one in found] == own_texts
    for one, planted in zip(found, plan, strict=True):
        wanted, num = [], 1
        while num < NUM_TOKENS:
            wanted.append(planted[len(wanted) % len(planted)])
            num += wanted[-1] + 1
        assert list(one.accepted)[:-1] == wanted[:-1]  # the last one may run over the end of the planted text
        assert len(one.accepted) == len(wanted)


def test_a_wrong_text_is_found_out(target):
    texts = prompts([9])
    (one,) = generate(target, Fixed(), texts, Decoding(max_tokens=6), batch_size=1)
    wrong = type(one)(one.prompt, (*one.ids[:2], (one.ids[2] + 1) % 256, *one.ids[3:]), one.accepted, one.confidence)
    found = check_greedy(target, [wrong])
    assert found.num_differing >= 1
    assert found.max_gap > 0.001


@pytest.mark.parametrize("draft_samples", [False, True])
def test_a_sampled_text_depends_on_its_prompt_and_seed_alone(draft_samples, target, tiny_target, tiny_data):
    drafter = make_drafter(tiny_draft("dspark", tiny_target, tiny_data))
    decoding = Decoding(temperature=0.8, max_tokens=12, seed=4, draft_samples=draft_samples)
    together = generate(target, drafter, prompts(LENGTHS), decoding, batch_size=5)
    alone = [generate(target, drafter, [prompt], decoding, batch_size=1)[0] for prompt in prompts(LENGTHS)]
    assert [one.ids for one in together] == [one.ids for one in alone]


def test_a_text_ends_with_its_end_token(target, own_texts):
    prompt = prompts(LENGTHS)[0]
    stop = own_texts[0][5]
    place = own_texts[0].index(stop)
    (one,) = generate(
        target, Fixed(), [prompt], Decoding(max_tokens=NUM_TOKENS, stop_ids=frozenset({stop})), batch_size=1
    )
    assert list(one.ids) == own_texts[0][: place + 1]
