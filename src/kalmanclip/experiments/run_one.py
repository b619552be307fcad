"""One run, from the data set to the record of its result."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterable
from dataclasses import asdict, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from kalmanclip.config import from_dict
from kalmanclip.data import Splits, few_shot_task
from kalmanclip.data.resolve import Shift
from kalmanclip.encoders import Backbone, FeatureCache, load_backbone
from kalmanclip.errors import KalmanClipError, NumericalError
from kalmanclip.experiments.base_to_new import base_task, halves, measure_new, of_classes
from kalmanclip.experiments.provenance import code_version, environment, redact, split_precision
from kalmanclip.experiments.sources import Source
from kalmanclip.experiments.spec import Run
from kalmanclip.experiments.store import FORMAT
from kalmanclip.methods import Progress, find_method, make_method, silent
from kalmanclip.metrics import reliability_table, summarise


# A process does many runs on few backbones and data sets; both take longer to load than many runs take.
@lru_cache(maxsize=1)
def backbone_of(name: str, device: str, cache: str | None) -> Backbone:
    """Return the backbone of that name; the last one stays loaded for the next run of this process."""
    name, precision = split_precision(name)
    backbone = load_backbone(name, device, precision)
    return replace(backbone, cache=None if cache is None else FeatureCache(cache))


@lru_cache(maxsize=4)
def _splits(source: Source) -> Splits:
    return source.read()


@lru_cache(maxsize=4)
def _shifts(source: Source) -> dict[str, Shift]:
    return source.read_shifts(_splits(source))


def run_one(
    run: Run,
    source: Source,
    device: str,
    cache: str | None = None,
    model: str | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Do a run and return its record: plain JSON values, ``status`` "done" or "failed".

    A run that fails is a result too: the others of a comparison go on, and the table says why this one is missing.

    Args:
        run: what to do.
        source: the data set that it names.
        device: where the backbone lies.
        cache: a folder for products of the frozen backbone; None: they are computed in every run.
        model: how the run's backbone is spelled here, where that is not its name (see `provenance.model_name`).
        progress: called as ``progress(stage, done, total)``.
    """
    try:
        backbone = backbone_of(model or run.model, device, cache)
        return _head(run) | {"status": "done"} | _measure(run, source, backbone, progress)
    except KalmanClipError as error:
        return failure(run, source, str(error)) | {"error": type(error).__name__}  # some are findings about the method
    except Exception as error:
        # not one of ours, so a bug or a full memory: what is needed to find it goes into the record
        trace = redact(traceback.format_exc(), source)
        return failure(run, source, f"unexpected {type(error).__name__}: {error}") | {"traceback": trace}


def failure(run: Run, source: Source, reason: str) -> dict[str, Any]:
    """Return the record of a run that failed, or whose process died."""
    return _head(run) | {"status": "failed", "reason": redact(reason, source)}


def _head(run: Run) -> dict[str, Any]:
    """Return the entries of a record that do not depend on how the run ended."""
    return {"format": FORMAT, "address": run.address, "run": run.to_dict(), "code": code_version()} | run.names


def _measure(run: Run, source: Source, backbone: Backbone, progress: Progress) -> dict[str, Any]:
    """Draw the task, fit the method, and measure it on the test images and on those of the shifts."""
    splits = _splits(source)
    served = _served(backbone)
    assert splits.train is not None
    assert splits.test is not None
    task = few_shot_task(
        splits.train, splits.val, splits.test, run.shots, run.seed, run.templates, shot_lists=splits.shot_lists
    )
    test, new = splits.test, None
    if run.base_to_new:
        task = base_task(task)
        test, new = (of_classes(test, half) for half in halves(len(test.class_names)))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(run.seed)  # whatever a library draws behind a method's back must not depend on earlier runs
        start = time.perf_counter()
        method = make_method(run.method, backbone, from_dict(find_method(run.method).Config, dict(run.config)))
        # what a method does not have it cannot choose on
        method.fit(replace(task, train=run.contamination.apply(task.train), test=None), progress)
        fitted = time.perf_counter()
        logits = method.logits(test.sources, progress)
        scored = time.perf_counter()
        shifts = _shifts(source)
        metrics = _metrics(logits, test.labels)
        further = {}
        if new is not None:
            further = measure_new(method, new, run.templates, metrics["accuracy"], _metrics, progress)
        moved = {name: method.logits(s.images.sources, progress)[:, list(s.columns)] for name, s in shifts.items()}
    if not all(torch.isfinite(scores).all() for scores in (logits, *moved.values())):
        raise NumericalError(f"{run.method} gave scores that are not finite. Try other options.")
    further |= {name: _metrics(moved[name], s.images.labels) for name, s in shifts.items()}
    return {
        "task": task.to_dict(),
        "images": {
            "train": len(task.train),
            "validation": len(task.validation or ()),
            "test": len(test),
            **({"shifts": {name: len(shift.images) for name, shift in shifts.items()}} if shifts else {}),
        },
        "metrics": metrics,
        **({"shifts": further} if further else {}),
        "seconds": {"fit": fitted - start, "predict": scored - fitted},
        # without it nobody could tell what the seconds were spent on
        "served_by_cache": _served(backbone) - served,
        "environment": environment(backbone),
    }


def _served(backbone: Backbone) -> int:
    """Return the number of images that the cache has served so far."""
    return 0 if backbone.cache is None else backbone.cache.served


def _metrics(logits: torch.Tensor, labels: Iterable[int]) -> dict[str, Any]:
    """Return all metrics of logits (N, C) and labels (N,)."""
    given = logits.double().softmax(dim=1).cpu().numpy(), np.asarray(labels)
    return {**summarise(*given), "reliability": [asdict(row) for row in reliability_table(*given)]}
