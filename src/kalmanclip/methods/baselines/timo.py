"""TIMO and TIMO-S: images choose among the prompts, prompts join the images of a Gaussian discriminant classifier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kalmanclip.data import FewShotTask
from kalmanclip.encoders.features import Progress, text_weights
from kalmanclip.encoders.preprocess import RandomCropConfig
from kalmanclip.encoders.towers import unit
from kalmanclip.errors import ConfigError
from kalmanclip.methods.base import check_positive
from kalmanclip.methods.baselines.base import FeatureMethod, class_means, hits
from kalmanclip.methods.baselines.gda import gaussian_discriminant


@dataclass(frozen=True)
class TIMOConfig(RandomCropConfig):
    """Options of TIMO, and of the crops that are its samples (`RandomCropConfig`).

    Attributes:
        alpha: weight of the text weights beside the discriminant. Used without validation images, for which nothing is
            published; with this value the two are mixed as GDA's published weight does for CLIP's temperature.
        alpha_grid: the values tried on the validation images, where there are some; ties go to the first.
        gamma: how strongly images choose among the prompts; published: 50, Flowers 100, ImageNet 1. Of no effect
            with a single template.
    """

    alpha: float = 1000.0
    alpha_grid: tuple[float, ...] = (1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0, 1e3, 1e4)
    gamma: float = 50.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(alpha=self.alpha, gamma=self.gamma, alpha_grid=self.alpha_grid)
        if not self.alpha_grid:
            raise ConfigError("alpha_grid must not be empty.")


class TIMO(FeatureMethod):
    """Logits ``alpha f T^T + f W^T + b``: GDA whose samples include prompts, and prompts weighed by the images.

    - Image-guided text: ``T_c = sum_p softmax_p(gamma s_c / |s_c|) t_cp``, normalised, where ``s_cp`` is the similarity
      of prompt p of class c to the mean image of that class.
    - Text-guided image: the prompts of a class, scaled by ``s_cp``, join its images before mean and covariance.

    The published prompts are descriptions by a language model. Here they are the task's templates filled with the class
    names: one template is one prompt per class, and more make the first part do something.

    Attributes:
        T: the guided text weights (C, d).
        W: (C, d).
        b: (C,).
        alpha: the weight that was used.
        gamma: the sharpness that was used.
        prompts: how many prompts of each class joined its images; past all of them they come a second time.
    """

    Config = TIMOConfig
    config: TIMOConfig
    W: Tensor
    b: Tensor
    prompts: int

    def learn(self, task: FewShotTask, progress: Progress) -> None:
        """Take means and covariance of images and prompts; searches are made on the validation images only."""
        c = self.config
        labels = self.labels(task)
        crops = self.crops(task, c, progress)
        means = unit(class_means(unit(crops.mean(dim=1)), labels, task.class_names))
        t = torch.stack([text_weights(self.backbone, task.class_names, [one]) for one in task.templates], dim=1)
        s = torch.einsum("cpd, cd -> cp", t, means)
        self.alpha, self.gamma = c.alpha, c.gamma
        held_out = self.validation(task, progress)
        self.guide(t, s, held_out)
        f, y, _ = c.as_samples(crops, labels)
        if held_out is None:
            self.prompts = t.shape[1]
            self.W, self.b = discriminant(*joined(f, y, t, s, self.prompts))
        else:
            self.search(f, y, t, s, *held_out)

    def guide(self, t: Tensor, s: Tensor, held_out: tuple[Tensor, Tensor] | None) -> None:
        """Set ``T`` from prompts (C, P, d) and their similarities (C, P) to the images; TIMO chooses nothing."""
        self.T = guided_text(t, s, self.gamma)

    def counts(self, prompts: int) -> Sequence[int]:
        """Return how many prompts may join the images, out of P: all of them."""
        return [prompts]

    def search(self, f: Tensor, y: Tensor, t: Tensor, s: Tensor, held_f: Tensor, held_y: Tensor) -> None:
        """Set the classifier with the most validation images right; of equal ones the first. Names as in `joined`."""
        most = -1
        clip = held_f @ self.T.mT
        for count in self.counts(t.shape[1]):
            W, b = discriminant(*joined(f, y, t, s, count))
            beside = held_f @ W.mT + b
            for alpha in self.config.alpha_grid:
                right = hits(alpha * clip + beside, held_y)
                if right > most:
                    most = right
                    self.alpha, self.prompts, self.W, self.b = alpha, count, W, b

    def score(self, f: Tensor) -> Tensor:
        """Turn features (N, d) into logits (N, C)."""
        return self.alpha * f @ self.T.mT + f @ self.W.mT + self.b


@dataclass(frozen=True)
class TIMOSConfig(TIMOConfig):
    """Options of TIMO-S.

    Attributes:
        gamma_grid: the values tried on the validation images, by the text weights alone; ties go to the first.
        prompt_counts: how many numbers of prompts are tried, evenly from one to twice as many as there are.
    """

    gamma_grid: tuple[float, ...] = tuple(float(gamma) for gamma in range(5, 101, 5))
    prompt_counts: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(gamma_grid=self.gamma_grid)
        if self.prompt_counts < 2 or not self.gamma_grid:
            raise ConfigError("prompt_counts must be 2 or more, and gamma_grid must not be empty.")


class TIMOS(TIMO):
    """TIMO that searches ``gamma``, then ``alpha`` and the number of prompts, on the validation images.

    Without any it is TIMO.
    """

    Config = TIMOSConfig
    config: TIMOSConfig

    def guide(self, t: Tensor, s: Tensor, held_out: tuple[Tensor, Tensor] | None) -> None:
        """Set ``T`` and ``gamma`` from prompts (C, P, d) and their similarities (C, P) to the images."""
        if held_out is not None:
            f, y = held_out
            self.gamma = max(self.config.gamma_grid, key=lambda gamma: hits(f @ guided_text(t, s, gamma).mT, y))
        super().guide(t, s, held_out)

    def counts(self, prompts: int) -> Sequence[int]:
        """Return how many prompts may join the images, out of P."""
        last = self.config.prompt_counts - 1
        return sorted({1 + i * (2 * prompts - 1) // last for i in range(last + 1)})


def guided_text(t: Tensor, s: Tensor, gamma: float) -> Tensor:
    """Return text weights (C, d) out of prompts (C, P, d), each weighed by its similarity (C, P) to the images."""
    weights = (gamma * s / s.norm(dim=1, keepdim=True)).softmax(dim=1)
    return unit(torch.einsum("cp, cpd -> cd", weights, t))


def joined(f: Tensor, y: Tensor, t: Tensor, s: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return samples and labels: the ``count`` most similar prompts of each class, times similarity, then the images.

    Of images (N, d) with labels (N,), prompts (C, P, d) and similarities (C, P). Past P the prompts come a second time.
    """
    order = s.argsort(dim=1, descending=True, stable=True).repeat(1, 2)[:, :count]
    scaled = (t * s.unsqueeze(-1)).gather(1, order.unsqueeze(-1).expand(-1, -1, t.shape[-1]))
    own = torch.arange(len(t), device=y.device).repeat_interleave(count)
    return torch.cat([scaled.flatten(0, 1), f]), torch.cat([own, y])


def discriminant(f: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return GDA's ``W`` (C, d) and ``b`` (C,) of samples (N, d) and labels (N,), some of every class."""
    return gaussian_discriminant(f, y, [str(c) for c in range(int(y.max()) + 1)])
