"""What a fit has found, in a few lines for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kalmanclip.cli.screen import percent

if TYPE_CHECKING:
    from kalmanclip.methods import Classifier


def about(method: Classifier) -> list[tuple[str, str]]:
    """Facts about the belief, as `screen.facts` takes them."""
    found: list[tuple[str, str]] = []
    kalman: Any = getattr(method, "kalman", method)
    if getattr(kalman, "filter", None) is not None:
        found.append(("steps", f"{kalman.filter.steps}, of which {kalman.filter.skipped} skipped"))
        damping = [step.regulation for step in method.history if not step.skipped]
        if damping:
            mean = sum(damping) / len(damping)
            found.append(("mean lambda", f"{mean:.3f} (1: no batch surprised the filter)"))
    classes: Any = getattr(method, "residuals", None)
    if classes is not None and classes.belief is not None:
        assert classes.prior_std is not None
        chosen = "with one image per class there is nothing to choose it by"
        if classes.held_out_log_likelihood:
            chosen = f"chosen among {len(classes.held_out_log_likelihood)} on held-out training images"
        elif classes.config.prior_std is not None:
            chosen = "as given"
        found.append(("prior std", f"{classes.prior_std:.2f} of a similarity ({chosen})"))
        if classes.held_out_log_likelihood:
            scores = classes.held_out_log_likelihood
            best = scores[min(scores, key=lambda std: abs(std - (classes.prior_std or 0)))]
            found.append(("held-out log-likelihood", f"{best:.2f} on average"))
        found.append(("text's share", f"{percent(float(classes.belief.gain))} of what it is zero-shot"))
    return found
