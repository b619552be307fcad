"""Forward-mode derivatives of similarities along a few directions of the low-rank parameters.

A similarity is ``f(theta) . t_c(theta)``, an image's embedding times a text's. Along a direction ``delta`` it moves by

    (J_f delta) . t_c  +  f . (J_t delta)_c :

the image's part takes one forward-mode product per image and direction, the text's part one for all images together.
No Jacobian is formed. Directions that are drawn from ``N(0, Sigma)`` make the movements draws from
``N(0, J Sigma J^T)``, whatever the structure of ``Sigma``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, jvp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from kalmanclip.encoders.dual import DualEncoder, averaged_prompts
from kalmanclip.encoders.low_rank import named_views
from kalmanclip.encoders.towers import Activations, Tower


class ClassifierTangents:
    """How similarities move along directions of ``theta``.

    Args:
        encoder: the model at its current ``theta``.
        texts: activations of C * templates prompts.
        templates: prompts per class.
        directions: (K, n).

    Attributes:
        W: the texts' embeddings (C, d).
        dW: how they move along each direction, (K, C, d).
    """

    def __init__(self, encoder: DualEncoder, texts: Activations, templates: int, directions: Tensor) -> None:
        self.encoder = encoder
        self._image, text = directions.split([encoder.n_image, encoder.n_text], dim=1)

        def encode(views: dict[str, Tensor]) -> Tensor:
            return averaged_prompts(functional_call(encoder.text, views, texts), templates)

        self.W, self.dW = _push(encoder.text, encode, encoder.theta[encoder.n_image :], text)

    def __call__(self, images: Activations) -> tuple[Tensor, Tensor]:
        """Return embeddings (B, d), whose products with `W` are the similarities, and how those move, (B, C, K)."""
        tower, n = self.encoder.image, self.encoder.n_image

        def encode(views: dict[str, Tensor]) -> Tensor:
            return functional_call(tower, views, images)

        f, df = _push(tower, encode, self.encoder.theta[:n], self._image)
        moved = torch.einsum("kbd,cd->bck", df, self.W) + torch.einsum("bd,kcd->bck", f, self.dW)
        return f, moved


def _push(tower: Tower, encode: Any, theta: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
    """Return embeddings (N, d) and their derivatives (K, N, d) along directions (K, n) of a tower's parameters (n,)."""
    if not len(theta):  # a frozen tower stays where it is
        f = encode({})
        return f, f.new_zeros(len(directions), *f.shape)
    # only the plain attention has forward-mode derivatives
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        here = named_views(tower, theta)

        def along(direction: Tensor) -> Any:
            return jvp(encode, (here,), (named_views(tower, direction),))

        push: Any = vmap(along, out_dims=(None, 0))  # type: ignore[arg-type]
        f, df = push(directions)
    return f, df
