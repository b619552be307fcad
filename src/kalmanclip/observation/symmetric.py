"""Both directions of the contrastive loss (Eq. 1): an image's own text, and a text's own image, target one."""

import math

import torch
from torch import Tensor

from kalmanclip.errors import ConfigError
from kalmanclip.observation.likelihood import Likelihood, Terms
from kalmanclip.observation.matched import Contrastive


class Symmetric(Likelihood):
    """The two probabilities of each pair in Eq. 1, whose logarithms the CLIP loss adds up, ``y = 1``.

    With ``L_ij = S_C(I_i, T_j) / tau`` over the B pairs of a batch, output (i, 0) is image i's probability of its text,
    ``softmax_j(L_ij)`` at j = i, and output (i, 1) is text i's probability of its image, ``softmax_i(L_ij)`` at i = j.
    The second depends on all images of the batch, so its Jacobian costs as many backward passes per tower as there are
    images and texts (see `kalmanclip.encoders.jacobian`).

    Args:
        distinct: what happens where images share a text. False, as Eq. 1 prints it: every pair counts, so images of
            one class are each other's negatives, and p of them cannot have probabilities above 1 / p. True: each text
            counts once, as in `Contrastive`, and a text's other images are no negatives of it.
    """

    of_batch = True
    by_row = False
    texts = Contrastive.texts

    def __init__(self, distinct: bool = False) -> None:
        if not isinstance(distinct, bool):
            raise ConfigError(f"distinct must be True or False, not {distinct!r}.")
        self.distinct = distinct

    def terms(self, S: Tensor, column: Tensor, scale: float) -> Terms:
        """Return two probabilities each: ``d p_i / d L_ij = p_i (1[i = j] - p_ij)`` along its row, or its column."""
        B, C = S.shape
        L = scale * S[:, column]  # (B, B): image i, text of pair j; texts that only fill up a shape are left out
        rows = columns = L
        if self.distinct:
            same = column.unsqueeze(1) == column
            other = same & ~torch.eye(B, dtype=torch.bool, device=S.device)
            repeated = same.tril(-1).any(dim=1) & ~torch.eye(B, dtype=torch.bool, device=S.device)
            rows = L.masked_fill(other | repeated, -math.inf)
            columns = L.masked_fill(other, -math.inf)
        to_text, to_image = torch.softmax(rows, dim=1), torch.softmax(columns, dim=0).mT  # (B, B), pairs first
        p = torch.stack([to_text.diagonal(), to_image.diagonal()], dim=1)  # (B, 2)
        identity = torch.eye(B, dtype=S.dtype, device=S.device)
        along = scale * p.unsqueeze(2) * (identity.unsqueeze(1) - torch.stack([to_text, to_image], dim=1))  # (B, 2, B)
        own = torch.nn.functional.one_hot(column, C).to(S)  # (B, C)
        # output (i, 0) moves with S[i, own text of j], output (i, 1) with S[j, own text of i]
        G = torch.stack(
            [identity.unsqueeze(2) * (along[:, 0] @ own).unsqueeze(1), along[:, 1].unsqueeze(2) * own.unsqueeze(1)],
            dim=1,
        )
        return Terms(torch.ones_like(p), p, G)
