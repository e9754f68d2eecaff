import pytest

from dspark_train.schedule.layout import SampleLayout


@pytest.mark.parametrize(
    ("num_tokens", "bytes_per_token", "tokens_offset", "total_bytes"),
    [(1, 64, 64, 128), (8, 8, 64, 128), (9, 8, 128, 256), (3, 100, 320, 384)],
)
def test_token_ids_lie_at_the_next_multiple_of_64_and_the_end_is_padded(
    num_tokens, bytes_per_token, tokens_offset, total_bytes
):
    layout = SampleLayout(num_tokens, bytes_per_token)
    assert (layout.tokens_offset, layout.total_bytes) == (tokens_offset, total_bytes)


def test_the_store_has_the_same_layout():
    from dspark_train.store import protocol

    assert protocol.SampleLayout is SampleLayout
