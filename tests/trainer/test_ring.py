"""Pack buffers: never reused while anything reads them, and each with a memory of its own."""

import threading

import pytest
import torch

from dspark_train.trainer.ring import PackRing, PackShape, SlotState

pytestmark = pytest.mark.torch
SHAPE = PackShape(seq_len=10, num_layers=3, hidden_size=5, dtype=torch.float32)


def test_a_slot_passes_through_its_states_and_is_found_by_its_pack():
    ring = PackRing(SHAPE, 2)
    slot = ring.claim((4, 1))
    assert slot is not None
    assert slot.state is SlotState.FILLING
    assert ring.take((4, 1)) is None
    ring.seal(slot)
    assert ring.take((4, 0)) is None
    assert ring.take((4, 1)) is slot
    assert ring.take((4, 1)) is None
    ring.release(slot)
    assert slot.state is SlotState.FREE


def test_a_slot_that_is_filled_full_or_read_is_never_given_out_again():
    ring = PackRing(SHAPE, 3)
    filling, full, in_use = (ring.claim((0, pack)) for pack in range(3))
    ring.seal(full)
    ring.seal(in_use)
    assert ring.take((0, 2)) is in_use
    assert ring.claim((1, 0)) is None
    for wrong in (filling, full):
        with pytest.raises(AssertionError):
            ring.release(wrong)
    with pytest.raises(AssertionError):
        ring.seal(in_use)
    ring.release(in_use)
    assert ring.claim((1, 0)) is in_use


def test_a_reader_sees_its_pack_unchanged_while_a_writer_fills_as_fast_as_it_can():
    ring, num_packs = PackRing(SHAPE, 3), 300
    seen: list[bool] = []

    def fill() -> None:
        for pack in range(num_packs):
            assert ring.wait(ring.has_free, 20)
            slot = ring.claim((0, pack))
            slot.hidden.fill_(pack)
            slot.token_ids.fill_(pack)
            ring.seal(slot)

    writer = threading.Thread(target=fill)
    writer.start()
    for pack in range(num_packs):
        assert ring.wait(
            lambda pack=pack: any(s.key == (0, pack) and s.state is SlotState.FULL for s in ring._slots), 20
        )
        slot = ring.take((0, pack))
        before = slot.hidden.sum().item()
        seen.append(bool((slot.hidden == pack).all() and (slot.token_ids == pack).all()))
        assert slot.hidden.sum().item() == before
        ring.release(slot)
    writer.join()
    assert all(seen)


def test_filling_one_slot_does_not_spoil_a_backward_pass_over_another():
    ring = PackRing(SHAPE, 2)
    first, second = ring.claim((0, 0)), ring.claim((0, 1))
    weight = torch.ones(5, requires_grad=True)
    loss = (first.hidden * weight).sum()
    second.hidden.zero_()
    second.token_ids.zero_()
    loss.backward()
    assert weight.grad is not None


def test_slots_lie_apart_and_begin_on_the_stores_alignment():
    ring = PackRing(SHAPE, 3)
    slots = [ring.claim((0, pack)) for pack in range(3)]
    for slot in slots:
        assert slot.hidden.data_ptr() == ring.address + slot.offset
        assert slot.token_ids.data_ptr() == ring.address + slot.offset + SHAPE.tokens_offset
        assert slot.hidden.data_ptr() % 64 == slot.token_ids.data_ptr() % 64 == 0
        slot.hidden.fill_(slot.index)
        slot.token_ids.fill_(slot.index)
    for slot in slots:
        assert (slot.hidden == slot.index).all()
        assert (slot.token_ids == slot.index).all()
    assert ring.num_bytes == 3 * SHAPE.slot_bytes


def test_clearing_frees_what_was_fetched_and_not_trained():
    ring = PackRing(SHAPE, 2)
    ring.claim((0, 0))
    ring.seal(ring.claim((0, 1)))
    ring.clear()
    assert ring.take((0, 1)) is None
    assert ring.claim((1, 0)) is not None
    assert ring.claim((1, 1)) is not None


def test_a_wait_ends_when_its_time_is_over():
    assert not PackRing(SHAPE, 1).wait(lambda: False, 0.01)
