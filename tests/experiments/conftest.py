"""A record as `run_one` makes it, without the work."""

import pytest

from kalmanclip.experiments.spec import Run


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


@pytest.fixture(scope="session")
def small_plan(split_shapes):
    """Sources and runs of a comparison of six short runs."""
    from kalmanclip.experiments import find_sources, plan

    sources = find_sources([str(split_shapes)])
    return sources, plan(sources, ["zero_shot", "gda"], [1], [1, 2, 3], "tiny")


@pytest.fixture(scope="session")
def undisturbed(small_plan, tmp_path_factory):
    """What must come out of those runs, whatever happens meanwhile (see `comparable`)."""
    from kalmanclip.experiments import Store, run_all

    sources, runs = small_plan
    records = run_all(runs, sources, Store(tmp_path_factory.mktemp("undisturbed")), cpus_per_run=1)
    assert all(record["status"] == "done" for record in records)
    return comparable(records)


def comparable(records):
    """All that a record says but how long it took, and of which code it is the result."""
    return [{name: value for name, value in record.items() if name not in ("seconds", "code")} for record in records]


@pytest.fixture(name="comparable")
def _comparable():
    return comparable
