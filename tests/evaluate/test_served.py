"""vLLM's counters are read as it writes them."""

import pytest

from dspark_train.errors import UsageError
from dspark_train.evaluate.served import Counters, parse_counters

METRICS = """# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="target"} 120.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="target"} 360.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="target"} 90.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="target",position="0"} 60.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="target",position="2"} 10.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="target",position="1"} 20.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="target"} 1.7e+09
vllm:num_requests_running{engine="0",model_name="target"} 0.0
"""


def test_counters_are_read_by_position():
    assert parse_counters(METRICS) == Counters(120, (60, 20, 10))


def test_engines_are_summed():
    assert parse_counters(METRICS + METRICS.replace('engine="0"', 'engine="1"')) == Counters(240, (120, 40, 20))


def test_a_server_without_a_draft_is_named_as_such():
    with pytest.raises(UsageError, match="counts no drafts"):
        parse_counters("vllm:num_requests_running 0.0")


def test_what_was_counted_before_is_taken_off():
    assert Counters(120, (60, 20)).since(Counters(100, (50, 20))) == Counters(20, (10, 0))
