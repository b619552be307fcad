"""Images of which only the embedding is there: rows of a matrix of features in the place of pictures."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from kalmanclip.data.images import ImageSource, LazyImage, image_identity
from kalmanclip.errors import DataError, ImageError


class Embedding(LazyImage):
    """The embedding of an image, of any length, in the place of the image.

    Args:
        values: (d,), finite and not all zero.
    """

    names_itself = False

    def __init__(self, values: Any) -> None:
        values = values.copy() if isinstance(values, np.ndarray) and not values.flags.writeable else values
        self.values: Tensor = torch.as_tensor(values).detach()
        if self.values.ndim != 1 or not self.values.is_floating_point():
            raise DataError(f"An embedding is a vector of floats, not {self.values.dtype} of shape {[*values.shape]}.")
        norm = float(self.values.double().norm())
        if not 0 < norm < float("inf"):  # so that NaN fails, too
            raise DataError("An embedding is zero, infinite or not a number; leave such rows out.")

    @property
    def identity(self) -> str:
        """A hash of the values."""
        return image_identity(self.values)

    def content(self) -> str:
        """Return a hash of the values: the same embedding is the same image."""
        return f"embedding {self.identity}"

    def load(self, max_pixels: int) -> Image.Image:
        """Refuse: there are no pixels."""
        raise ImageError(
            "only its embedding is there, and pixels are needed; give the images, or use the preset 'residuals' "
            "or 'head', which learn from embeddings"
        )


def is_vector(image: Any) -> bool:
    """Return whether an array or a tensor is a vector of floats, which no image is."""
    if isinstance(image, Tensor):
        return image.ndim == 1 and image.is_floating_point()
    return isinstance(image, np.ndarray) and image.ndim == 1 and image.dtype.kind == "f"


def stack_embeddings(sources: Sequence[ImageSource]) -> Tensor | None:
    """Return the embeddings (N, d) that stand for N images; None where there are images.

    Raises:
        DataError: some are images and some embeddings, or the embeddings have different lengths.
    """
    rows = [source.values for source in sources if isinstance(source, Embedding)]
    if not rows:
        return None
    lengths = {len(row) for row in rows}
    if len(rows) < len(sources) or len(lengths) > 1:
        what = "some are images" if len(rows) < len(sources) else f"their lengths are {sorted(lengths)}"
        raise DataError(f"Embeddings in the place of images must be so for all, and of one length: {what}.")
    return torch.stack(rows)
