import math

import pytest
import torch

from kalmanclip.errors import NumericalError
from kalmanclip.filtering.linalg import cholesky, log_density, mahalanobis, spectral, whiten

dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
devices = pytest.mark.parametrize("device", ["cpu"] + ["cuda"] * torch.cuda.is_available())


@dtypes
@devices
def test_a_definite_matrix_is_factored_without_a_shift(dtype, device):
    root = torch.tensor([[2.0, 0.0, 0.0], [1.0, 3.0, 0.0], [0.5, -1.0, 1.5]], dtype=dtype, device=device)
    torch.testing.assert_close(cholesky(root @ root.mT), root)


@dtypes
def test_only_the_symmetric_part_counts(dtype):
    matrix = torch.tensor([[2.0, 0.0], [1.0, 2.0]], dtype=dtype)
    factor = cholesky(matrix)
    torch.testing.assert_close(factor @ factor.mT, torch.tensor([[2.0, 0.5], [0.5, 2.0]], dtype=dtype))


@dtypes
@devices
@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_a_singular_matrix_is_repaired_at_its_own_scale(dtype, device, scale):
    v = torch.tensor([1.0, 2.0, 3.0], dtype=dtype, device=device)
    matrix = scale * torch.outer(v, v)
    factor = cholesky(matrix)
    assert torch.isfinite(factor).all()
    assert (factor @ factor.mT - matrix).abs().max() < 1e-4 * matrix.abs().max()


def test_a_pivot_that_is_only_rounding_is_not_trusted():
    """The covariance of a categorical variable is singular; without the check a pivot of 1e-9 comes back."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        p = torch.softmax(torch.randn(8, generator=generator), 0)
        covariance = torch.diag(p) - torch.outer(p, p)
        assert (cholesky(covariance).diagonal().square() > 1e-7 * covariance.diagonal()).all()


@devices
@pytest.mark.parametrize(
    ("pivot", "shift"),
    [(2.0**-10, 0.0), (2.0**-20, 0.0), (2.0**-22, 1e-6), (2.0**-23, 1e-6), (0.0, 1e-6), (-(2.0**-22), 1e-6)],
)
def test_the_smallest_shift_for_a_pivot_within_rounding_error_and_none_above_it(device, pivot, shift):
    """The border is two eps, 2^-22, for two rows in float32. The entries are exact; the oracle is float64."""
    matrix = torch.tensor([[1.0, 1.0], [1.0, 1.0 + pivot]], device=device)
    wanted = torch.linalg.cholesky(
        matrix.double() + shift * matrix.double().diagonal().mean() * torch.eye(2).to(matrix)
    )
    found = cholesky(matrix)
    torch.testing.assert_close(
        found[1, 1].double().square(), wanted[1, 1].square(), rtol=0.2 if shift else 1e-6, atol=0.0
    )
    torch.testing.assert_close(found.double(), wanted, rtol=0.0, atol=1e-3)


def test_different_scales_on_the_diagonal_are_not_a_defect():
    matrix = torch.diag(torch.tensor([1.0, 1e-12]))
    torch.testing.assert_close(cholesky(matrix), torch.diag(torch.tensor([1.0, 1e-6])))


@dtypes
@devices
@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        ([[1.0, 0.0], [0.0, -1.0]], "the noise is not positive definite"),
        ([[0.0, 0.0], [0.0, 0.0]], "the noise is not positive definite"),
        ([[-1.0]], "the noise is not positive definite"),
        ([[1.0, 0.0], [0.0, math.nan]], "the noise is not finite"),
        ([[1.0, math.nan], [math.nan, 1.0]], "the noise is not finite"),
        ([[math.inf, 0.0], [0.0, 1.0]], "the noise is not finite"),
    ],
)
def test_hopeless_matrices_are_refused(matrix, message, dtype, device):
    with pytest.raises(NumericalError, match=message):
        cholesky(torch.tensor(matrix, dtype=dtype, device=device), "the noise")


def test_distance_and_density_by_hand():
    R = torch.diag(torch.tensor([4.0, 9.0]))
    e = torch.tensor([2.0, 6.0])
    assert mahalanobis(e, R).item() == pytest.approx(math.sqrt(1 + 4))
    assert log_density(e, R).item() == pytest.approx(-2.5 - math.log(6) - math.log(2 * math.pi))


def test_density_against_torch():
    root = torch.randn(4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    S, e = root @ root.mT + torch.eye(4), torch.arange(4.0).double()
    reference = torch.distributions.MultivariateNormal(torch.zeros(4).double(), S).log_prob(e)
    torch.testing.assert_close(log_density(e, S), reference)


def test_spectral_inverse_square_root():
    root = torch.randn(4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    matrix = root @ root.mT
    inverse_root = spectral(matrix, torch.rsqrt)
    torch.testing.assert_close(inverse_root @ matrix @ inverse_root, torch.eye(4).double())


def test_rounding_below_zero_is_zero():
    """A Gram matrix of deficient rank has eigenvalues that rounding makes negative: their root is no NaN."""
    matrix = torch.diag(torch.tensor([4.0, 0.0, -1e-12]).double())
    torch.testing.assert_close(spectral(matrix, torch.sqrt), torch.diag(torch.tensor([2.0, 0.0, 0.0]).double()))


@dtypes
def test_whitened_rows_have_the_information_of_the_rows(dtype):
    """(L^-1 H)^T (L^-1 H) = H^T R^-1 H, for a full R and for the shortcut of a diagonal one."""
    generator = torch.Generator().manual_seed(1)
    H = torch.randn(3, 5, generator=generator, dtype=dtype)
    A = torch.randn(3, 3, generator=generator, dtype=dtype)
    full = A @ A.mT + torch.eye(3, dtype=dtype)
    for R in (full, torch.diag(full.diagonal()), torch.eye(3, dtype=dtype)):
        white = whiten(R, H)
        torch.testing.assert_close(white.mT @ white, H.mT @ torch.linalg.solve(R, H))


def test_whitening_refuses_a_diagonal_that_is_not_a_variance():
    with pytest.raises(NumericalError):
        whiten(torch.diag(torch.tensor([1.0, -1.0])), torch.ones(2, 4))
