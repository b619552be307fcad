"""How a batch becomes ``(y, y_hat, H)``: observations behind one contract (`Likelihood`).

| name | output per image | target | negatives |
| --- | --- | --- | --- |
| ``cosine`` | similarity with its own text (the paper to the letter) | 1 | none |
| ``contrastive`` | probability of its own text among the batch's | 1 | the batch's other texts |
| ``symmetric`` | that, and its probability given its text (Eq. 1) | 1 | the batch's other texts and images |
| ``classes`` | probability of its own class | 1 | all other classes |
| ``pairwise`` | similarities with the batch's texts (the paper's ``flatten``) | identity | the batch's other texts |
| ``log_likelihood`` | log-probability of its own class | 0 | all other classes |
| ``deviance`` | root of twice the negative log-probability of its own class; ``R = 1`` | 0 | all other classes |
| ``categorical`` | probabilities of all classes, whitened; ``R`` from the model | one-hot | all other classes |
| ``bounded`` | the same with bounded curvature, for the ``top`` most similar classes | one-hot | the nearest classes |
"""

from typing import Any

from kalmanclip.errors import ConfigError
from kalmanclip.observation.categorical import BoundedCategorical, Categorical
from kalmanclip.observation.likelihood import Likelihood, Terms
from kalmanclip.observation.matched import Classes, Contrastive, Cosine, Deviance, LogLikelihood, Pairwise
from kalmanclip.observation.observe import observe
from kalmanclip.observation.symmetric import Symmetric
from kalmanclip.plugins import Plugins, subclass_of

LIKELIHOODS: dict[str, type[Likelihood]] = {
    "cosine": Cosine,
    "contrastive": Contrastive,
    "symmetric": Symmetric,
    "classes": Classes,
    "pairwise": Pairwise,
    "log_likelihood": LogLikelihood,
    "deviance": Deviance,
    "categorical": Categorical,
    "bounded": BoundedCategorical,
}


PLUGINS = Plugins("kalmanclip.observations", "observation", subclass_of(Likelihood))
"""Observations of other packages."""


def make_likelihood(name: str, **options: Any) -> Likelihood:
    """Return the observation of that name, with its options: ``top`` of ``bounded``, ``distinct`` of ``symmetric``.

    The name may be that of a plug-in, or ``module:Class`` (see `kalmanclip.plugins`).
    """
    likelihood: type[Likelihood] = PLUGINS.get(name, LIKELIHOODS)
    try:
        return likelihood(**options)
    except TypeError as problem:
        raise ConfigError(f"The observation {name!r} does not take these options: {problem}.") from problem


__all__ = [
    "LIKELIHOODS",
    "PLUGINS",
    "BoundedCategorical",
    "Categorical",
    "Classes",
    "Contrastive",
    "Cosine",
    "Deviance",
    "Likelihood",
    "LogLikelihood",
    "Pairwise",
    "Symmetric",
    "Terms",
    "make_likelihood",
    "observe",
]
