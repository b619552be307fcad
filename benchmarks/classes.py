"""How the cost of a step grows with the number of classes, from 10 to 1,000.

- *paper*: the filter sees the texts of the batch and no others. Once with ten different classes in every batch, and
  once with classes drawn at random: of ten classes a batch of ten has six or seven, of a thousand nearly always ten.
- *default*: class residuals on frozen embeddings. A step is the image tower on ten images in all their crops, and five
  steps of the update; all texts were encoded once, before. *To the mode* is the same with all steps that `partial_fit`
  makes for ten images after ten others, and for what it keeps of those.
- *CLIP-LoRA* encodes all prompts again in every step, forward and backward.

All class names have the same length, so that nothing but their number grows.

    python -m benchmarks.classes [--models tiny] [--rounds 15] [--device cpu]
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.measure import Options, Row, main, row, seconds
from kalmanclip.encoders import Backbone, DualEncoder, load_backbone
from kalmanclip.filtering import Observation, softmax_update
from kalmanclip.methods import ClassResiduals, Kalman, preset
from kalmanclip.methods.baselines.clip_lora import CLIPLoRAConfig
from kalmanclip.methods.residuals import TYPICAL_STD
from kalmanclip.observation import make_likelihood, observe

BATCH = 10
FEW, MANY = 10, (100, 1000)
FLAT, CACHED = 1.1, 1.5
DRAWS = 3  # random batches in one timing
TEMPLATES = ("a photo of a {}.",)


def rows(options: Options) -> list[Row]:
    """The cost with many classes over that with ten, for each way to learn."""
    lines = []
    many = (20,) if options.quick else MANY
    for model in options.backbones(["tiny"], ["ViT-B-32:random"]):
        backbone = load_backbone(model, options.device)
        for name, (make, bound, share) in CONTESTANTS.items():
            fewer = replace(options, rounds=max(1, options.rounds // share))
            batch = 2 if options.quick else BATCH
            taken = seconds({str(C): make(backbone, C, batch) for C in (FEW, *many)}, fewer)
            note = f"{FEW} classes: {1000 * taken[str(FEW)].median():.1f} ms"
            for C in many:
                what = f"{model}, {name}: {C:,} classes / {FEW}"
                lines.append(row("classes", what, taken[str(C)] / taken[str(FEW)], bound=bound, note=note))
    return lines


def names(C: int) -> list[str]:
    """Class names that are read as equally many tokens, whatever C."""
    return [f"number {i:04d}" for i in range(C)]


def _pictures(backbone: Backbone, count: int) -> Tensor:
    size = backbone.image_size
    pictures = torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(0))
    return pictures.to(backbone.device, backbone.dtype)


def _different(backbone: Backbone, C: int, batch: int) -> Tensor:
    """Labels (batch,), no two alike."""
    return torch.arange(batch, device=backbone.device) * (C // batch)


def _paper(backbone: Backbone, C: int, batches: list[Tensor]) -> Callable[[], None]:
    method = Kalman(backbone, preset("paper"))
    method.set_classes(names(C), TEMPLATES)
    images = method.encoder.image.prefix(_pictures(backbone, len(batches[0])))
    kalman_filter, likelihood = method.begin(1e-8), make_likelihood(method.config.observation)

    def seen(labels: Tensor, mu: Tensor) -> Observation:
        return observe(method.encoder, likelihood, images, labels, method.texts)

    def steps() -> None:
        for labels in batches:
            kalman_filter.step(partial(seen, labels))

    return steps


def paper_different(backbone: Backbone, C: int, batch: int) -> Callable[[], None]:
    """A step with ten different classes."""
    return _paper(backbone, C, [_different(backbone, C, batch)])


def paper_random(backbone: Backbone, C: int, batch: int) -> Callable[[], None]:
    """Steps with classes drawn at random."""
    generator = torch.Generator().manual_seed(1)
    batches = [torch.randint(C, (batch,), generator=generator) for _ in range(DRAWS)]
    return _paper(backbone, C, [labels.to(backbone.device) for labels in batches])


def _residuals(backbone: Backbone, C: int, batch: int) -> tuple[ClassResiduals, Callable[[], Tensor], Tensor]:
    """The default, after ten images; how it reads ten more, (batch, 1 + crops, d); and their labels."""
    config = preset("default")
    # the prior is chosen once, before the steps; here it is given
    method = ClassResiduals(backbone, replace(config, prior_std=TYPICAL_STD))
    method.set_classes(names(C), TEMPLATES)
    crops = 1 + config.crops
    pictures = _pictures(backbone, batch * crops)
    labels = _different(backbone, C, batch)

    @torch.no_grad()
    def read() -> Tensor:
        f = method.encoder.encode_images(method.encoder.image.prefix(pictures))
        return f.unflatten(0, (batch, crops))

    method.residuals.learn(read(), labels)
    return method, read, labels


def residuals_pass(backbone: Backbone, C: int, batch: int) -> Callable[[], None]:
    """The image tower, and the first five steps of the softmax update."""
    method, read, labels = _residuals(backbone, C, batch)
    classes = method.residuals
    assert classes.T is not None
    assert classes.root is not None
    assert classes.belief is not None
    prior, root, T, scale, alpha = classes.belief, classes.root, classes.T, classes.scale, classes.config.alpha

    @torch.no_grad()
    def step() -> None:
        f = read().flatten(0, 1)
        y = labels.repeat_interleave(len(f) // batch)
        weights = f.new_full((len(f),), batch / len(f))
        softmax_update(prior, f @ root, scale * f @ T.mT, y, weights, scale, alpha, tolerance=math.inf)

    return step


def residuals_learned(backbone: Backbone, C: int, batch: int) -> Callable[[], None]:
    """The image tower, and the update down to the mode."""
    method, read, labels = _residuals(backbone, C, batch)
    classes = method.residuals
    kept = classes.root, classes.belief, classes.statistics

    @torch.no_grad()
    def step() -> None:
        classes.root, classes.belief, classes.statistics = kept
        classes.learn(read(), labels)

    return step


def clip_lora(backbone: Backbone, C: int, batch: int) -> Callable[[], None]:
    """A step of CLIP-LoRA: cross-entropy over all prompts, with the same batch of ten."""
    encoder = DualEncoder(backbone, CLIPLoRAConfig().low_rank)
    images = encoder.image.prefix(_pictures(backbone, batch))
    texts = encoder.text.prefix(encoder.tokenize([TEMPLATES[0].format(name) for name in names(C)]))
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=1e-6)
    labels = _different(backbone, C, batch)

    def step() -> None:
        F.cross_entropy(backbone.logit_scale * encoder(images, texts), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


CONTESTANTS: dict[str, tuple[Callable[[Backbone, int, int], Callable[[], None]], float | None, int]] = {
    "paper, all classes of a batch different": (paper_different, FLAT, 1),
    "paper, classes at random": (paper_random, None, 1),
    "default, five steps": (residuals_pass, CACHED, 1),
    "default, partial_fit to the mode": (residuals_learned, None, 3),
    "CLIP-LoRA": (clip_lora, None, 5),
}
"""How each is made, its bound, and of how many rounds it takes part in one: some take their time."""


if __name__ == "__main__":
    main(rows, __doc__)
