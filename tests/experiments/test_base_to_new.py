"""Base to new: what is learned, what is measured on which classes, and what methods cannot say."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from tests.cli.invoke import call

from kalmanclip.data import FewShotTask, LabelledImages, few_shot_task
from kalmanclip.errors import ConfigError, DataError
from kalmanclip.experiments import Store, find_sources, plan, run_all
from kalmanclip.experiments.aggregate import to_frame
from kalmanclip.experiments.base_to_new import HARMONIC, NEW, base_task, halves, measure_new, of_classes
from kalmanclip.experiments.report import make_tables
from kalmanclip.methods import make_method
from kalmanclip.metrics import summarise

COLOURS = {
    "red": (220, 30, 30),
    "green": (30, 200, 30),
    "blue": (30, 30, 220),
    "white": (240, 240, 240),
    "black": (9, 9, 9),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("colours")
    for split in ("train", "test"):
        for name, colour in COLOURS.items():
            (folder / split / name).mkdir(parents=True)
            for i in range(2):
                picture = Image.new("RGB", (64, 64), tuple(max(0, c - 5 * i) for c in colour))
                picture.save(folder / split / name / f"{split}{i}.png")
    return folder


@pytest.mark.parametrize(("classes", "base"), [(4, 2), (5, 3), (100, 50)])
def test_the_first_half_is_learned_and_the_larger_one(classes, base):
    assert halves(classes) == (range(base), range(base, classes))


def test_fewer_than_four_classes_cannot_be_halved():
    with pytest.raises(DataError, match="at least four"):
        halves(3)


def test_the_base_images_are_those_of_the_whole_draw():
    names = [f"class {c}" for c in range(5)]
    images = LabelledImages(
        [f"{c}/{i}" for c in range(5) for i in range(6)], [c for c in range(5) for _ in range(6)], names
    )
    task = few_shot_task(images, None, images, shots=2, seed=4)
    base = base_task(task)
    assert base.class_names == names[:3]
    assert base.train.sources == [s for s in task.train.sources if int(s[0]) < 3]
    assert [int(s[0]) for s in base.train.sources] == base.train.labels
    assert base.validation.class_names == base.test.class_names == names[:3]
    new = of_classes(images, range(3, 5))
    assert (new.class_names, set(new.labels), len(new)) == (names[3:], {0, 1}, 12)
    assert all(images.labels[images.sources.index(s)] == 3 + c for s, c in zip(new.sources, new.labels, strict=True))


@pytest.fixture(scope="module")
def records(data, tmp_path_factory):
    sources = find_sources([f"colours={data}"])
    runs = plan(sources, ["zero_shot", "gda"], [1], [1], "tiny", base_to_new=True)
    return run_all(runs, sources, Store(tmp_path_factory.mktemp("store")))


def test_each_half_is_measured_among_its_own_classes(data, records, tiny):
    zero_shot, gda = records
    assert zero_shot["images"] == {"train": 3, "validation": 3, "test": 6}
    splits = find_sources([str(data)])[0].read()
    for half, found in zip(halves(5), (zero_shot["metrics"], zero_shot["shifts"][NEW]), strict=True):
        images = of_classes(splits.test, half)
        method = make_method("zero_shot", tiny)
        method.fit(FewShotTask(images))
        expected = summarise(method.logits(images.sources).double().softmax(dim=1).numpy(), np.array(images.labels))
        assert found["accuracy"] == expected["accuracy"]
        assert found["nll"] == pytest.approx(expected["nll"], rel=1e-5)
    a, b = zero_shot["metrics"]["accuracy"], zero_shot["shifts"][NEW]["accuracy"]
    assert zero_shot["shifts"][HARMONIC]["accuracy"] == pytest.approx(0 if a + b == 0 else 2 * a * b / (a + b))
    assert gda["status"] == "done"
    assert "shifts" not in gda  # Gaussians of the base classes say nothing about new ones


def test_the_tables_have_both_halves(records):
    tables = {table.title: table for table in make_tables(to_frame(records))}
    assert next(table.rows for table in tables.values()) == [("zero_shot",), ("gda",)]
    for title in ("Accuracy in % on new classes", "Harmonic mean of base and new accuracy in %"):
        assert tables[title].rows == [("zero_shot",)]
        assert tables[title].columns == [("colours-base", "1-shot")]
    assert "Accuracy in % under distribution shift" not in tables


def test_ordinary_runs_keep_their_addresses(data):
    sources = find_sources([str(data)])
    (plain,), (base,) = (plan(sources, ["gda"], [1], [1], "tiny", base_to_new=on) for on in (False, True))
    assert "base_to_new" not in plain.to_dict()
    assert plain.address != base.address
    assert base.source == plain.data


def test_the_harmonic_mean_of_nothing_is_nothing():
    class Method:
        def set_classes(self, names, templates):
            self.names = names

        def logits(self, images, progress):
            return torch.eye(2)

    images = LabelledImages(["a", "b"], [1, 0], ["x", "y"])
    found = measure_new(Method(), images, ["{}"], 0.0, lambda logits, y: {"accuracy": 0.0}, lambda *_: None)
    assert found[HARMONIC] == {"accuracy": 0.0}


def test_shifts_and_new_classes_exclude_each_other(data):
    sources = find_sources([str(data)], shifts=[f"moved={data / 'test'}"])
    with pytest.raises(ConfigError, match="new classes"):
        plan(sources, ["gda"], [1], [1], "tiny", base_to_new=True)


SHORT = {
    "clip_adapter": {"epochs": 1, "crops": 0, "ratio_grid": []},
    "clip_lora": {"iterations": 1, "augment": False},
    "clip_svd": {"iterations": 1, "augment": False},
    "coop": {"epochs": 1, "crops": 0, "context": 2},
    "first_order": {"epochs": 1},
    "class_residuals": {"crops": 0, "prior_std": 0.2},
}


@pytest.mark.parametrize("name", SHORT)
def test_naming_the_same_classes_again_changes_nothing(data, tiny, name):
    """And others are classified by their texts, as many as there are."""
    from kalmanclip.config import from_dict
    from kalmanclip.methods import find_method

    splits = find_sources([str(data)])[0].read()
    task = base_task(few_shot_task(splits.train, None, splits.test, shots=1, seed=1))
    method = make_method(name, tiny, from_dict(find_method(name).Config, SHORT[name]))
    method.fit(task)
    before = method.logits(task.test.sources)
    method.set_classes(["white", "black"], task.templates)
    assert method.logits(task.test.sources).shape == (6, 2)
    if name != "class_residuals":  # residuals belong to the classes, and are gone with them
        method.set_classes(task.class_names, task.templates)
        torch.testing.assert_close(method.logits(task.test.sources), before, rtol=1e-4, atol=1e-4)


def test_a_plan_runs_nothing_and_says_how_long(data, tmp_path):
    words = ["compare", "--data", f"colours={data}", "--shots", "1", "--base-to-new", "-o", tmp_path / "results"]
    said = call(*words, "--methods", "zero_shot", "--seeds", "1", "--plan").stdout
    assert "1 different runs, 1 of them to do." in said
    assert not (tmp_path / "results").exists()
    said = call(*words, "--methods", "zero_shot", "--seeds", "1").stdout
    assert "new classes" in said
    (file,) = (path for path in (tmp_path / "results").glob("*.json") if len(path.stem) == 64)
    record = json.loads(file.read_text())
    file.write_text(json.dumps(record | {"seconds": {"fit": 100.0, "predict": 20.0}}))
    said = call(*words, "--methods", "zero_shot", "--seeds", "1,2,3", "--plan", "--workers", "2").stdout
    assert "3 different runs, 2 of them to do." in said
    assert "About 2 min with 2 workers" in said
    assert "?" in call(*words, "--methods", "zero_shot,gda", "--plan").stdout
