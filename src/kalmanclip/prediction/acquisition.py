"""Which images to label next: how much a label would tell, before it is known.

Two kinds of functions. The first take draws: class probabilities (S, N, C) of N images under S classifiers drawn from a
belief, whichever it is. The second take the belief itself where it is Gaussian class by class (`JointLogits`): there a
label is an observation of the linearised filter, whose covariance update needs no label. So the filter can be run
ahead, over labels that nobody has given yet: after each image of a batch the others are judged as if it were known.
That makes a batch diverse by itself.

Everything that is called information is in nats.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kalmanclip.prediction.predictive import averaged

TARGETS = 256
"""Images of the pool that stand for those to be predicted later."""

_CONFIGURATIONS = 256  # of labels of a batch: all of them while there are fewer, then so many that are drawn
_NUMBERS = 2**24  # in memory at a time


def entropy(p: Tensor) -> Tensor:
    """Return the entropy (N,) of class probabilities (N, C)."""
    return torch.special.entr(p).sum(dim=1)


def ambiguity(p: Tensor) -> Tensor:
    """Return one less the margin between the two most probable classes, (N,), of probabilities (N, C)."""
    first, second = p.topk(2, dim=1).values.unbind(dim=1)
    return 1 - (first - second)


def mutual_information(draws: Tensor) -> Tensor:
    """Return the information (N,) that each label has about the classifier (BALD), of probabilities (S, N, C)."""
    return averaged(draws.log()).decompose().epistemic


def predictive_information(draws: Tensor, targets: Tensor) -> Tensor:
    """Return the information (N,) that each label has about that of a target, in the mean over the targets (EPIG).

    Args:
        draws: probabilities (S, N, C).
        targets: probabilities (S, M, C) of the targets under the same classifiers.
    """
    (S, N, C), M = draws.shape, targets.shape[1]
    theirs = targets.flatten(1)
    apart = entropy(draws.mean(dim=0)), entropy(targets.mean(dim=0)).mean()
    together = []
    for part in draws.split(max(1, _NUMBERS // (C * C * M)), dim=1):
        joint = part.flatten(1).mT @ theirs / S
        together.append(torch.special.entr(joint).view(part.shape[1], -1).sum(dim=1) / M)
    return apart[0] + apart[1] - torch.cat(together) if N else apart[0]


def batch_mutual_information(draws: Tensor, n: int, seed: int = 0) -> list[int]:
    """Return n images whose labels together have most information about the classifier, chosen greedily (BatchBALD).

    The entropy of the labels of a batch is a sum over all their configurations while these are few; then over
    configurations drawn from their distribution.

    Args:
        draws: probabilities (S, N, C).
        n: how many.
        seed: of the configurations.
    """
    S, N, C = draws.shape
    p = draws.double()
    own = torch.special.entr(p).sum(dim=2).mean(dim=0)  # given the classifier, labels are independent: it adds up
    generator = torch.Generator().manual_seed(seed)
    known = p.new_ones(1, S)  # of each configuration (row), its probability under each classifier
    shift = p.new_zeros(1)  # what was divided out, in logarithms
    weights = p.new_ones(1)
    behind: Tensor | None = None  # the classifiers that drawn configurations come from
    chosen: list[int] = []
    for _ in range(min(n, N)):
        total = _entropy_with_each(known, shift, weights, p) - own
        total[chosen] = -math.inf
        best = int(total.argmax())
        chosen.append(best)
        if behind is None and len(known) * C <= _CONFIGURATIONS:
            known = (known.unsqueeze(1) * p[:, best].mT).flatten(0, 1)
            shift = shift.repeat_interleave(C)
            weights = known.mean(dim=1) * shift.exp()
        else:
            if behind is None:  # from now on, configurations are drawn: of the whole batch, anew
                behind = torch.arange(_CONFIGURATIONS) % S
                known, shift = p.new_ones(_CONFIGURATIONS, S), p.new_zeros(_CONFIGURATIONS)
                weights, added = p.new_full((_CONFIGURATIONS,), 1 / _CONFIGURATIONS), chosen
            else:
                added = [best]
            for image in added:
                labels = torch.multinomial(p[behind, image].cpu(), 1, generator=generator).squeeze(1)
                known = known * p[:, image, labels.to(p.device)].mT
            largest = known.amax(dim=1)
            known, shift = known / largest.unsqueeze(1), shift + largest.log()
    return chosen


def _entropy_with_each(known: Tensor, shift: Tensor, weights: Tensor, p: Tensor) -> Tensor:
    """Return the entropy (N,) of the labels of a batch with each of the images added.

    Args:
        known: (K, S), of each configuration of the batch's labels its probability under each classifier, but for a
            factor.
        shift: (K,), the logarithm of that factor.
        weights: (K,), of each configuration; they sum to one.
        p: probabilities (S, N, C).
    """
    S, C = p.shape[0], p.shape[2]
    parts = []
    for images in p.split(max(1, _NUMBERS // (len(known) * C)), dim=1):
        joint = (known @ images.flatten(1) / S).view(len(known), -1, C)
        there = joint.sum(dim=2, keepdim=True).clamp_min(torch.finfo(p.dtype).tiny)
        log = joint.clamp_min(torch.finfo(p.dtype).tiny).log() + shift.view(-1, 1, 1)
        parts.append(-(weights.view(-1, 1) * (joint / there * log).sum(dim=2)).sum(dim=0))
    return torch.cat(parts)


@dataclass(frozen=True, eq=False)
class JointLogits:
    """A Gaussian over the logits of N images together, class by class.

    The logits of class c have the covariance ``A_c A_c^T`` (N, N) with the rows of ``A_c``: the features times the
    class's standard deviations, and the share of what moves all classes. Covariances between classes are left out.

    Attributes:
        features: (N, K).
        variances: (C, K), of the coordinates of each class's weights.
        shared: (N, C), standard deviations of what moves the classes together.
        scale: of the covariance that predictions average over; see `kalmanclip.prediction.temperature`. Learning goes
            by the whole covariance.
    """

    features: Tensor
    variances: Tensor
    shared: Tensor
    scale: float = 1.0

    def variance(self) -> Tensor:
        """Return the variance of every logit (N, C)."""
        return self.features.square() @ self.variances.mT + self.shared.square()

    def covariance(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Return the covariances (C, R, M) of the logits of some images with those of others, given by position."""
        left = self.features[rows] * self.variances.unsqueeze(1)
        between = self.shared[rows].mT.unsqueeze(2) * self.shared[columns].mT.unsqueeze(1)
        covariance: Tensor = torch.baddbmm(between, left, self.features[columns].mT.expand(len(left), -1, -1))
        return covariance


@dataclass(frozen=True)
class Chosen:
    """Images to label, in the order in which they were chosen.

    Attributes:
        positions: in the pool.
        information: nats that each label is expected to give, with those before it known.
    """

    positions: list[int]
    information: list[float]


def expected_curvature(draws: Tensor) -> Tensor:
    """Return the mean of ``p (1 - p)`` (N, C) over draws (S, N, C): the precision with which a label shows a logit."""
    return (draws - draws.square()).mean(dim=0)


def choose_informative(logits: JointLogits, curvature: Tensor, n: int, targets: int = TARGETS) -> Chosen:
    """Return n images whose labels together have most information about the labels of the pool, chosen greedily.

    A label is a linearised observation of its image's logits, of each class with the precision ``p (1 - p)``. Its
    information about a target is that between two Gaussians: half the logarithm of what the target's uncertainty
    shrinks by, where ``1 + p (1 - p) variance`` is that uncertainty. After every choice the covariance is updated as
    if the label were known.

    Args:
        logits: of the pool.
        curvature: (N, C), see `expected_curvature`.
        n: how many.
        targets: at most so many images of the pool, drawn at random, stand for it.
    """
    N, C = curvature.shape
    device = curvature.device
    order = torch.randperm(N, generator=torch.Generator().manual_seed(0)).to(device)
    target = order[:targets]
    # where there are too many to look at, those that say most about the classifier
    room = max(n, _NUMBERS // (C * max(1, len(target))))
    alone = torch.log1p(curvature * logits.variance()).sum(dim=1)
    candidates = alone.argsort(descending=True, stable=True)[:room]
    w, w_target = curvature[candidates].mT, logits.scale * curvature[target].mT  # (C, R), (C, M)
    between = logits.covariance(candidates, target)  # (C, R, M)
    variance, of_targets = logits.variance()[candidates].mT, logits.variance()[target].mT
    chosen: list[int] = []
    information: list[float] = []
    free = torch.ones(len(candidates), dtype=torch.bool, device=device)
    seen: list[Tensor] = []  # columns (C, R) by which the chosen images have lowered the candidates' covariance
    for _ in range(min(n, len(candidates))):
        shrunk = between.square() * (w / (1 + w * variance)).unsqueeze(2)
        before = 1 + w_target * of_targets
        share = (shrunk * (w_target / before).unsqueeze(1)).clamp(0, 1 - 1e-6)  # below one but for rounding
        gain = -torch.log1p(-share).sum(dim=(0, 2)) / (2 * max(1, len(target)))
        best = int(gain.masked_fill(~free, -math.inf).argmax())
        chosen.append(int(candidates[best]))
        information.append(float(gain[best]))
        free[best] = False
        # the filter's covariance update, for this image's observation
        column = logits.covariance(candidates, candidates[best : best + 1]).squeeze(2)
        for earlier in seen:
            column = column - earlier * earlier[:, best : best + 1]
        root = (w[:, best] / (1 + w[:, best] * variance[:, best])).sqrt().unsqueeze(1)  # (C, 1)
        seen.append(column * root)
        row = between[:, best] * root
        between = between - seen[-1].unsqueeze(2) * row.unsqueeze(1)
        variance = (variance - seen[-1].square()).clamp_min(0)
        of_targets = (of_targets - row.square()).clamp_min(0)
    return Chosen(chosen, information)
