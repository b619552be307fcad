"""Runs, their addresses, and the plan of a comparison."""

import dataclasses
import json
from pathlib import Path

import pytest

from kalmanclip.config import from_dict, to_dict
from kalmanclip.errors import ConfigError
from kalmanclip.experiments.sources import ShiftSource, Source
from kalmanclip.experiments.spec import CLEAN, Contamination, all_labels, method_options, plan
from kalmanclip.methods import CONTROLS, METHODS, preset, with_options

PETS = Source("pets", "pets", None, ("a photo of a {}.",), "f" * 64)


def test_the_address_is_the_same_for_ever(make_run):
    # A literal: if this changes, every result that anybody has kept is run again.
    assert make_run().address == "109f772645ad35b0645232fc880c81e656d8bdcc87703a8ff5b90095d85b0187"
    assert make_run().address == make_run(config={"alpha_grid": [0.1, 1.0], "alpha": 0.1}).address
    assert make_run().to_dict() == make_run(contamination=CLEAN, shifts={}).to_dict()
    assert not {"contamination", "shifts"} & set(make_run().to_dict())


@pytest.mark.parametrize(
    "change",
    [
        {"fingerprint": "0" * 64},
        {"templates": ("a {}.",)},
        {"method": "kalman"},
        {"config": {"alpha": 0.2, "alpha_grid": [0.1, 1.0]}},
        {"shots": 8},
        {"seed": 2},
        {"model": "RN50:openai"},
        {"contamination": Contamination(0.1, seed=1)},
        {"shifts": {"sketch": "f" * 64}},
        {"base_to_new": True},
    ],
    ids=lambda change: next(iter(change)),
)
def test_whatever_changes_a_run_changes_its_address(make_run, change):
    assert make_run(**change).address != make_run().address


def test_the_cases_above_cover_every_field(make_run):
    assert sum(field.compare for field in dataclasses.fields(make_run())) == 10


def test_names_are_no_part_of_a_run(make_run):
    for names in ({"label": "mine"}, {"data": "dogs"}):
        assert make_run(**names).address == make_run().address
        assert make_run(**names) == make_run()
    assert (make_run(label="mine").label, make_run().label) == ("mine", "gda")


@pytest.mark.parametrize("method", METHODS)
def test_options_survive_json(method):
    options = method_options(method, {}, seed=3)
    config = from_dict(METHODS[method].Config, json.loads(json.dumps(options)))
    expected = METHODS[method].Config()
    assert config == (with_options(expected, {"seed": 3}) if hasattr(expected, "seed") else expected)


def test_options_change_one_value_of_a_group_and_leave_the_others():
    plain, changed = method_options("class_residuals", {}, 1), method_options("class_residuals", {"crops": 2}, 1)
    assert changed == plain | {"crops": 2}
    head = {"preset": "head"}
    plain, changed = method_options("kalman", head, 1), method_options("kalman", head | {"noise": {"beta": 0.9}}, 1)
    assert changed == plain | {"noise": plain["noise"] | {"beta": 0.9}}
    assert "preset" not in plain  # a name may come to mean something else; what it stood for is kept


def test_what_a_preset_is_made_of_is_the_same_run():
    (named,) = plan([PETS], ["kalman"], [1], [1], "tiny", {"kalman": {"preset": "head"}})
    (spelled,) = plan([PETS], ["kalman"], [1], [1], "tiny", {"kalman": to_dict(preset("head")) | {"seed": 1}})
    (other,) = plan([PETS], ["kalman"], [1], [1], "tiny", {"kalman": {"preset": "paper"}})
    assert named.address == spelled.address != other.address


def test_a_preset_of_another_method_is_refused():
    with pytest.raises(ConfigError, match=r"another method's.*head, paper, paper-literal"):
        method_options("kalman", {"preset": "default"}, 1)


def test_a_seed_among_the_options_is_the_runs_unless_it_is_given():
    assert [run.config["seed"] for run in plan([PETS], ["kalman"], [1], [1, 2], "tiny")] == [1, 2]
    given = plan([PETS], ["kalman"], [1], [1, 2], "tiny", {"kalman": {"seed": 7}})
    assert [run.config["seed"] for run in given] == [7, 7]


def test_contamination_takes_the_runs_seed_and_forgets_what_changes_nothing():
    levels = [Contamination(0), Contamination(0.0, (3,)), Contamination(1), Contamination(1.0, seed=7)]
    runs = plan([PETS], ["gda"], [1], [1, 2], "tiny", None, levels[2:])
    assert [run.contamination.seed for run in runs] == [1, 2, 7, 7]
    assert runs[0].to_dict()["contamination"] == {"share": 1.0, "severities": [1, 2, 3, 4, 5], "seed": 1}
    clean = [plan([PETS], ["gda"], [1], [1], "tiny", None, [level])[0].address for level in levels[:2]]
    assert clean == [plan([PETS], ["gda"], [1], [1], "tiny")[0].address] * 2


def test_a_run_names_the_shifts_of_its_data_set():
    source = dataclasses.replace(PETS, shifts=(ShiftSource("x=y", "x", "0" * 64),))
    (run,) = plan([source], ["gda"], [1], [1], "tiny")
    assert run.to_dict()["shifts"] == {"x": "0" * 64}
    assert "shifts" not in plan([PETS], ["gda"], [1], [1], "tiny")[0].to_dict()


def test_variants_of_one_method_stand_side_by_side():
    three = {"preset": "head", "epochs": 3}
    options = {"kalman": three, "kalman alpha=0.5": {"method": "kalman", "filter": {"alpha": 0.5}}}
    runs = plan([PETS], ["kalman alpha=0.5", "kalman", "gda"], [1], [1], "tiny", options)
    assert [(run.label, run.method) for run in runs] == [
        ("kalman alpha=0.5", "kalman"),
        ("kalman", "kalman"),
        ("gda", "gda"),
    ]
    changed, plain = runs[0].config, runs[1].config
    assert (changed["filter"]["alpha"], changed["epochs"]) == (0.5, method_options("kalman", {}, 1)["epochs"])
    assert plain == method_options("kalman", three, 1)
    assert plain["epochs"] == 3
    assert len({run.address for run in runs}) == 3


def test_options_by_data_set():
    mine = {"method": "gda", "alpha": 2.0, "by_data": {"pets, dtd": {"crops": 3}, "dtd37": {"alpha": 5.0}}}
    other = dataclasses.replace(PETS, name="dtd37", fingerprint="0" * 64)
    unnamed = dataclasses.replace(PETS, name="else", fingerprint="1" * 64)
    runs = plan([PETS, other, unnamed], ["mine", "gda"], [1], [1], "tiny", {"mine": mine})
    changed = [{"alpha": 2.0, "crops": 3}, {"alpha": 5.0}, {"alpha": 2.0}]
    assert [run.config for run in runs[::2]] == [method_options("gda", options, 1) for options in changed]
    assert {run.by_data for run in runs[::2]} == {("alpha", "crops")}
    (spelled,) = plan([PETS], ["gda"], [1], [1], "tiny", {"gda": {"alpha": 2.0, "crops": 3}})
    assert spelled == runs[0]
    assert spelled.address == runs[0].address


def test_the_rows_of_the_committed_comparison_can_be_planned():
    options = json.loads((Path(__file__).parents[2] / "benchmarks/comparison.json").read_text())
    sets = [dataclasses.replace(PETS, name=name) for name in ("eurosat", "dtd37", "pets")]
    runs = plan(sets, all_labels(options), [1], [1], "tiny", options)
    found = {(run.label, run.data): run.config for run in runs}
    published = {"eurosat": (2, [12, 10], 100), "dtd37": (2, [13, 13], 20), "pets": (1.17, [7, 3], 20)}
    for data, (alpha, scale, epochs) in published.items():
        config = found["tip_adapter_f as published", data]
        assert (config["alpha"], config["search_scale"], config["epochs"]) == (alpha, scale, epochs)
        assert (config["alpha_grid"], config["search_steps"]) == ([], [200, 20])
    trained = [found["ape_t as published", data] for data in published]
    assert [(config["lr"], config["epochs"]) for config in trained] == [(1e-3, 200), (1e-3, 20), (1e-4, 30)]
    assert found["class_residuals no crops", "pets"]["crops"] == 0
    assert found["clip_lora", "pets"]["most_iterations"] is None


def test_all_labels_are_the_methods_with_their_variants_beside_them():
    labels = all_labels({"mine": {"method": "gda"}, "gda": {}})
    assert labels[labels.index("gda") + 1] == "mine"
    assert [label for label in labels if label != "mine"] == [name for name in METHODS if name not in CONTROLS]
    # a control is run where somebody asks for it
    assert "sgd" in all_labels({"sgd": {"method": "first_order", "optimizer": "sgd"}})


def test_the_plan_has_every_combination_once():
    runs = plan([PETS], ["gda", "kalman", "gda"], [1, 4, 1], [1, 2], "tiny")
    assert len(runs) == len({run.address for run in runs}) == 8
    assert {(run.method, run.shots, run.seed) for run in runs} == {
        (method, shots, seed) for method in ("gda", "kalman") for shots in (1, 4) for seed in (1, 2)
    }


@pytest.mark.parametrize(
    ("methods", "shots", "options", "says"),
    [
        (["kalmann"], [1], {}, "did you mean 'kalman'"),
        (["gda"], [1], {"gdda": {}}, "Unknown method 'gdda'"),
        (["gda"], [1], {"gda": {"alfa": 1}}, "Unknown option 'alfa'"),
        (["gda"], [0], {}, "at least 1"),
        (["gda"], [], {}, "at least one number of shots"),
        (["gda"], [1], {"gda": 3}, "must be a table"),
        (["mine"], [1], {"mine": {"method": "gdda"}}, "Unknown method 'gdda'"),
        (["mine"], [1], {"mine": {"method": 3}}, "must be a name"),
        (["mine"], [1], {"mine": {"method": "gda", "alfa": 1}}, "Unknown option 'alfa'"),
        (["a,b"], [1], {"a,b": {"method": "gda"}}, "commas"),
        (["gda"], [1], {"gda": {"method": "kalman"}}, "another method"),
        (["kalman"], [1], {"kalman": {"preset": "peper"}}, "Unknown preset 'peper'"),
        (["gda"], [1], {"gda": {"by_data": {"dtd": {"alfa": 1}}}}, "Unknown option 'alfa'"),
        (["gda"], [1], {"gda": {"by_data": {"dtd": 1}}}, "by_data of 'gda' must hold tables"),
        (["gda"], [1], {"gda": {"by_data": {"dtd": {}, "pets,dtd": {}}}}, "names the data set 'dtd' twice"),
        (["class_residuals"], [1], {"class_residuals": {"epochs": 3}}, "Unknown option 'epochs'"),
        (["kalman"], [1], {"kalman": {"preset": "head", "crops": 2}}, "Unknown option 'crops'"),
        (["gda"], [1], {"gda": {"preset": "head"}}, "Unknown option 'preset'"),
    ],
)
def test_mistakes_are_found_before_anything_runs(methods, shots, options, says):
    with pytest.raises(ConfigError, match=says):
        plan([], methods, shots, [1], "tiny", options)


def test_the_code_hash_covers_the_folders_that_can_change_a_number(monkeypatch):
    import kalmanclip
    from kalmanclip.experiments import provenance

    root = Path(kalmanclip.__file__).parent
    assert all((root / folder).is_dir() for folder in provenance.CODE)
    code_version = provenance.code_version.__wrapped__
    whole = code_version()["source"]
    for left_out in provenance.CODE:
        monkeypatch.setattr(provenance, "CODE", [f for f in provenance.CODE if f != left_out])
        assert code_version()["source"] != whole
        monkeypatch.undo()
    read = []
    monkeypatch.setattr(Path, "read_bytes", lambda path: read.append(path.relative_to(root).parts[0]) or b"")
    code_version()
    assert not {"cli", "app", "experiments"} & set(read)
