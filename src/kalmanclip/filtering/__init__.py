"""A Kalman filter over the parameters of a model: tensors in, a Gaussian belief out.

This package knows means, covariances, Jacobians and innovations, and nothing about CLIP, images or files. It can be
used alone, on any `torch.nn.Module`::

    module = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
    belief = make_belief("diagonal", flat_parameters(module), variance=0.1)
    kalman = KalmanFilter(belief, ObservationNoise(NoiseConfig(beta=0.98)), FilterConfig(alpha=0.1))
    for x, y in batches:
        step = kalman.step(observe_module(module, x, y))
        print(step.innovation, step.log_likelihood)
    load_flat(module, belief.mean)                      # the trained model
    H = observe_module(module, x_new, y_new)(belief.mean).H
    sigma = belief.variance(H).sqrt()                   # the standard deviation of each output

- `kalman`: Algorithm 1 of the paper and nothing else; the reference for `accelerated/`.
- `filter`: `KalmanFilter`, which chooses between the two, skips broken steps and records each step.
- `beliefs/`: the covariance structures, one per file.
- `noise`: the estimate of the observation noise; `observation`: targets, predictions and Jacobian of a batch.
- `likelihoods`: class labels, yes or no, counts; `prior`: the prior variance that foresees the data best.
- `softmax`: the iterated update of a softmax regression; `fusion`: one belief from several learned separately.
- `accelerated/`: the fused diagonal step, its GPU kernels, CUDA graphs, several processes.
"""

from kalmanclip.filtering.accelerated.cuda_graph import CapturedStep
from kalmanclip.filtering.accelerated.distributed import Ranks, ShardedDiagonal
from kalmanclip.filtering.beliefs import Belief, belief_structure, make_belief, restore_belief
from kalmanclip.filtering.beliefs.block_diagonal import BlockDiagonal
from kalmanclip.filtering.beliefs.dense import Dense
from kalmanclip.filtering.beliefs.diagonal import Diagonal
from kalmanclip.filtering.beliefs.kronecker import Kronecker
from kalmanclip.filtering.beliefs.low_rank import LowRankPlusDiagonal
from kalmanclip.filtering.filter import FilterConfig, KalmanFilter, Step
from kalmanclip.filtering.fusion import fuse
from kalmanclip.filtering.likelihoods import (
    ModuleLikelihood,
    bound_labels,
    observe_binary,
    observe_counts,
    observe_labels,
    whiten_labels,
)
from kalmanclip.filtering.module import flat_parameters, linearize_module, load_flat, observe_module
from kalmanclip.filtering.noise import NoiseConfig, ObservationNoise
from kalmanclip.filtering.observation import Observation
from kalmanclip.filtering.prior import PriorChoice, choose_prior
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
    "LowRankPlusDiagonal",
    "ModuleLikelihood",
    "NoiseConfig",
    "Observation",
    "ObservationNoise",
    "PriorChoice",
    "Ranks",
    "ShardedDiagonal",
    "SoftmaxBelief",
    "Step",
    "belief_structure",
    "bound_labels",
    "choose_prior",
    "flat_parameters",
    "fuse",
    "linearize_module",
    "load_flat",
    "make_belief",
    "observe_binary",
    "observe_counts",
    "observe_labels",
    "observe_module",
    "restore_belief",
    "softmax_update",
    "whiten_labels",
]
