"""The step that several parts measure: rank 2 on q, k, v of every block of both towers, and ten image-text pairs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.measure import Options
from kalmanclip.encoders import Activations, DualEncoder, LowRankConfig, load_backbone
from kalmanclip.filtering import KalmanFilter, Observation, Step, make_belief
from kalmanclip.observation import make_likelihood, observe

BATCH = 10


@dataclass(frozen=True)
class Setting:
    """One model with its batch.

    Attributes:
        encoder: the towers and their low-rank parameters.
        images: activations of `BATCH` images.
        texts: activations of their prompts.
        labels: (BATCH,), all different.
    """

    encoder: DualEncoder
    images: Activations
    texts: Activations
    labels: Tensor

    @classmethod
    def of(cls, model: str, options: Options, precision: str = "float32") -> Setting:
        """Random pictures, the same in every run."""
        device, batch = options.device, 2 if options.quick else BATCH
        encoder = DualEncoder(load_backbone(model, device, precision), LowRankConfig(placement="towers", rank=2))
        size = encoder.backbone.image_size
        pictures = torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(0))
        images = encoder.image.prefix(pictures.to(device, encoder.backbone.dtype))
        texts = encoder.text.prefix(encoder.tokenize([f"a photo of a number {i:04d}." for i in range(batch)]))
        return cls(encoder, images, texts, torch.arange(batch, device=device))

    def similarities(self) -> Tensor:
        """Of the pairs, (BATCH,), with gradients."""
        return (self.encoder.encode_images(self.images) * self.encoder.encode_texts(self.texts)).sum(dim=1)

    def adamw(self) -> Callable[[], None]:
        """A step of gradient descent on the same observation: the squared distance of the similarities from one."""
        optimizer = torch.optim.AdamW(self.encoder.parameters(), lr=1e-6)

        def step() -> None:
            (1 - self.similarities()).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()  # last, so that every step begins with the same memory

        return step

    def filter(self, variance: float = 1e-8) -> KalmanFilter:
        """The paper's filter over these parameters: a diagonal belief, its noise estimated on the way."""
        return KalmanFilter(make_belief("diagonal", self.encoder.theta, variance))

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The batch as plain tensors, for `observe`."""
        return self.labels, *self.images, *self.texts

    def observe(self, mu: Tensor, labels: Tensor, *activations: Tensor) -> Observation:
        """The paper's observation of a batch, the similarities of matched pairs. ``mu`` is the encoder's ``theta``."""
        cut = len(self.images)
        return observe(self.encoder, make_likelihood("cosine"), activations[:cut], labels, activations[cut:])

    def kalman(self) -> Callable[[], Step]:
        """A step of the Kalman filter."""
        kalman_filter = self.filter()

        def step() -> Step:
            record = kalman_filter.step(lambda mu: self.observe(mu, *self.inputs))
            assert not record.skipped, record.reason
            return record

        return step
