from dataclasses import replace

from dspark_train.data.conversation import Conversation, Message
from dspark_train.data.inputs import differences, inputs_of
from dspark_train.data.prepare import Options
from dspark_train.data.regenerate import Sampling

OPTIONS = Options("target", 512, seed=1)
SAMPLING = Sampling(0.5, 96, 1)


def conversations(question: str = "q", answer: str = "a") -> list[Conversation]:
    return [Conversation("c0", "", (Message("user", question), Message("assistant", answer)), "a.jsonl", 1)]


def test_the_digest_changes_with_every_input() -> None:
    digests = [
        inputs_of(conversations(), OPTIONS, None).digest,
        inputs_of(conversations("other"), OPTIONS, None).digest,
        inputs_of(conversations(answer="other"), OPTIONS, None).digest,
        inputs_of(conversations(), replace(OPTIONS, seq_len=256), None).digest,
        inputs_of(conversations(), replace(OPTIONS, model="other"), None).digest,
        inputs_of(conversations(), OPTIONS, SAMPLING).digest,
        inputs_of(conversations(), OPTIONS, replace(SAMPLING, max_tokens=95)).digest,
    ]
    assert len(set(digests)) == len(digests)


def test_answers_that_will_be_rewritten_are_no_input() -> None:
    assert inputs_of(conversations(answer="x"), OPTIONS, SAMPLING) == inputs_of(conversations(), OPTIONS, SAMPLING)


def test_what_changed_is_named() -> None:
    now = inputs_of(conversations("other"), replace(OPTIONS, seq_len=256), None).described
    before = inputs_of(conversations(), OPTIONS, None).described
    assert differences(now, before) == ["seq_len 256 (was 512)", "other conversations"]
    assert differences(now, now) == []
