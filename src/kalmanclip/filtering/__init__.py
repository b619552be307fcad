"""A Kalman filter over the parameters of a model: tensors in, a Gaussian belief out.

This room knows means, covariances, Jacobians and innovations, and nothing about CLIP, images or files. It can
be used alone, on any `torch.nn.Module`::

    module = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
    belief = make_belief("diagonal", flat_parameters(module), variance=0.1)
    kalman = KalmanFilter(belief, ObservationNoise(NoiseConfig(beta=0.98)), FilterConfig(alpha=0.1))
    for x, y in batches:
        step = kalman.step(observe_module(module, x, y))
        print(step.innovation, step.log_likelihood)
    load_flat(module, belief.mean)                      # the trained model
    H = observe_module(module, x_new, y_new)(belief.mean).H
    sigma = belief.variance(H).sqrt()                   # and how sure it is of each output

`kalman.py` is Algorithm 1 of the paper, and the reference for `fast.py`, which does the same for independent
parameters in two passes over them (`fused.py`); `captured.py` makes a whole step one launch on a GPU. `belief.py` says
what a covariance structure must be able to do, and each structure has a file; `noise.py` estimates the observation
noise; `observation.py` is what the filter sees. `sharded.py` shares a belief out over several processes (`ranks.py`).
`softmax.py` is the iterated update of a softmax regression, in closed form. `fusion.py` makes one belief of several
that were learned apart.
"""

from kalmanclip.filtering.belief import Belief, belief_structure, make_belief, restore_belief
from kalmanclip.filtering.block_diagonal import BlockDiagonal
from kalmanclip.filtering.captured import CapturedStep
from kalmanclip.filtering.dense import Dense
from kalmanclip.filtering.diagonal import Diagonal
from kalmanclip.filtering.fusion import fuse
from kalmanclip.filtering.kalman import FilterConfig, KalmanFilter, Step
from kalmanclip.filtering.kronecker import Kronecker
from kalmanclip.filtering.low_rank import LowRank
from kalmanclip.filtering.module import flat_parameters, load_flat, observe_module
from kalmanclip.filtering.noise import NoiseConfig, ObservationNoise
from kalmanclip.filtering.observation import Observation
from kalmanclip.filtering.ranks import Ranks
from kalmanclip.filtering.sharded import Sharded
from kalmanclip.filtering.softmax import SoftmaxBelief, softmax_update

__all__ = [
    "Belief",
    "BlockDiagonal",
    "CapturedStep",
    "Dense",
    "Diagonal",
    "FilterConfig",
    "KalmanFilter",
    "Kronecker",
    "LowRank",
    "NoiseConfig",
    "Observation",
    "ObservationNoise",
    "Ranks",
    "Sharded",
    "SoftmaxBelief",
    "Step",
    "belief_structure",
    "flat_parameters",
    "fuse",
    "load_flat",
    "make_belief",
    "observe_module",
    "restore_belief",
    "softmax_update",
]
