"""A pack assembled by us is what speculators' CollateFn makes of the same samples, and trains the same."""

import numpy as np
import pytest
import torch
from speculators.train.data import CollateFn

from dspark_train.schedule.unit import Piece
from dspark_train.trainer.drafts import build_draft
from dspark_train.trainer.packs import empty_pack, loss_mask_row, pack_batch, preprocessed, zero_gaps
from dspark_train.trainer.ring import PackRing, PackShape
from tests.trainer import recorded
from tests.trainer.recorded import HIDDEN, LAYERS, NUM_STORED, SEQ_LEN

pytestmark = pytest.mark.torch
SHAPE = PackShape(SEQ_LEN, NUM_STORED, HIDDEN, torch.float32)
LENGTHS = (30, 41, 9)


@pytest.fixture(scope="module")
def draft(tiny_target, recorded_data):
    return build_draft(recorded.resolved_run(tiny_target, recorded_data), recorded_data)


def samples():
    drawn = np.random.default_rng(5)
    made, start = [], 0
    for number, length in enumerate(LENGTHS):
        states = torch.from_numpy(recorded.hidden_states(number, length))
        ids = torch.from_numpy(drawn.integers(4, 200, length))
        mask = torch.from_numpy((np.arange(length) > length // 3).astype(np.int64))
        made.append((Piece(number, start, length), states, ids, mask))
        start += length
    return made


def filled_slot():
    slot = PackRing(SHAPE, 1).claim((0, 0))
    slot.hidden.fill_(9.0)
    slot.token_ids.fill_(9)
    for piece, states, ids, _ in samples():
        rows = slice(piece.start_row, piece.start_row + piece.num_tokens)
        slot.hidden[rows], slot.token_ids[rows] = states, ids
    return slot


def ours(failed=frozenset()):
    slot, pieces = filled_slot(), [piece for piece, *_ in samples()]
    zero_gaps(slot, pieces, failed)
    small = loss_mask_row(pieces, [mask.numpy() for *_, mask in samples()], failed, SEQ_LEN)
    return slot, pack_batch(slot.hidden, slot.token_ids, small)


def theirs(preprocess=None):
    batch = [
        {
            "hidden_states": states[:, :-1].flatten(1),
            "verifier_last_hidden_states": states[:, -1],
            "input_ids": ids,
            "loss_mask": mask,
            "lengths": torch.tensor([piece.num_tokens]),
            "position_ids": torch.arange(piece.num_tokens),
        }
        for piece, states, ids, mask in samples()
    ]
    made = CollateFn(SEQ_LEN, HIDDEN, len(LAYERS), torch.float32, preprocess)(batch)
    return {key: value for key, value in made.items() if isinstance(value, torch.Tensor)}


def test_a_pack_is_what_speculators_collates_of_the_same_samples():
    made, want = ours()[1], theirs()
    assert made.keys() == want.keys()
    for key in want:
        assert torch.equal(made[key], want[key]), key
        assert made[key].dtype == want[key].dtype, key


def test_large_arguments_are_views_of_the_buffer():
    slot, batch = ours()
    for key, part in (("hidden_states", slot.hidden), ("input_ids", slot.token_ids)):
        assert batch[key].data_ptr() == part.data_ptr()
    assert batch["verifier_last_hidden_states"].data_ptr() == slot.hidden[:, -1].data_ptr()
    slot.hidden[0, 0, 0] = 123.0
    assert batch["hidden_states"][0, 0, 0] == 123.0


def test_loss_and_gradients_are_those_of_speculators_batch(draft):
    results = []
    for batch in (ours()[1], theirs()):
        draft.model.zero_grad(set_to_none=True)
        torch.manual_seed(11)
        _, loss, sums = draft.model(**batch, **draft.train_kwargs)
        loss.backward()
        gradients = {n: w.grad.clone() for n, w in draft.model.named_parameters() if w.grad is not None}
        results.append((loss.item(), {k: float(v) for k, v in sums.items()}, gradients))
    (loss, sums, gradients), (their_loss, their_sums, their_gradients) = results
    assert loss == pytest.approx(their_loss, rel=1e-6)
    assert sums == pytest.approx(their_sums, rel=1e-6)
    assert gradients.keys() == their_gradients.keys()
    for name in gradients:
        torch.testing.assert_close(gradients[name], their_gradients[name])


def test_a_failed_piece_is_a_hole_of_zeros_that_nothing_attends_to_or_trains_on():
    slot, batch = ours(failed=frozenset({1}))
    rows = slice(30, 71)
    assert not slot.hidden[rows].any()
    assert not batch["input_ids"][0, rows].any()
    assert not batch["loss_mask"][0, rows].any()
    assert (batch["document_ids"][0, rows] == -1).all()
    assert batch["document_ids"][0, 71:80].tolist() == [2] * 9
    assert batch["position_ids"][0, 71:80].tolist() == list(range(9))
    assert slot.hidden[:30].any()


def test_a_pack_of_padding_has_a_loss_of_zero_and_finite_gradients(draft):
    draft.model.zero_grad(set_to_none=True)
    _, loss, _ = draft.model(**empty_pack(SHAPE, torch.device("cpu")), **draft.train_kwargs)
    (loss * 0.0).backward()
    assert torch.isfinite(loss)
    assert all(torch.isfinite(w.grad).all() for w in draft.model.parameters() if w.grad is not None)


def test_a_preprocessed_pack_is_what_speculators_makes_with_the_same_preprocessing(draft):
    from dataclasses import replace

    from speculators.models.eagle3.data import shift_batch

    shifting = replace(draft, preprocess=shift_batch)
    made = preprocessed(shifting, ours()[1], [piece for piece, *_ in samples()], frozenset())
    want = theirs(shift_batch)
    assert made.keys() == want.keys()
    for key in want:
        assert torch.equal(made[key], want[key]), key
