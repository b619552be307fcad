"""ProKeR: the zero-shot classifier, corrected by kernel ridge regression of its errors on the training images."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from kalmanclip.data import FewShotTask
from kalmanclip.encoders.features import Progress
from kalmanclip.encoders.preprocess import RandomCropConfig
from kalmanclip.errors import ConfigError
from kalmanclip.methods.base import check_positive
from kalmanclip.methods.baselines.base import FeatureMethod, hits, kernel

TRANSFERRED = {1: (3.0, 0.05), 2: (2.6, 0.05), 4: (1.5, 0.05), 8: (1.66, 0.07), 16: (1.7, 0.1)}
"""The published beta and lambda by shots, found on ImageNet, for data sets without validation images."""


@dataclass(frozen=True)
class ProKeRConfig(RandomCropConfig):
    """Options of ProKeR, and of the crops that are its samples (`RandomCropConfig`).

    Memory grows with the square of shots times classes times crops.

    Attributes:
        beta: sharpness of the kernel, without validation images; None: the published one for the number of shots.
        lmbda: the regularisation, likewise.
        beta_range: lowest, highest and number of values tried on the validation images, evenly spaced. Published by
            data set: 0.1 to 10 (DTD, Flowers, SUN397, Cars), 0.01 to 5 (Pets), 0.5 to 3 elsewhere, 5 to 40 values. Most
            of the time goes into them: an eigendecomposition each, as many rows as there are samples.
        lmbda_range: likewise; published 0.001 to 10 (DTD, Flowers), 0.001 to 1 (EuroSAT and most others), 5 to 100
            values. Of equal pairs the first wins, beta slowest.
    """

    beta: float | None = None
    lmbda: float | None = None
    beta_range: tuple[float, float, int] = (0.1, 10.0, 10)
    lmbda_range: tuple[float, float, int] = (0.001, 10.0, 100)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(beta=self.beta, lmbda=self.lmbda, beta_range=self.beta_range, lmbda_range=self.lmbda_range)
        for name, (low, high, _) in (("beta_range", self.beta_range), ("lmbda_range", self.lmbda_range)):
            if high < low:
                raise ConfigError(f"{name} is the lowest value, the highest and their number, not {low}, {high}.")


class ProKeR(FeatureMethod):
    """Logits ``(f T^T + k(f, X) A) / tau`` with ``A = (k(X, X) / lambda + I)^-1 (Y - X T^T)``.

    ``k(x, z) = exp(-beta (1 - x z))``, ``X`` are the training features and ``Y`` their one-hot labels. Ridge regression
    would multiply the correction by 1 / lambda; the published code does not, so lambda is also its weight. Nor does it
    divide by tau, which changes no decision.

    Attributes:
        X: the training features (N, d).
        A: the coefficients (N, C).
        beta: the sharpness that was used.
        lmbda: the regularisation that was used.
    """

    Config = ProKeRConfig
    config: ProKeRConfig
    X: Tensor
    A: Tensor
    beta: float
    lmbda: float

    def learn(self, task: FewShotTask, progress: Progress) -> None:
        """Solve for the coefficients; ``beta`` and ``lmbda`` are searched on the validation images only."""
        c = self.config
        self.X, labels, _ = self.samples(task, c, progress)
        errors = F.one_hot(labels, len(self.T)).to(self.X) - self.X @ self.T.mT
        held_out = self.validation(task, progress)
        if held_out is None:
            shots = max(task.train.counts())
            beta, lmbda = TRANSFERRED[max(k for k in TRANSFERRED if k <= max(shots, 1))]
            self.beta, self.lmbda = c.beta or beta, c.lmbda or lmbda
        else:
            self.search(errors, *held_out, progress)
        # in float64: the system's condition is N / lambda
        X = self.X.double()
        K = kernel(X @ X.mT, self.beta)
        factor = torch.linalg.cholesky(K / self.lmbda + torch.eye(len(K)).to(K))
        self.A = torch.cholesky_solve(errors.double(), factor).to(self.X)

    def search(self, errors: Tensor, f: Tensor, labels: Tensor, progress: Progress) -> None:
        """Set ``beta`` and ``lmbda`` to the first best pair of the grid on the validation images.

        One eigendecomposition per beta serves every lambda. ``errors`` are ``Y - X T^T`` (N, C).
        """
        clip, most = f @ self.T.mT, -1
        ranges = (self.config.beta_range, self.config.lmbda_range)
        betas, lmbdas = (torch.linspace(*spec, dtype=torch.float64).tolist() for spec in ranges)
        for i, beta in enumerate(betas):
            values, Q = torch.linalg.eigh(kernel(self.X @ self.X.mT, beta))
            values = values.clamp(min=0)
            left, right = kernel(f @ self.X.mT, beta) @ Q, Q.mT @ errors
            for lmbda in lmbdas:
                found = hits(clip + left / (values / lmbda + 1) @ right, labels)
                if found > most:
                    most, self.beta, self.lmbda = found, beta, lmbda
            progress("searching", i + 1, len(betas))

    def score(self, f: Tensor) -> Tensor:
        """Turn features (N, d) into logits (N, C)."""
        return self.zero_shot(f) + self.scale * kernel(f @ self.X.mT, self.beta) @ self.A
