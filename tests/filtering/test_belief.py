"""Making beliefs by name, and refusing what cannot work. Their algebra is in test_contract.py."""

import pytest
import torch

from kalmanclip.errors import ConfigError
from kalmanclip.filtering import (
    BlockDiagonal,
    Dense,
    Diagonal,
    Kronecker,
    LowRankPlusDiagonal,
    make_belief,
    restore_belief,
)

MEAN = torch.zeros(4)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("banded", {}, "Unknown covariance structure 'banded'.* There are: .*dense, diagonal"),
        ("diagonal", {"update": "both"}, "covariance, precision"),
        ("diagonal", {"rank": 3}, "cannot make a 'diagonal' belief.*rank"),
        ("block", {}, "cannot make a 'block' belief.*groups"),
        ("block", {"groups": [1, 2]}, r"sum to 4, not \[1, 2\]"),
        ("block", {"groups": [4, 0]}, "sum to 4"),
        ("low_rank", {"rank": 0}, "at least 1"),
        ("kronecker", {}, "cannot make a 'kronecker' belief.*rows"),
        ("kronecker", {"rows": 3}, "divides 4 parameters, not 3"),
        ("kronecker", {"rows": 0}, "divides 4 parameters, not 0"),
        ("kronecker", {"rows": 2.0}, r"whole number.*not 2\.0"),
    ],
)
def test_bad_options(kind, options, message):
    with pytest.raises(ConfigError, match=message):
        make_belief(kind, MEAN, 1.0, **options)


@pytest.mark.parametrize("variance", [0.0, -1.0, float("nan"), float("inf"), torch.tensor([1.0, 1, 1, 0])])
def test_a_prior_variance_must_be_positive(variance):
    with pytest.raises(ConfigError, match="positive and finite"):
        make_belief("diagonal", MEAN, variance)


def test_bad_shapes_and_types():
    with pytest.raises(ConfigError, match="shape"):
        make_belief("diagonal", MEAN, torch.ones(3))
    with pytest.raises(ConfigError, match="vector"):
        make_belief("diagonal", torch.zeros(2, 2), 1.0)
    with pytest.raises(ConfigError, match="float16"):
        make_belief("diagonal", MEAN.half(), 1.0)
    with pytest.raises(ConfigError, match="variances"):
        Diagonal(MEAN, torch.ones(3))
    with pytest.raises(ConfigError, match="covariance"):
        Dense(MEAN, torch.eye(3))
    with pytest.raises(ConfigError, match="blocks"):
        BlockDiagonal(MEAN, [torch.eye(3)])
    with pytest.raises(ConfigError, match="blocks"):
        BlockDiagonal(MEAN, [torch.ones(4, 2)])
    with pytest.raises(ConfigError, match="do not fit"):
        LowRankPlusDiagonal(MEAN, torch.ones(4), torch.zeros(3, 2))
    for factor in (torch.eye(3), torch.ones(4, 2), torch.ones(4), torch.tensor(1.0), torch.ones(0, 0)):
        with pytest.raises(ConfigError, match="does not fit rows of 4 parameters"):
            Kronecker(MEAN, factor)
    with pytest.raises(ConfigError, match="not negative"):
        make_belief("dense", MEAN, 1.0).inflate(-1.0)


def test_restoring_needs_every_tensor():
    state = make_belief("low_rank", MEAN, 1.0).state_dict()
    del state["W"]
    with pytest.raises(ConfigError, match="'W'"):
        restore_belief("low_rank", state)
    with pytest.raises(ConfigError, match="There are: block, dense"):
        restore_belief("unknown", state)


def test_restored_into_memory_of_the_callers_choice():
    """A model that reads its parameters from one buffer gets the restored mean in that buffer."""
    state = make_belief("diagonal", torch.arange(4.0), 1.0, update="precision").state_dict()
    buffer = torch.zeros(4)
    buffer.copy_(state["mean"])
    belief = restore_belief("diagonal", {**state, "mean": buffer})
    belief.mean.add_(1)
    assert buffer.tolist() == [1, 2, 3, 4]
    assert belief.update == "precision"


@pytest.mark.parametrize(
    ("kind", "options"), [("dense", {}), ("block", {"groups": [30_000]}), ("kronecker", {"rows": 1})]
)
def test_a_covariance_too_large_for_any_memory_is_refused_at_once(kind, options):
    with pytest.raises(ConfigError, match="GiB"):
        make_belief(kind, torch.zeros(30_000), 1.0, **options)
