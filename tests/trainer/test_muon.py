"""Muon on CPU orthogonalises in float32."""

import pytest
import torch
from torch.optim import Muon

from dspark_train.trainer.muon import newton_schulz, use_float32_on_cpu

pytestmark = pytest.mark.torch
COEFFICIENTS = (3.4445, -4.7750, 2.0315)


@pytest.mark.parametrize("shape", [(24, 60), (60, 24), (32, 32)])
def test_singular_values_come_near_one_and_singular_vectors_stay(shape):
    torch.manual_seed(0)
    matrix = torch.randn(shape)
    near = newton_schulz(matrix, COEFFICIENTS, 5, 1e-7)
    u, _, vh = torch.linalg.svd(matrix, full_matrices=False)
    middle = u.T @ near @ vh.T
    assert near.shape == matrix.shape
    assert near.dtype == torch.float32
    assert torch.all((middle.diagonal() > 0.5) & (middle.diagonal() < 1.5))
    assert (middle - torch.diag(middle.diagonal())).abs().max() < 1e-4


def test_a_step_of_torchs_muon_on_cpu_is_the_one_in_float32():
    torch.manual_seed(0)
    use_float32_on_cpu()
    use_float32_on_cpu()
    weight = torch.nn.Parameter(torch.randn(16, 40))
    before, weight.grad = weight.detach().clone(), torch.randn(16, 40)
    gradient = weight.grad.clone()
    Muon([weight], lr=0.1, momentum=0.0, weight_decay=0.0, nesterov=False).step()
    step = before - weight.detach()
    expected = newton_schulz(gradient, COEFFICIENTS, 5, 1e-7)
    torch.testing.assert_close(step / step.norm(), expected / expected.norm(), rtol=1e-5, atol=1e-6)
