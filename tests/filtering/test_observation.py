import pytest
import torch

from kalmanclip.errors import ConfigError
from kalmanclip.filtering import KalmanFilter, Observation, make_belief

ones = torch.ones


def test_innovation():
    seen = Observation(torch.tensor([1.0, 2.0]), torch.tensor([0.5, 3.0]), ones(2, 3))
    assert seen.innovation.tolist() == [0.5, -1.0]


@pytest.mark.parametrize(
    ("y", "y_hat", "H", "R", "message"),
    [
        (ones(2, 1), ones(2), ones(2, 3), None, "y must be a vector"),
        (ones(0), ones(0), ones(0, 3), None, "y must be a vector"),
        (ones(2), ones(3), ones(2, 3), None, r"y_hat .*\(2,\), not \(3,\)"),
        (ones(2), ones(2), ones(3, 2), None, r"H .*\(2, n\), not \(3, 2\)"),
        (ones(2), ones(2), ones(2), None, "H must"),
        (ones(2), ones(2), ones(2, 3), ones(2), r"R must be a \(2, 2\)"),
        (ones(2), ones(2), ones(2, 3), ones(3, 3), r"R must be a \(2, 2\)"),
    ],
)
def test_bad_shapes(y, y_hat, H, R, message):
    with pytest.raises(ConfigError, match=message):
        Observation(y, y_hat, H, R)


def test_a_jacobian_for_other_parameters_is_an_error_and_not_a_skipped_step():
    kalman = KalmanFilter(make_belief("diagonal", torch.zeros(4), 1.0))
    with pytest.raises(ConfigError, match=r"3 columns .* 4 parameters"):
        kalman.step(lambda mu: Observation(ones(2), ones(2), ones(2, 3)))
    assert kalman.skipped == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_filter_works_in_the_dtype_of_the_belief_and_keeps_no_graph(dtype):
    belief = make_belief("diagonal", torch.zeros(3, dtype=dtype), 1.0)
    weight = ones(2, 3, requires_grad=True)
    kalman = KalmanFilter(belief)
    step = kalman.step(lambda mu: Observation(ones(2), weight @ mu.float(), 2 * weight))
    assert not step.skipped
    assert belief.mean.dtype == belief.s.dtype == dtype
    assert not belief.mean.requires_grad
    assert not belief.s.requires_grad
