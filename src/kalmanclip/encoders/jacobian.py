"""Exact Jacobians of similarities with respect to the low-rank parameters, in as few backward passes as possible.

Everything the filter observes is a function of the similarity matrix ``S`` (B images, C texts), and as a rule every
output belongs to one image: output (i, k) depends on row i of ``S`` alone. With ``G[i, k, c] = d y_hat[i, k] / d S[i,
c]``:

- image tower: output (i, k) reaches only image i, so one backward pass per k yields a row for every image;
- text tower, *paired* (text i belongs to image i and to nothing else): one backward pass for all rows;
- text tower, shared texts: output (i, k) reaches all texts. One backward pass per image, summed over the texts when
  there is one output per image, kept per text and recombined with ``G`` when there are several.

Matched pairs therefore cost one backward pass per tower, as much as one step of gradient descent.

Outputs that depend on all rows, ``G[i, k, j, c] = d y_hat[i, k] / d S[j, c]``, are sums over all similarities of
``G d S[j, c] / d theta``: C backward passes through the image tower yield d S for every image and one text each, B
through the text tower for every text and one image each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from kalmanclip.encoders.dual import DualEncoder
from kalmanclip.encoders.towers import Activations, Tower


@contextmanager
def _recording(tower: Tower) -> Iterator[None]:
    """Prepare the tower's forward pass within it to write derivatives into its sink."""
    tower.sink.recording = True
    try:
        yield
    finally:
        tower.sink.recording = False
        tower.sink.target = None


def _pull(embedding: Tensor, cotangent: Tensor, tower: Tower, target: Tensor, last: bool) -> None:
    """Make one backward pass from the embeddings (N, d) into ``target``, (N, n) per sample or (n,) summed."""
    tower.sink.target = target
    # Naming the parameters makes autograd visit every low-rank layer; their gradients come back as None because the
    # layers have written the per-sample ones into the sink.
    parameters = [layer.B for layer in tower.low_rank_layers()]
    torch.autograd.grad(embedding, parameters, cotangent, retain_graph=not last, allow_unused=True)


Outputs = Callable[[Tensor], tuple[Tensor, Tensor]]
"""From embeddings (B, d) to one output for each image (B,), which depends on its own alone, and its derivatives with
respect to that (B, d)."""


def image_rows(encoder: DualEncoder, images: Activations, outputs: Outputs) -> tuple[Tensor, Tensor, Tensor]:
    """Return outputs of the image tower, their Jacobian in one backward pass, and the embeddings.

    Args:
        encoder: the model at its current ``theta``; its text tower is left alone.
        images: activations of B images.
        outputs: what is observed of the embeddings.

    Returns:
        The outputs (B,), the Jacobian (B, n_image) and the embeddings (B, d), without derivatives.
    """
    with torch.enable_grad(), _recording(encoder.image):
        f = encoder.encode_images(images)
    seen = f.detach()
    y_hat, slopes = outputs(seen)
    H = seen.new_empty(len(seen), encoder.n_image)
    with _recording(encoder.image):
        _pull(f, slopes, encoder.image, H, last=True)
    return y_hat, H, seen


class SimilarityJacobian:
    """The similarities of a batch, ready to be differentiated.

    Runs both towers forward once; `rows` then turns ``G`` into ``H``.

    Args:
        encoder: the model at its current ``theta``.
        images: activations of B images.
        texts: activations of C * templates prompts; with ``paired``, of B prompts, the i-th for image i.
        templates: prompts per class.
        paired: whether text i belongs to image i alone.

    Attributes:
        S: similarities (B, C); with ``paired`` only those of the pairs, (B, 1).
    """

    def __init__(
        self, encoder: DualEncoder, images: Activations, texts: Activations, templates: int = 1, paired: bool = False
    ) -> None:
        self.encoder, self.templates, self.paired = encoder, templates, paired
        with torch.enable_grad():
            with _recording(encoder.image):
                self._I = encoder.encode_images(images)
            with _recording(encoder.text):
                self._T = encoder.encode_texts(texts, templates)
        self.I, self.T = self._I.detach(), self._T.detach()
        self.S = (self.I * self.T).sum(dim=-1, keepdim=True) if paired else self.I @ self.T.mT

    def rows(self, G: Tensor) -> Tensor:
        """Return ``H`` (B * K, n) from ``G``, the derivative of the outputs with respect to ``S``.

        To be called once: the backward passes consume what the forward pass has kept.

        Args:
            G: (B, K, C), with respect to an output's own row; or (B, K, B, C), with respect to all rows.
        """
        if G.dim() == 4:
            return self._rows_of_all(G.flatten(0, 1))
        B, K, _ = G.shape
        H = self.I.new_empty(B, K, self.encoder.n)
        n_image = self.encoder.n_image
        if n_image:
            self._image_rows(G, H[..., :n_image])
        if self.encoder.n_text:
            self._text_rows(G, H[..., n_image:])
        return H.flatten(0, 1)

    def _rows_of_all(self, G: Tensor) -> Tensor:
        """Return ``H`` (M, n) from derivatives (M, B, C) of M outputs with respect to all similarities."""
        assert not self.paired, "paired texts go with outputs of their own image alone"
        M, B, C = G.shape
        H = self.I.new_zeros(M, self.encoder.n)
        n_image, n_text = self.encoder.n_image, self.encoder.n_text
        if n_image:
            per_image = self.I.new_empty(B, n_image)
            for c in range(C):  # d S[j, c] / d theta for all images j
                _pull(self._I, self.T[c].expand(B, -1), self.encoder.image, per_image, last=c == C - 1)
                H[:, :n_image].addmm_(G[:, :, c], per_image)
        if n_text:
            per_text = self.I.new_empty(C, n_text)
            for j in range(B):  # d S[j, c] / d theta for all texts c
                self._text_pull(self.I[j].expand(C, -1), per_text, last=j == B - 1)
                H[:, n_image:].addmm_(G[:, j], per_text)
        return H

    def _image_rows(self, G: Tensor, H: Tensor) -> None:
        cotangents = G * self.T.unsqueeze(1) if self.paired else G @ self.T  # (B, K, d)
        K = G.shape[1]
        for k in range(K):
            _pull(self._I, cotangents[:, k], self.encoder.image, H[:, k], last=k == K - 1)

    def _text_rows(self, G: Tensor, H: Tensor) -> None:
        B, K, C = G.shape
        tower = self.encoder.text
        if self.paired:
            assert K == 1, "paired texts go with one output per image"
            self._text_pull(G[:, 0] * self.I, H[:, 0], last=True)
            return
        if K == 1:
            for i in range(B):
                cotangent = G[i, 0].unsqueeze(-1) * self.I[i]  # (C, d)
                _pull(self._T, cotangent, tower, H[i, 0], last=i == B - 1)
            return
        per_text = H.new_empty(C, H.shape[-1])
        for i in range(B):
            self._text_pull(self.I[i].expand(C, -1), per_text, last=i == B - 1)
            torch.mm(G[i], per_text, out=H[i])

    def _text_pull(self, cotangent: Tensor, rows: Tensor, last: bool) -> None:
        """Fill in rows by class (C, n_text): prompts of one class are added up."""
        tower, P = self.encoder.text, self.templates
        if P == 1:
            _pull(self._T, cotangent, tower, rows, last)
            return
        per_prompt = rows.new_empty(rows.shape[0] * P, rows.shape[1])
        _pull(self._T, cotangent, tower, per_prompt, last)
        torch.sum(per_prompt.unflatten(0, (-1, P)), dim=1, out=rows)
