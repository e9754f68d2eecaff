from hypothesis import given
from hypothesis import strategies as st

from dspark_train.store.protocol import ALIGN_BYTES, Range, SampleLayout
from dspark_train.store.whole_object import WholeRead, plan_whole

ADDRESS, SCRATCH = 1_000_000, 7


def test_hidden_states_and_tokens_of_a_sample_are_its_whole_object():
    layout = SampleLayout(num_tokens=3, bytes_per_token=100)  # 300 bytes, tokens at 320, ends at 344, padded to 384
    ranges = [Range("k", layout.tokens_offset, 5000, layout.tokens_bytes), Range("k", 0, 64, layout.hidden_bytes)]
    whole, rest = plan_whole(ADDRESS, ranges, SCRATCH)
    assert whole == [
        WholeRead("k", (ADDRESS + 64, SCRATCH, ADDRESS + 5000, SCRATCH), (300, 20, 24, 40), (0, 1)),
    ]
    assert whole[0].num_bytes == layout.total_bytes
    assert rest == []


def test_a_part_an_overlap_or_a_hole_is_left_to_reads_of_ranges():
    ranges = [
        Range("part", 64, 0, 64),
        Range("overlap", 0, 0, 64),
        Range("overlap", 32, 64, 64),
        Range("hole", 0, 0, 64),
        Range("hole", 64 + ALIGN_BYTES, 64, 64),
        Range("nothing", 0, 0, 0),
    ]
    assert plan_whole(ADDRESS, ranges, SCRATCH) == ([], [0, 1, 2, 3, 4, 5])


@given(st.lists(st.tuples(st.integers(1, 5000), st.sampled_from([16, 100, 6912])), min_size=1, max_size=8))
def test_every_sample_is_read_whole_and_every_wanted_byte_goes_where_it_was_wanted(samples):
    ranges, at = [], 0
    for i, (num_tokens, bytes_per_token) in enumerate(samples):
        layout = SampleLayout(num_tokens, bytes_per_token)
        ranges.append(Range(str(i), 0, at, layout.hidden_bytes))
        ranges.append(Range(str(i), layout.tokens_offset, at + layout.hidden_bytes, layout.tokens_bytes))
        at += layout.hidden_bytes + layout.tokens_bytes
    whole, rest = plan_whole(ADDRESS, ranges, SCRATCH)
    assert rest == []
    assert [read.num_bytes for read in whole] == [SampleLayout(*sample).total_bytes for sample in samples]
    targets = {(a, n) for read in whole for a, n in zip(read.addresses, read.sizes, strict=True) if a != SCRATCH}
    assert targets == {(ADDRESS + wanted.target_offset, wanted.num_bytes) for wanted in ranges}
