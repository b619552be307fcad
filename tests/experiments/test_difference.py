"""Two stores compared: results, options, absences."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.experiments.conftest import make_record as record_of

from kalmanclip.experiments.difference import ABSENT, compare_results
from kalmanclip.experiments.spec import Contamination


def changed(record, **metrics):
    other = copy.deepcopy(record)
    other["metrics"] |= metrics
    return other


def test_the_same_records_are_the_same_whatever_they_took_and_ran_with(make_record):
    records = [make_record(0.5, seed=s, moved={"art": 0.25}) for s in (1, 2)] + [make_record(None, shots=1)]
    others = copy.deepcopy(records)
    for other in others:
        other |= {"code": {"version": "9", "source": "t"}, "label": "renamed", "reason": "something else"}
        other["run"]["data"] = "renamed"
    records[0] |= {"environment": {"device": "cpu", "python": "3"}}  # what one of them does not say is no difference
    others[0] |= {"seconds": {"fit": 99.0, "predict": 9.0}, "environment": {"device": "abacus"}}
    difference = compare_results(records, others)
    assert difference.same
    assert len(difference.common) == 3
    assert difference.made_with() == {"code.version": 3, "code.source": 3, "device": 1}
    assert [difference.common[f"seconds_{side}"].sum() for side in "ab"] == [4.0, 110.0]


def test_runs_with_other_results_come_largest_first(make_record):
    records = [make_record(0.5, seed=s) for s in range(6)]
    others = copy.deepcopy(records)
    others[1]["metrics"]["accuracy"] = 0.51
    others[2]["metrics"]["nll"] = 2.0
    others[3]["metrics"]["accuracy"] = 0.3
    others[4] = make_record(None, seed=4)
    difference = compare_results(records, others)
    different = difference.different()
    assert list(different["seed"]) == [4, 3, 1, 2]
    found = [difference.metrics_of(pair) for pair in different.itertuples()]
    assert found[:2] == [{"status": ("done", "failed")}, {"accuracy": (0.5, 0.3)}]
    assert difference.changes(different, "nll").iloc[3] == 1.5
    # without the one that failed
    assert difference.changes(difference.common, "accuracy").mean() == pytest.approx((0.01 - 0.2) / 5)
    assert not difference.same


def test_metrics_on_shifts_and_metrics_that_are_not_defined_count(make_record):
    first = make_record(0.5, moved={"art": 0.25})
    second = copy.deepcopy(first)
    second["shifts"]["art"]["accuracy"] = 0.5
    second["metrics"]["failure_auroc"] = 0.9
    difference = compare_results([first], [second])
    (pair,) = difference.different().itertuples()
    assert difference.metrics_of(pair) == {"accuracy on art": (0.25, 0.5), "failure_auroc": (None, 0.9)}


def test_a_metric_that_one_of_them_did_not_measure_is_not_compared(make_record):
    first = make_record(0.5)
    assert compare_results([first], [changed(first, something_new=0.1)]).same


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_the_tolerance_is_a_limit_on_every_metric(a, b, tolerance):
    first = record_of(a)
    for second in (changed(first, accuracy=b), changed(first, nll=first["metrics"]["nll"] + b)):
        gaps = [abs(second["metrics"][m] - first["metrics"][m]) for m in ("accuracy", "nll")]
        assert compare_results([first], [second], tolerance).same == (max(gaps) <= tolerance)
        assert compare_results([second], [first], tolerance).same == (max(gaps) <= tolerance)


def test_other_options_stand_for_each_other_and_are_named(make_record):
    first = [make_record(0.5, seed=s, config={"a": {"b": 1}, "c": 2, "seed": s, "rest": {}}) for s in (1, 2)]
    second = [make_record(0.6 + s / 10, seed=s, config={"a": {"b": 3}, "c": 2, "seed": s, "d": None}) for s in (1, 2)]
    difference = compare_results(first, second)
    assert [len(part) for part in (difference.common, difference.only_a, difference.only_b)] == [0, 0, 0]
    assert not difference.same
    assert list(difference.replaced["run"]) == [{"a.b": (1, 3), "d": (ABSENT, None)}] * 2
    assert list(difference.changes(difference.replaced, "accuracy")) == pytest.approx([0.2, 0.3])


def test_what_else_makes_another_run_is_named_too(make_record):
    first = make_record(0.5)
    others = {
        "model": make_record(0.6, model="RN50:openai"),
        "templates": make_record(0.6, templates=("a {}.",)),
        "fingerprint": make_record(0.6, fingerprint="0" * 64),
        "method": make_record(0.6, method="kalman", label="gda"),
        "shifts.art": make_record(0.6, moved={"art": 0.1}),
    }
    for name, other in others.items():
        difference = compare_results([first], [other])
        (changes,) = difference.replaced["run"]
        assert set(changes) == {name}
        assert list(difference.changes(difference.replaced, "accuracy")) == pytest.approx([0.1])


def test_of_several_the_most_alike_stand_for_each_other(make_record):
    first = [make_record(0.1, config={"x": 1, "y": 1}), make_record(0.2, config={"x": 1, "y": 2})]
    second = [make_record(0.3, config={"x": 2, "y": 2}), make_record(0.4, config={"x": 2, "y": 1})]
    second.append(make_record(0.5, config={"x": 1, "y": 1}, model="RN50:openai"))
    difference = compare_results(first, second)
    assert list(difference.changes(difference.replaced, "accuracy")) == pytest.approx([0.3, 0.1])
    assert list(difference.only_b["model"]) == ["RN50:openai"]


def test_no_run_stands_for_two(make_record):
    first = [make_record(0.1, config={"x": x}) for x in (1, 2)]
    difference = compare_results(first, [make_record(0.3, config={"x": 3})])
    assert list(difference.replaced["address_a"]) == [first[0]["address"]]
    assert list(difference.only_a["address"]) == [first[1]["address"]]


@pytest.mark.parametrize(
    "other",
    [
        {"label": "b"},
        {"data": "dtd", "fingerprint": "1"},
        {"shots": 1},
        {"seed": 2},
        {"contamination": Contamination(1)},
    ],
    ids=str,
)
def test_other_places_stand_for_nothing(make_record, other):
    first, second = make_record(0.5), make_record(0.5, config={"x": 1}, **other)
    difference = compare_results([first], [second])
    assert list(difference.only_a["address"]) == [first["address"]]
    assert list(difference.only_b["address"]) == [second["address"]]
    assert len(difference.common) == len(difference.replaced) == 0
    assert not difference.same


@given(st.sets(st.integers(0, 5)), st.sets(st.integers(0, 5)), st.sets(st.integers(0, 5)))
def test_every_run_is_in_one_place(first, second, retuned):
    def records(seeds, alpha):
        return [record_of(0.5, seed=s, config={"alpha": alpha if s in retuned else 1}) for s in sorted(seeds)]

    difference = compare_results(records(first, 1), records(second, 2))
    assert set(difference.common["seed"]) == (first & second) - retuned
    assert set(difference.replaced["seed"]) == first & second & retuned
    assert set(difference.only_a["seed"]) == first - second
    assert set(difference.only_b["seed"]) == second - first
    assert difference.same == (first == second and not first & retuned)
