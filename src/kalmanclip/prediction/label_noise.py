"""Which labels are wrong: the posterior of a symmetric noise model, given predictions that did not see the labels.

A share ``rate`` of the labels is wrong, and a wrong label is any of the other ``C - 1`` classes with equal probability.
An image whose true class is c with probability ``p_c`` has the label ``y`` with probability

    (1 - rate) p_y  +  rate (1 - p_y) / (C - 1),

and the second term's share of it is the probability that the label is wrong. The rate is not known. Its prior is
``Beta(1, PRIOR)``, and it is integrated out: a few images do not tell it well, and its most probable value would be
zero for most small clean sets, with which no label could be wrong.

Who learns from noisy labels is less sure of the true classes than the images allow: the noise is in the predictions
already, and would not be seen beside them. So the logits are scaled by the factor, the *sharpness*, with which the
labels are most probable under the noise model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kalmanclip.prediction.temperature import most_probable_scale

PRIOR = 9.0
"""Of the Beta(1, PRIOR) prior of the rate: a tenth of the labels in the mean, and the fewer the more probable."""

SUSPECT = 0.5
"""A label that is wrong with a larger probability is suspect."""

_POINTS = 1000  # of the integral over the rate, evenly in its square root: densest where good data lie
_ROWS = 4096  # images at a time: rows times points must fit into memory


@dataclass(frozen=True, eq=False)
class LabelNoise:
    """What the labels of N images are believed to be.

    Attributes:
        wrong: the probability that the label is wrong, (N,).
        rate: the mean of the posterior over the share of wrong labels.
        log_evidence: the logarithm of the probability of all labels, in nats.
    """

    wrong: Tensor
    rate: float
    log_evidence: float


def label_noise(probabilities: Tensor, labels: Tensor) -> LabelNoise:
    """Return the posterior of the noise model.

    Args:
        probabilities: of the true classes, (N, C), by a model that was not shown these labels.
        labels: (N,), as they were given.
    """
    p = probabilities.gather(1, labels.unsqueeze(1)).double().clamp(0, 1)
    tiny = torch.finfo(p.dtype).tiny
    root = (torch.arange(_POINTS, dtype=p.dtype, device=p.device) + 0.5) / _POINTS
    rate = root.square()
    right, other = 1 - rate, rate / (probabilities.shape[1] - 1)

    # of the rate's density, times its derivative by the root, times the step
    log_posterior = math.log(PRIOR) + (PRIOR - 1) * torch.log1p(-rate) + (2 * root / _POINTS).log()
    for rows in p.split(_ROWS):
        log_posterior = log_posterior + (right * rows + other * (1 - rows)).clamp_min(tiny).log().sum(dim=0)
    log_evidence = log_posterior.logsumexp(dim=0)
    weights = (log_posterior - log_evidence).exp()

    def wrong(rows: Tensor) -> Tensor:
        noise = other * (1 - rows)
        return noise / (right * rows + noise).clamp_min(tiny) @ weights

    found = torch.cat([wrong(rows) for rows in p.split(_ROWS)]) if len(p) else p.squeeze(1)
    return LabelNoise(found.to(probabilities), float(weights @ rate), float(log_evidence))


def sharpened(probabilities: Tensor, labels: Tensor) -> tuple[Tensor, LabelNoise]:
    """Return the probabilities with their sharpness fitted, and the posterior of the noise model under them.

    Args:
        probabilities: as in `label_noise`.
        labels: as there.
    """
    log_p = probabilities.clamp_min(torch.finfo(probabilities.dtype).tiny).log()
    known: dict[float, tuple[Tensor, LabelNoise]] = {}

    def score(sharpness: float) -> float:
        p = (sharpness * log_p).softmax(dim=1)
        known[sharpness] = p, label_noise(p, labels)
        return known[sharpness][1].log_evidence

    return known[most_probable_scale(score, 1.0, factor=math.sqrt(2), spread=2.0, reach=8)]


def likely_labels(probabilities: Tensor, labels: Tensor, wrong: Tensor) -> tuple[Tensor, Tensor]:
    """Return the most probable other class of each image (N,), and the probability (N,) that it is the true one.

    Args:
        probabilities: as in `label_noise`.
        labels: as there.
        wrong: what it found.
    """
    others = probabilities.scatter(1, labels.unsqueeze(1), 0.0)
    most, label = others.max(dim=1)
    return label, wrong * most / others.sum(dim=1).clamp_min(torch.finfo(others.dtype).tiny)


@dataclass(frozen=True, eq=False)
class LabelCheck:
    """What is believed about the labels of N images; `KalmanCLIP.check_labels` returns it.

    Attributes:
        class_names: C of them.
        labels: as they were given, (N,).
        wrong: the probability that the label is wrong, (N,).
        likely: the most probable other class, (N,).
        likely_probability: that it is the true one, (N,).
        probabilities: of the classes, by a classifier that did not see the image, (N, C).
        rate: the expected share of wrong labels.
    """

    class_names: list[str]
    labels: np.ndarray
    wrong: np.ndarray
    likely: np.ndarray
    likely_probability: np.ndarray
    probabilities: np.ndarray
    rate: float

    @classmethod
    def of(cls, class_names: Sequence[str], labels: Tensor, probabilities: Tensor, noise: LabelNoise) -> LabelCheck:
        """Put together what `label_noise` found and the likely labels."""
        likely, probability = likely_labels(probabilities, labels, noise.wrong)
        given, wrong, other, share, p = (
            column.cpu().numpy() for column in (labels, noise.wrong, likely, probability, probabilities)
        )
        return cls(list(class_names), given, wrong, other, share, p, noise.rate)

    def suspects(self, threshold: float = SUSPECT) -> np.ndarray:
        """Return the positions of images whose label is wrong with a probability above this, the surest first."""
        order = np.argsort(-self.wrong, kind="stable")
        return order[self.wrong[order] > threshold]
