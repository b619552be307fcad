"""One run, from the data set to the record of its result. Methods are known by their two verbs only."""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from kalmanclip.config import from_dict
from kalmanclip.data import Views, few_shot_task
from kalmanclip.encoders import Backbone, load_backbone
from kalmanclip.errors import KalmanClipError, NumericalError
from kalmanclip.experiments.environment import code_version, environment
from kalmanclip.experiments.run import Run
from kalmanclip.experiments.sources import Source
from kalmanclip.methods import CONFIGS, make_method
from kalmanclip.metrics import (
    accuracy,
    brier_score,
    expected_calibration_error,
    failure_auroc,
    negative_log_likelihood,
    reliability_table,
)

FORMAT = 1
"""Of the record; a file of another format is made again."""

# A process does many runs on few backbones and data sets; both take longer to load than many runs take.
_backbone: Callable[[str, str], Backbone] = lru_cache(maxsize=1)(load_backbone)


@lru_cache(maxsize=4)
def _views(source: Source) -> Views:
    return source.read()


def execute(run: Run, source: Source, device: str) -> dict[str, Any]:
    """Does a run and returns its record: plain JSON values, ``status`` "done" or "failed".

    A run that fails is a result too: the others of a comparison go on, and the table says why this one is missing.
    """
    record = {"format": FORMAT, "address": run.address, "run": run.to_dict(), "code": code_version()}
    try:
        return record | {"status": "done"} | measure(run, source, device)
    except KalmanClipError as error:
        return record | {"status": "failed", "reason": str(error)}
    except Exception as error:
        # not one of ours, so a bug or a full memory: what is needed to find it goes into the record
        reason = f"unexpected {type(error).__name__}: {error}"
        return record | {"status": "failed", "reason": reason, "traceback": traceback.format_exc()}


def measure(run: Run, source: Source, device: str) -> dict[str, Any]:
    """Draws the task, lets the method learn, and measures it on the test images."""
    views, backbone = _views(source), _backbone(run.model, device)
    assert views.train is not None
    assert views.test is not None
    task = few_shot_task(views.train, views.val, views.test, run.shots, run.seed, run.templates)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(run.seed)  # whatever a library draws behind a method's back must not depend on earlier runs
        start = time.perf_counter()
        method = make_method(run.method, backbone, from_dict(CONFIGS[run.method], dict(run.config)))
        method.fit(replace(task, test=None))  # what a method does not have it cannot choose on
        fitted = time.perf_counter()
        logits = method.logits(views.test.sources)
        scored = time.perf_counter()
    if not torch.isfinite(logits).all():
        raise NumericalError(f"{run.method} gave scores that are not finite. Try other options.")
    return {
        "task": task.to_dict(),
        "images": {
            "train": len(task.train),
            "validation": len(task.validation or ()),
            "test": len(views.test),
        },
        "metrics": measures(logits.double().softmax(dim=1).cpu().numpy(), np.asarray(views.test.labels)),
        "seconds": {"fit": fitted - start, "predict": scored - fitted},
        "environment": environment(backbone),
    }


def measures(probabilities: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    """What is measured of probabilities (N, C) and labels (N,); None for what is not defined on them."""
    predicted = probabilities.argmax(axis=1)
    numbers = {
        "accuracy": accuracy(labels, predicted),
        "nll": negative_log_likelihood(probabilities, labels),
        "ece": expected_calibration_error(probabilities, labels),
        "brier": brier_score(probabilities, labels),
        "failure_auroc": failure_auroc(probabilities.max(axis=1), predicted == labels),
    }
    finite = {name: float(value) if math.isfinite(value) else None for name, value in numbers.items()}
    return finite | {"reliability": [asdict(row) for row in reliability_table(probabilities, labels)]}
