"""vLLM's counters are read as it writes them, and the server it is asked of is a right one."""

import json

import pytest

from dspark_train.errors import UsageError
from dspark_train.evaluate.served import Counters, parse_counters
from dspark_train.evaluate.serving_command import Serving, serving_argv, serving_env, speculative_config

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


SERVING = Serving("/t", "/d", "dflash2", 7, 300, on_cpu=True)


def test_the_server_drafts_as_vllm_calls_it():
    assert speculative_config(SERVING) == {"method": "dflash", "model": "/d", "num_speculative_tokens": 7}
    argv = serving_argv(SERVING, 21000)
    assert json.loads(argv[argv.index("--speculative-config") + 1])["method"] == "dflash"
    assert argv[argv.index("--dtype") + 1] == "float32"
    assert "VLLM_CPU_KVCACHE_SPACE" in serving_env(SERVING, 1)


def test_on_a_gpu_the_target_keeps_its_type():
    serving = Serving("/t", "/d", "dspark", 8, 300, on_cpu=False, draft_samples=True)
    assert "--dtype" not in serving_argv(serving, 21000)
    assert speculative_config(serving)["draft_sample_method"] == "probabilistic"
    assert "OMP_NUM_THREADS" not in serving_env(serving, 1)
