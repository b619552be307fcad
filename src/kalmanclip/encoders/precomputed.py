"""A backbone made of text features alone: images come as embeddings, and no model is loaded.

`precomputed` makes one of the embeddings of the classes' texts. Whatever learns from frozen embeddings then works as
with the model that the features come from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image
from torch import Tensor, nn

from kalmanclip.data.prompts import DEFAULT_TEMPLATES, fill
from kalmanclip.encoders.tower import unit
from kalmanclip.errors import DataError, ImageError, ModelError

if TYPE_CHECKING:
    from kalmanclip.encoders.backbone import Backbone


class TextTable(nn.Module):
    """A model whose texts are rows of a table.

    Args:
        features: (P, d), unit length.
        logit_scale: 1 / tau.

    Attributes:
        visual: says in which precision embeddings are; there is no image tower.
    """

    features: Tensor

    def __init__(self, features: Tensor, logit_scale: float) -> None:
        super().__init__()
        self.register_buffer("features", features)
        self.logit_scale = nn.Parameter(features.new_tensor(math.log(logit_scale)), requires_grad=False)
        visual: Any = nn.Module()
        visual.image_size = 1  # of no image: they are refused
        visual.register_parameter("dtype", nn.Parameter(features.new_zeros(()), requires_grad=False))
        self.visual = visual

    def encode_text(self, tokens: Tensor) -> Tensor:
        """Return the rows (N, d) that tokens (N, 1) name."""
        return self.features[tokens[:, 0]]

    def encode_image(self, images: Tensor) -> Tensor:
        """Refuse images."""
        raise ModelError(_NO_IMAGES)


_NO_IMAGES = "This backbone is made of text features alone, without an image tower: give the embeddings of images."


def precomputed(text_features: Any, class_names: Sequence[str], logit_scale: float = 100.0) -> Backbone:
    """Return a backbone for embeddings that were computed elsewhere; images are given as embeddings (N, d).

    >>> backbone = precomputed(text_features, ["cat", "dog"])
    >>> clf = KalmanCLIP(backbone).fit(image_features, labels)

    Args:
        text_features: one row for each class (C, d), of any length; averaged over prompts already, if there were
            several.
        class_names: C different names. Classes may be left out of a fit, and added later.
        logit_scale: 1 / tau of the model that the features come from.

    Raises:
        DataError: names and rows do not fit, or a row is zero or not finite.
    """
    from kalmanclip.encoders.backbone import Backbone

    features = torch.as_tensor(text_features).detach()
    if features.ndim != 2 or len(features) != len(class_names) or not features.is_floating_point():
        raise DataError(
            f"The text features are of type {features.dtype} and shape {tuple(features.shape)}; with "
            f"{len(class_names)} class names they must be floats ({len(class_names)}, d)."
        )
    if not (logit_scale > 0 and math.isfinite(logit_scale)):
        raise ModelError(f"logit_scale must be positive and finite, not {logit_scale}; CLIP's is 100.")
    norms = features.double().norm(dim=1)
    if not bool(((norms > 0) & norms.isfinite()).all()):
        raise DataError("A row of the text features is zero, infinite or not a number.")
    rows: dict[str, int] = {}
    for row, name in enumerate(class_names):
        for prompt in (name, *fill(DEFAULT_TEMPLATES, name)):
            if rows.setdefault(prompt, row) != row:
                raise DataError(f"The class name {name!r} occurs twice; give each class one row of text features.")

    def tokenize(prompts: list[str]) -> Tensor:
        for prompt in prompts:
            if prompt not in rows:
                raise DataError(
                    f"There is no text feature for {prompt!r}. Use the default templates, or templates=['{{}}'], and "
                    f"the class names that the features were given with: {', '.join(map(str, class_names[:10]))}."
                )
        return torch.tensor([[rows[prompt]] for prompt in prompts])

    def preprocess(image: Image.Image) -> Tensor:
        raise ImageError(_NO_IMAGES)

    model = TextTable(unit(features), float(logit_scale)).eval()
    return Backbone("in-memory:precomputed", model, preprocess, tokenize)
