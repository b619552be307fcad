"""The moving average R, by hand-computed numbers."""

import math

import pytest
import safetensors.torch
import torch

from kalmanclip.errors import ConfigError
from kalmanclip.filtering import KalmanFilter, NoiseConfig, Observation, ObservationNoise, make_belief

E = torch.tensor([1.0, 3.0]).double()
HSH = torch.tensor([[2.0, 1.0], [1.0, 4.0]]).double()
both = pytest.mark.parametrize("structure", ["full", "exchangeable"])


def matrix(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def after(R, structure="full", **options):
    """A noise whose state is R."""
    noise = ObservationNoise(NoiseConfig(structure=structure, **options))
    noise.accept(R)
    return noise


@both
def test_measured_start_is_the_mean_squared_innovation(structure):
    noise = ObservationNoise(NoiseConfig(structure=structure))
    torch.testing.assert_close(noise.previous(E), 5 * torch.eye(2).double())
    assert noise.distance(E).item() == pytest.approx(math.sqrt(10 / 5))
    assert noise.R is None  # asking changes nothing


@both
def test_given_start(structure):
    noise = ObservationNoise(NoiseConfig(initial=0.1, structure=structure))
    torch.testing.assert_close(noise.previous(E), 0.1 * torch.eye(2).double())
    assert noise.distance(E).item() == pytest.approx(10)


@pytest.mark.parametrize(
    ("method", "lam", "expected"),
    [
        (1, 1.0, matrix([4.6, 0.3], [0.3, 5.4])),  # 0.9 * 5 I + 0.1 e e^T
        (2, 1.0, matrix([4.8, 0.4], [0.4, 5.8])),  # ... + 0.1 H Sigma H^T
        (2, 0.5, matrix([4.65, 0.2], [0.2, 5.15])),
        (2, 0.0, matrix([4.5, 0.0], [0.0, 4.5])),
    ],
)
def test_moving_average(method, lam, expected):
    noise = ObservationNoise(NoiseConfig(beta=0.9, method=method))
    R_1 = noise.estimate(E, HSH, lam)
    torch.testing.assert_close(R_1, expected)
    assert noise.R is None
    noise.accept(R_1)
    torch.testing.assert_close(noise.R, expected)
    torch.testing.assert_close(noise.estimate(0 * E, 0 * HSH, 1.0), 0.9 * expected)


def test_exchangeable_moving_average():
    noise = ObservationNoise(NoiseConfig(beta=0.9, structure="exchangeable"))
    expected = matrix([5.3, 0.4], [0.4, 5.3])  # the averages of the full one
    R_1 = noise.estimate(E, HSH, 1.0)
    torch.testing.assert_close(R_1, expected)
    noise.accept(R_1)
    torch.testing.assert_close(noise.R, expected)


def test_distance_is_under_the_previous_noise():
    noise = after(matrix([4.0, 0.0], [0.0, 9.0]))
    before = noise.distance(E).item()
    assert before == pytest.approx(math.sqrt(1 / 4 + 9 / 9))
    R_k = noise.estimate(E, HSH, 1.0)
    assert noise.distance(E).item() == before
    noise.accept(R_k)
    assert noise.distance(E).item() != before


def test_a_short_batch_updates_the_leading_block_only():
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(4, 4, generator=generator, dtype=torch.float64)
    R = root @ root.mT
    noise = after(R, beta=0.8)
    e = torch.tensor([0.5, -0.2]).double()
    torch.testing.assert_close(noise.previous(e), R[:2, :2])
    R_k = noise.estimate(e, HSH, 1.0)
    torch.testing.assert_close(R_k, 0.8 * R[:2, :2] + 0.2 * (torch.outer(e, e) + HSH))
    noise.accept(R_k)
    torch.testing.assert_close(noise.R[:2, :2], R_k)
    torch.testing.assert_close(noise.R[2:, 2:], R[2:, 2:])
    torch.testing.assert_close(noise.R[:2, 2:], math.sqrt(0.8) * R[:2, 2:])
    torch.testing.assert_close(noise.R, noise.R.mT)


@both
def test_short_and_long_batches_in_any_order_keep_the_noise_positive(structure):
    """Nearly singular R, and outliers that shrink it: with unscaled cross blocks it would turn indefinite."""
    generator = torch.Generator().manual_seed(1)
    v = torch.ones(6).double()
    noise = after(torch.outer(v, v) + 1e-3 * torch.eye(6).double(), beta=0.7, structure=structure)
    for m in (2, 3, 2, 1, 6, 4, 1, 1, 5, 2, 2, 2, 8, 3, 6, 8, 1):
        e = 0.1 * torch.randn(m, generator=generator, dtype=torch.float64)
        noise.accept(noise.estimate(e, torch.zeros(m, m).double(), 0.1))
        assert noise.R.shape == (max(6, m) if noise.R.shape[0] == 6 else 8,) * 2
        assert torch.linalg.eigvalsh(noise.R).min() > 0
        assert torch.isfinite(noise.distance(e))


def test_a_larger_batch_grows_the_noise_by_independent_positions():
    noise = after(matrix([4.0, 1.0], [1.0, 2.0]))
    e = torch.ones(4).double()
    expected = matrix([4.0, 1, 0, 0], [1, 2, 0, 0], [0, 0, 3, 0], [0, 0, 0, 3])  # 3 = the mean variance
    torch.testing.assert_close(noise.previous(e), expected)
    assert noise.R.shape == (2, 2)
    noise.accept(noise.estimate(e, torch.zeros(4, 4).double(), 1.0))
    torch.testing.assert_close(noise.R, 0.98 * expected + 0.02)


def test_exchangeable_noise_fits_every_batch_size():
    noise = after(matrix([2.0, -1.0], [-1.0, 2.0]), structure="exchangeable")
    torch.testing.assert_close(noise.previous(E), matrix([2.0, -1.0], [-1.0, 2.0]))
    assert noise.previous(torch.ones(1).double()).tolist() == [[2.0]]
    # Ten positions cannot all have the correlation -1/2; it is raised until the matrix is positive definite.
    ten = noise.previous(torch.ones(10).double())
    assert ten[0, 0] == 2
    assert -1 < ten[0, 1] < 0
    assert torch.linalg.eigvalsh(ten).min() == pytest.approx(2e-2)


def test_a_batch_of_one_keeps_the_correlation():
    noise = after(matrix([2.0, 1.0], [1.0, 2.0]), structure="exchangeable", beta=0.5)
    noise.accept(noise.estimate(torch.ones(1).double(), torch.zeros(1, 1).double(), 1.0))
    torch.testing.assert_close(noise.R, matrix([1.5, 0.75], [0.75, 1.5]))


@pytest.mark.parametrize(("structure", "invariant"), [("exchangeable", True), ("full", False)])
def test_only_exchangeable_noise_ignores_positions(structure, invariant):
    """The same batches, each in another order: the same posterior, or not."""
    generator = torch.Generator().manual_seed(2)
    means = []
    data = [(torch.randn(5, generator=generator), torch.randn(5, 3, generator=generator)) for _ in range(6)]
    for shuffle in (False, True):
        belief = make_belief("diagonal", torch.zeros(3).double(), 1.0)
        kalman = KalmanFilter(belief, ObservationNoise(NoiseConfig(structure=structure)))
        for y, H in data:
            p = torch.randperm(5, generator=generator) if shuffle else torch.arange(5)
            kalman.step(lambda mu, y=y[p], H=H[p]: Observation(y.double(), H.double() @ mu, H))
        means.append(belief.mean)
    assert torch.allclose(*means, rtol=1e-10, atol=1e-12) is invariant


@both
def test_the_state_survives_a_file(structure):
    config = NoiseConfig(structure=structure)
    assert ObservationNoise.from_state(config, ObservationNoise(config).state_dict()).R is None
    noise = ObservationNoise(config)
    noise.accept(noise.estimate(E, HSH, 1.0))
    state = safetensors.torch.load(safetensors.torch.save(noise.state_dict()))
    restored = ObservationNoise.from_state(config, state)
    assert torch.equal(noise.R, restored.R)
    for e in (E, E[:1], torch.ones(5).double()):
        HSH_e = torch.zeros(len(e), len(e)).double()
        assert torch.equal(noise.estimate(e, HSH_e, 0.7), restored.estimate(e, HSH_e, 0.7))


def test_a_state_of_the_other_structure_is_refused():
    state = after(HSH).state_dict()
    with pytest.raises(ConfigError, match="lacks 'a'"):
        ObservationNoise.from_state(NoiseConfig(structure="exchangeable"), state)


@pytest.mark.parametrize(
    "options",
    [
        {"beta": 1.1},
        {"beta": -0.1},
        {"beta": math.nan},
        {"method": 3},
        {"initial": 0.0},
        {"structure": "diagonal"},
    ],
)
def test_bad_options(options):
    with pytest.raises(ConfigError):
        NoiseConfig(**options)


@pytest.mark.parametrize("structure", ["full", "exchangeable"])
def test_the_noise_changes_nobody_elses_tensors(structure):
    """It is updated in place: what it was made from, and what it has told, stay as they were."""
    config = NoiseConfig(structure=structure)
    R = torch.eye(3, dtype=torch.float64)
    first = ObservationNoise(config)
    first.accept(R)
    state = first.state_dict()
    told, kept = first.R, {name: t.clone() for name, t in state.items()}
    second = ObservationNoise.from_state(config, state)
    for noise in (first, second):
        noise.accept(5 * R)
        noise.accept(7 * torch.eye(4, dtype=torch.float64))
        noise.accept(9 * torch.eye(4, dtype=torch.float64))
    assert torch.equal(R, torch.eye(3, dtype=torch.float64))
    assert torch.equal(told, R)
    assert all(torch.equal(state[name], t) for name, t in kept.items())


@pytest.mark.parametrize("reference", [False, True])
@pytest.mark.parametrize("size", [1e11, 1e14, 3e16])
def test_a_huge_batch_and_then_a_batch_of_one_do_not_poison_the_noise(reference, size):
    """float32: the product of a variance and a covariance of 1e22 is infinite, their correlation is not."""
    generator = torch.Generator().manual_seed(3)
    belief = make_belief("diagonal", torch.zeros(4), 1.0)
    kalman = KalmanFilter(belief, ObservationNoise(NoiseConfig(structure="exchangeable")), reference=reference)

    def step(m, scale=1.0):
        H = scale * (1 + 0.1 * torch.randn(m, 4, generator=generator))
        y = torch.randn(m, generator=generator)
        return kalman.step(lambda mean: Observation(y, torch.zeros(m), H))

    assert not step(3).skipped
    assert not step(3, size).skipped
    before = kalman.noise.R
    assert not step(1).skipped
    torch.testing.assert_close(kalman.noise.R[0, 1] / kalman.noise.R[0, 0], before[0, 1] / before[0, 0])
    for m in (3, 1, 2):
        assert not step(m).skipped
    assert torch.isfinite(kalman.noise.R).all()


@pytest.mark.parametrize("allowed", [None, True])
def test_a_batch_of_one_after_noise_of_any_size(allowed):
    """From 1e-30 to 1e30 and back, as the reference and as the fast path take it over."""
    for start, end in ((1e-30, 1e30), (1e30, 1e-30), (1e37, 1e37), (1e-37, 1e-37)):
        noise = ObservationNoise(NoiseConfig(structure="exchangeable"))
        noise.accept(start * torch.tensor([[1.0, 0.5], [0.5, 1.0]]))
        noise.accept(torch.full((1, 1), end), None if allowed is None else torch.tensor(allowed))
        torch.testing.assert_close(noise.R / end, torch.tensor([[1.0, 0.5], [0.5, 1.0]]))
