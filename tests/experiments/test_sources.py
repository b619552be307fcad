"""Data sets by name and by folder."""

import pytest
from PIL import Image

from kalmanclip.errors import ConfigError, DataError
from kalmanclip.experiments.execute import execute
from kalmanclip.experiments.run import plan
from kalmanclip.experiments.sources import find_sources, read_views


def make_images(folder, classes, count):
    for number, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for i in range(count):
            Image.new("RGB", (16, 16), (25 * number, 20 * i, 100)).save(folder / name / f"{name}_{i}.png")


@pytest.fixture
def eurosat_root(tmp_path):
    """A small EuroSAT where the registry looks for it: ten classes of six images, which it splits itself."""
    classes = ["AnnualCrop", "Forest", "HerbaceousVegetation", "Highway", "Industrial", "Pasture"]
    classes += ["PermanentCrop", "Residential", "River", "SeaLake"]
    make_images(tmp_path / "eurosat" / "2750", classes, 6)
    return tmp_path


def test_a_registered_data_set_brings_its_prompts_and_runs(eurosat_root):
    (source,) = find_sources(["EuroSAT"], eurosat_root)
    assert (source.name, source.templates) == ("eurosat", ("a centered satellite photo of {}.",))
    (run,) = plan([source], ["zero_shot"], [1], [1], "tiny")
    record = execute(run, source, "cpu")
    assert record["status"] == "done", record
    assert record["task"]["templates"] == ["a centered satellite photo of {}."]
    assert record["task"]["draw"]["validation_from"] == "val"
    assert record["images"] == {"train": 10, "validation": 10, "test": 20}


def test_templates_that_are_given_win(eurosat_root):
    (source,) = find_sources(["eurosat"], eurosat_root, ["{} from above"])
    assert source.templates == ("{} from above",)


def test_a_folder_may_have_a_validation_part(tmp_path):
    for part, count in (("train", 3), ("val", 2), ("test", 1)):
        make_images(tmp_path / part, ["cat", "dog"], count)
    views = read_views(str(tmp_path))
    assert [(name, len(images)) for name, images in views.parts()] == [("train", 6), ("val", 4), ("test", 2)]


def test_a_class_that_only_the_test_part_has_is_refused(tmp_path):
    make_images(tmp_path / "train", ["cat", "dog"], 1)
    make_images(tmp_path / "test", ["cat", "cow"], 1)
    with pytest.raises(DataError, match="cow"):
        find_sources([str(tmp_path)])


def test_data_that_change_under_way_are_noticed(tmp_path):
    for part in ("train", "test"):
        make_images(tmp_path / part, ["cat", "dog"], 2)
    (source,) = find_sources([str(tmp_path)])
    next((tmp_path / "test" / "cat").iterdir()).unlink()
    with pytest.raises(DataError, match="changed while it was in use"):
        source.read()


def test_no_data_set_is_nothing_to_compare_on():
    with pytest.raises(ConfigError, match="at least one data set"):
        find_sources([])
