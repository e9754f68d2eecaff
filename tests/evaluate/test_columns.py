"""A cache of rows that grow unevenly sees what each row has, and nothing that was refused."""

import pytest
import torch

from dspark_train.evaluate.columns import Columns

pytestmark = pytest.mark.torch
DEVICE = torch.device("cpu")


def filled(valid):
    """Columns whose keys and values say their row and column."""
    valid = torch.tensor(valid, dtype=torch.bool)
    rows, num = valid.shape
    columns = Columns(rows, DEVICE)
    states = (torch.arange(rows).view(-1, 1, 1, 1) * 100 + torch.arange(num).view(1, 1, -1, 1)).float()
    columns.cache.update(states.expand(-1, 2, -1, 3).clone(), -states.expand(-1, 2, -1, 3).clone(), 0)
    columns.append(torch.arange(num).expand(rows, -1), valid)
    return columns


def test_new_tokens_see_valid_columns_and_those_before_them():
    columns = filled([[1, 0, 1]])
    mask = columns.mask(torch.tensor([[3, 4]]))
    assert mask[0, 0].int().tolist() == [[1, 0, 1, 1, 0], [1, 0, 1, 1, 1]]
    assert columns.mask(torch.tensor([[3, 4]]), causal=False)[0, 0, 0].int().tolist() == [1, 0, 1, 1, 1]


def test_a_window_counts_the_token_itself():
    mask = filled([[1, 1, 1]]).mask(torch.tensor([[3, 4]]), window=2)
    assert mask[0, 0].int().tolist() == [[0, 0, 1, 1, 0], [0, 0, 0, 1, 1]]


def test_padding_sees_itself_and_nobody_sees_padding():
    mask = Columns(1, DEVICE).mask(torch.tensor([[0, 0, 1]]), torch.tensor([[False, True, True]]))
    assert mask[0, 0].int().tolist() == [[1, 0, 0], [0, 1, 0], [0, 1, 1]]


def test_refused_tokens_are_not_seen_and_dropped_ones_are_gone():
    columns = filled([[1, 1, 1, 1]])
    columns.refuse(torch.tensor([[True, False]]))
    assert columns.valid.int().tolist() == [[1, 1, 1, 0]]
    columns.drop_newest(2)
    assert columns.valid.shape == (1, 2)
    assert columns.cache.layers[0].keys.shape[2] == 2
    columns.drop_newest(0)
    assert columns.valid.shape == (1, 2)


def test_columns_are_moved_together_once_most_are_wasted_and_keep_their_order():
    columns = filled([[1, 0, 0, 0, 1, 0], [0, 1, 0, 0, 0, 0]])
    columns.compact()
    assert columns.valid.int().tolist() == [[1, 1], [1, 0]]
    keys, values = columns.cache.layers[0].keys, columns.cache.layers[0].values
    assert keys[0, 1, :, 2].tolist() == [0, 4]
    assert values[1, 0, 0, 0].item() == -101
    assert columns.positions[0].tolist() == [0, 4]


def test_few_wasted_columns_are_left_where_they_are():
    columns = filled([[1, 1, 0, 1]])
    columns.compact()
    assert columns.valid.shape == (1, 4)


def test_rows_leave():
    columns = filled([[1, 0], [1, 1], [0, 1]])
    columns.keep_rows(torch.tensor([0, 2]))
    assert columns.valid.int().tolist() == [[1, 0], [0, 1]]
    assert columns.cache.layers[0].keys[1, 0, 1, 0].item() == 201
