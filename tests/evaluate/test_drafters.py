"""What the drafters propose is what speculators' own training passes give for the same tokens."""

import pytest
import torch

from dspark_train.errors import UsageError
from dspark_train.evaluate.dice import Chooser, Dice
from dspark_train.evaluate.drafter import make_drafter
from tests.evaluate.tiny import BLOCK, TRAIN, prompts, tiny_draft

pytestmark = pytest.mark.torch
GREEDY = Chooser(0.0, None)
LENGTHS = [23, 9, 31]


def proposed(target, drafter, chooser=GREEDY, texts=None):
    """What the drafter proposes after all but the last token of each text, which was chosen but not yet verified."""
    texts = texts or prompts(LENGTHS)
    filled = target.prefill([text.ids[:-1] for text in texts])
    last = torch.tensor([text.ids[-1] for text in texts])
    next_ids = torch.cat([filled.ids[:, 1:], last.unsqueeze(1)], dim=1)
    drafter.start(len(texts))
    drafter.read(filled.hidden, next_ids, filled.positions, filled.valid)
    return texts, drafter.propose(last, filled.positions[:, -1] + 1, chooser)


def target_hidden(target, ids):
    from dspark_train.evaluate.columns import Columns

    return target.run(Columns(1, target.device), torch.tensor([ids]), torch.arange(len(ids)).unsqueeze(0)).hidden


@torch.inference_mode()
def block_pass(model, target, text, drafted):
    """Speculators' training pass for one block that starts at the text's last token: logits and confidence."""
    anchor, block = len(text.ids) - 1, model.block_size
    ids = [*text.ids, *drafted, *[7] * (2 * block)]
    hidden = target_hidden(target, ids)
    mask = torch.zeros(1, len(ids))
    mask[0, anchor] = 1
    states, logits, *_ = model._backbone_forward(
        hidden, torch.tensor([ids]), mask, hidden[..., :64], torch.zeros(1, len(ids), dtype=torch.long), max_anchors=1
    )
    before = torch.tensor([ids[anchor : anchor + block]])
    if not model.config.sample_from_anchor:
        before = torch.cat([before[:, :1], before[:, :-1]], dim=1)
    confidence = None
    if getattr(model, "markov_head", None) is not None:
        embedded = model.markov_head.prev_embeddings(before)
        logits = logits + model.markov_head.block_bias(prev_token_ids=before, hidden_states=states)
        confidence = model.confidence_head(torch.cat([states, embedded], dim=-1))[0]
    return logits[0], confidence


@pytest.mark.parametrize(
    ("algorithm", "train"),
    [
        ("dspark", {}),
        ("dspark", {"sample_from_anchor": False, "block_size": BLOCK + 1}),
        ("dspark", {"markov_head_type": "gated"}),
        ("dspark", {"markov_head_type": "rnn"}),
        ("dspark", {"sliding_window_non_causal": True}),
        ("dspark", {"draft_vocab_size": 512}),
        ("dflash", {}),
    ],
)
def test_a_block_is_what_the_training_pass_gives_at_each_position(algorithm, train, target, tiny_target, tiny_data):
    model = tiny_draft(algorithm, tiny_target, tiny_data, **train)
    drafter = make_drafter(model)
    texts, proposal = proposed(target, drafter)
    assert proposal.ids.shape == (3, BLOCK)
    first = 0 if model.config.sample_from_anchor else 1
    for row, text in enumerate(texts):
        drafted = proposal.ids[row].tolist()
        logits, confidence = block_pass(model, target, text, drafted)
        best = logits[first:].argmax(dim=-1)
        expected = best if model.d2t is None else best + model.d2t[best]
        assert drafted == expected.tolist()
        if confidence is not None:
            torch.testing.assert_close(proposal.confidence[row], confidence[first:], atol=1e-4, rtol=1e-4)


@torch.inference_mode()
@pytest.mark.parametrize(
    "train", [{}, {"norm_before_residual": True}, {"norm_output": True}, {"norm_before_fc": False, "fc_norm": True}]
)
def test_eagle_drafts_what_its_training_pass_gives_on_its_own_tokens(train, target, tiny_target, tiny_data):
    model = tiny_draft("eagle3", tiny_target, tiny_data, **train)
    texts, proposal = proposed(target, make_drafter(model))
    for row, text in enumerate(texts):
        ids = [*text.ids, *proposal.ids[row].tolist()]
        hidden, last = target_hidden(target, ids)[:, :-1], len(text.ids) - 2
        steps = model(hidden, torch.tensor([ids[1:]]), torch.zeros(1, len(ids) - 1, dtype=torch.long), ttt_steps=BLOCK)
        best = torch.tensor([int(step[0, last]) for step in steps])
        assert proposal.ids[row].tolist() == (best + model.d2t[best]).tolist()


@pytest.mark.parametrize("algorithm", list(TRAIN))
def test_a_proposal_does_not_depend_on_what_was_proposed_before(algorithm, target, tiny_target, tiny_data):
    drafter = make_drafter(tiny_draft(algorithm, tiny_target, tiny_data))
    texts, first = proposed(target, drafter)
    again = drafter.propose(
        torch.tensor([t.ids[-1] for t in texts]), torch.tensor([len(t.ids) - 1 for t in texts]), GREEDY
    )
    assert torch.equal(first.ids, again.ids)


@pytest.mark.parametrize("algorithm", list(TRAIN))
def test_sampled_tokens_are_drawn_from_the_probabilities_that_are_handed_on(algorithm, target, tiny_target, tiny_data):
    drafter = make_drafter(tiny_draft(algorithm, tiny_target, tiny_data))
    _, proposal = proposed(target, drafter, Chooser(1.0, Dice([1, 2, 3], torch.device("cpu"))))
    assert proposal.probs.shape == (3, BLOCK, 512)
    torch.testing.assert_close(proposal.probs.sum(dim=-1), torch.ones(3, BLOCK))
    assert (proposal.probs.gather(-1, proposal.ids.unsqueeze(-1)) > 0).all()


@pytest.mark.parametrize(("window", "is_seen"), [(8, False), (2048, True)])
def test_a_block_sees_no_further_back_than_its_window(window, is_seen, target, tiny_target, tiny_data):
    drafter = make_drafter(tiny_draft("dflash", tiny_target, tiny_data, num_layers=1, sliding_window=window))
    (text,) = prompts([30])
    filled = target.prefill([text.ids])
    last, at = torch.tensor([5]), torch.tensor([30])

    def drafts(hidden):
        drafter.start(1)
        drafter.read(hidden, filled.ids, filled.positions, filled.valid)
        return drafter.propose(last, at, Chooser(1.0, Dice([1], torch.device("cpu")))).probs

    other = filled.hidden.clone()
    other[:, :20] = -other[:, :20]
    assert torch.equal(drafts(filled.hidden), drafts(other)) is not is_seen


def test_fewer_tokens_than_trained_for_may_be_drafted_and_more_are_refused(target, tiny_target, tiny_data):
    model = tiny_draft("dspark", tiny_target, tiny_data)
    _, whole = proposed(target, make_drafter(model))
    _, two = proposed(target, make_drafter(model, 2))
    assert torch.equal(two.ids, whole.ids[:, :2])
    with pytest.raises(UsageError, match="at most 4 tokens"):
        make_drafter(model, 5)
