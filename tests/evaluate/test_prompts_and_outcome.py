"""What is asked, and how its figures are grouped."""

import json
from collections import Counter

import pytest

from dspark_train.data.conversation import Conversation, Message
from dspark_train.errors import UsageError
from dspark_train.evaluate.acceptance import of_rounds
from dspark_train.evaluate.outcome import by_domain, by_length, disagreement, figures, last_validation, suspicion
from dspark_train.evaluate.prompts import OWN_PROMPTS, Prompt, encode_prompts, in_contexts, read_prompts


def encode(messages):
    """A token a word, and one for each role."""
    return [1 for message in messages for _ in [message.role, *message.content.split()]] + [2]


def conversation(name, words, answer="yes it is"):
    turns = [Message("user", " ".join(["word"] * words))] + ([Message("assistant", answer)] if answer else [])
    return Conversation(name, "chat", tuple(turns), "f", 1)


def test_our_own_prompts_have_nine_domains_of_four_and_none_is_trained_on():
    own = read_prompts([OWN_PROMPTS], None)
    assert set(Counter(each.domain for each in own).values()) == {4}
    assert len({each.domain for each in own}) == 9
    trained = {each.messages[0].content for each in read_prompts(["examples/prompts.jsonl"], None)}
    assert {each.domain for each in own} == {each.domain for each in read_prompts(["examples/prompts.jsonl"], None)}
    assert not trained & {each.messages[0].content for each in own}


def test_so_many_of_each_domain_are_taken_in_order(tmp_path):
    path = tmp_path / "p.jsonl"
    rows = [{"id": f"{d}{i}", "domain": d, "prompt": f"{d} {i}"} for i in range(3) for d in "ab"]
    path.write_text(
        "".join(json.dumps({**r, "messages": [{"role": "user", "content": r["prompt"]}]}) + "\n" for r in rows)
    )
    assert [each.id for each in read_prompts([path], 2)] == ["a0", "b0", "a1", "b1"]


def test_the_first_question_is_asked_and_a_too_long_one_left_out():
    found = encode_prompts([conversation("a", 3), conversation("b", 30)], encode, max_tokens=20)
    assert [(each.id, len(each.ids)) for each in found] == [("a", 5)]


def test_a_context_is_filled_with_turns_of_others_and_not_overfilled():
    others = [conversation(str(i), 5) for i in range(10)]
    found = in_contexts(others, encode, 40, 1000)
    assert all(30 < len(each.ids) <= 40 and each.context_tokens == 40 for each in found)
    assert len({each.seed for each in found}) == 10


def test_a_context_that_cannot_be_filled_or_does_not_fit_is_refused():
    with pytest.raises(UsageError, match="give a file with more"):
        in_contexts([conversation("a", 5), conversation("b", 5, answer="")], encode, 400, 1000)
    with pytest.raises(UsageError, match="leaves no room"):
        in_contexts([conversation("a", 5)], encode, 2000, 1000)


def prompt(name, domain, length, context=0):
    return Prompt(name, domain, (1,) * length, context)


def test_figures_are_by_domain_for_short_prompts_and_by_length_for_all():
    parts = [
        (prompt("a", "math", 100), of_rounds([1], 2, 2)),
        (prompt("b", "code", 200), of_rounds([2], 2, 3)),
        (prompt("a", "math", 1000, 1024), of_rounds([0], 2, 1)),
    ]
    found = figures(by_domain(parts), by_length(parts))
    assert found["macro_accept_len"] == 2.5
    assert {name: row["accept_len"] for name, row in found["domains"].items()} == {"math": 2.0, "code": 3.0}
    assert {name: row["accept_len"] for name, row in found["lengths"].items()} == {"<=128": 2, "<=256": 3, "<=1024": 1}
    assert found["domains"]["math"]["per_position"] == [1.0, 0.0]
    assert found["num_tokens"] == 5


def test_a_draft_that_validates_well_and_drafts_nothing_is_suspicious():
    assert "hidden states" in suspicion(2.4, 1.02)
    assert suspicion(2.4, 2.1) == ""
    assert suspicion(1.1, 1.0) == ""  # too little was promised for a difference to say anything
    assert suspicion(None, 1.0) == suspicion(2.0, None) == ""


def test_the_greedy_acceptance_of_the_last_validation_counts():
    assert last_validation([{"step": 0, "eal": 1.0}, {"step": 9, "accept_len": 1.5, "eal": 1.7}]) == 1.7
    assert last_validation([{"step": 0, "accept_len": 1.5}]) == 1.5
    assert last_validation([]) is None


def test_a_disagreement_is_relative_to_the_smaller():
    assert disagreement(1.1, 1.0) == pytest.approx(0.1)
    assert disagreement(None, 1.0) is None
