"""A record as `execute` makes it, without the work."""

import pytest

from kalmanclip.experiments.run import Run


def make_run(**changes):
    fields = {
        "data": "pets",
        "fingerprint": "f" * 64,
        "templates": ("a photo of a {}.",),
        "method": "gda",
        "config": {"alpha": 0.1, "alpha_grid": [0.1, 1.0]},
        "shots": 4,
        "seed": 1,
        "model": "tiny",
    }
    return Run(**(fields | changes))


def make_record(accuracy=None, reason="it broke", moved=None, **changes):
    """``moved`` is the accuracy by shift."""
    run = make_run(**changes, shifts=dict.fromkeys(moved or {}, "0" * 64))
    record = {"format": 1, "address": run.address, "run": run.to_dict(), "code": {"version": "0", "source": "s"}}
    record["label"] = run.label
    if accuracy is None:
        return record | {"status": "failed", "reason": reason}
    metrics = {"accuracy": accuracy, "nll": 0.5, "ece": 0.1, "brier": 0.2, "failure_auroc": None, "reliability": []}
    shifts = {"shifts": {name: metrics | {"accuracy": value} for name, value in moved.items()}} if moved else {}
    done = {"status": "done", "task": {}, "metrics": metrics, "seconds": {"fit": 1.0, "predict": 1.0}}
    return record | done | shifts


@pytest.fixture(name="make_run")
def _make_run():
    return make_run


@pytest.fixture(name="make_record")
def _make_record():
    return make_record
