import httpx
import pytest

from dspark_train.engine.extract import EngineRefused, HiddenShape, read_answer, request_body
from dspark_train.errors import WrongData
from dspark_train.store.protocol import SampleLayout
from tests.engine.fakes import SHAPE, manifest

TOKENS = [7, 8, 9]


def answer(change=None, **fields) -> httpx.Response:
    body = {"choices": [{"prompt_token_ids": TOKENS}], "kv_transfer_params": manifest("k", 3)} | fields
    if change:
        change(body["kv_transfer_params"])
    return httpx.Response(200, json=body)


def test_a_right_answer_gives_the_bytes_of_the_object():
    assert read_answer(answer(), TOKENS, "k", SHAPE) == SampleLayout(3, 48).total_bytes == 256


def test_the_request_carries_token_ids_key_and_segment_and_wants_its_tokens_back():
    body = request_body("m", TOKENS, "k", "host:1")
    assert body["prompt"] == TOKENS
    assert body["max_tokens"] == 1
    assert body["return_token_ids"] is True
    assert body["kv_transfer_params"] == {"key": "k", "segment": "host:1"}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda m: m.update(handle="other"), "k: handle is other, and should be k"),
        (lambda m: m.update(version=2), "version is 2"),
        (
            lambda m: m["tensors"]["hidden_states"].update(shape=[3, 2, 4]),
            r"hidden_states is .*\[3, 2, 4\].* should be",
        ),
        (lambda m: m["tensors"]["hidden_states"].update(dtype="torch.bfloat16"), "bfloat16"),
        (lambda m: m["tensors"]["token_ids"].update(offset=144), "token_ids is"),
        (lambda m: m["metadata"].update(total_aligned_bytes=1), "total_aligned_bytes is 1, and should be 256"),
        (lambda m: m.pop("tensors"), "hidden_states is None"),
    ],
)
def test_a_manifest_that_differs_is_refused_naming_the_field(change, text):
    with pytest.raises(WrongData, match=text):
        read_answer(answer(change), TOKENS, "k", SHAPE)


@pytest.mark.parametrize(
    ("response", "error", "text"),
    [
        (httpx.Response(500, text="EngineCore died"), EngineRefused, "answered 500: EngineCore died"),
        (httpx.Response(200, text="<html>"), WrongData, "k: the answer lacks"),
        (httpx.Response(200, json={"choices": []}), WrongData, "k: the answer lacks"),
        (answer(choices=[{"prompt_token_ids": [7, 8]}]), WrongData, "ran other tokens than it was given"),
        (answer(choices=[{"prompt_token_ids": None}]), WrongData, "ran other tokens than it was given"),
        (answer(kv_transfer_params=None), WrongData, "puts nothing: is DSparkConnector its kv_connector"),
    ],
)
def test_other_answers_say_what_is_wrong(response, error, text):
    with pytest.raises(error, match=text):
        read_answer(response, TOKENS, "k", SHAPE)


def test_bytes_of_a_token_follow_from_layers_width_and_type():
    assert HiddenShape(4, 576, "float32").layout(1).bytes_per_token == 9216
    assert HiddenShape(6, 7168, "bfloat16").layout(1).bytes_per_token == 86016
