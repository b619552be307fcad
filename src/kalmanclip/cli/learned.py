"""What a fit has found, in a few lines for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kalmanclip.cli.screen import percent

if TYPE_CHECKING:
    from kalmanclip.methods import Kalman


def about(method: Kalman) -> list[tuple[str, str]]:
    """Facts about the belief, as `screen.facts` takes them."""
    found: list[tuple[str, str]] = []
    if method.filter is not None:
        found.append(("steps", f"{method.filter.steps}, of which {method.filter.skipped} skipped"))
        damping = [step.regulation for step in method.history if not step.skipped]
        if damping:
            mean = sum(damping) / len(damping)
            found.append(("mean lambda", f"{mean:.3f} (1: no batch surprised the filter)"))
    classes = method.classes
    if classes is not None and classes.belief is not None:
        assert classes.prior_std is not None
        chosen = "with one image per class there is nothing to choose it by"
        if classes.foreseen:
            chosen = f"chosen among {len(classes.foreseen)} on held-out training images"
        elif classes.config.prior_std is not None:
            chosen = "as given"
        found.append(("prior std", f"{classes.prior_std:.2f} of a similarity ({chosen})"))
        if classes.foreseen:
            best = classes.foreseen[min(classes.foreseen, key=lambda std: abs(std - (classes.prior_std or 0)))]
            found.append(("foreseen", f"held-out images with a log-probability of {best:.2f} on average"))
        found.append(("text's share", f"{percent(float(classes.belief.gain))} of what it is zero-shot"))
    return found
