"""Data sets by name and by folder."""

import pytest
from PIL import Image

from kalmanclip.errors import ConfigError, DataError
from kalmanclip.experiments.run_one import run_one
from kalmanclip.experiments.sources import find_sources, read_splits
from kalmanclip.experiments.spec import Contamination, plan


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
    told = []
    record = run_one(run, source, "cpu", progress=lambda *progress: told.append(progress))
    assert told[-1][1:] == (20, 20)  # the test images
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
    views = read_splits(str(tmp_path))
    assert [(name, len(images)) for name, images in views.items()] == [("train", 6), ("val", 4), ("test", 2)]


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


@pytest.fixture
def pets(tmp_path):
    for part, count in (("train", 3), ("test", 1)):
        make_images(tmp_path / "pets" / part, ["cat", "dog"], count)
    return tmp_path / "pets"


def test_shot_lists_are_part_of_the_data_set_and_of_the_draw(pets):
    (plain,) = find_sources([str(pets)])
    (pets / "shot2_seed1.txt").write_text("cat/cat_2.png\ncat/cat_0.png\ndog/dog_1.png\ndog/dog_2.png\n")
    (listed,) = find_sources([str(pets)])
    assert listed.fingerprint != plain.fingerprint
    (run,) = plan([listed], ["zero_shot"], [1], [1], "tiny")
    draw = run_one(run, listed, "cpu")["task"]["draw"]
    assert (draw["shot_list"], draw["train"]) == ("shot2_seed1.txt", [2, 4])


def test_a_shot_list_that_is_too_short_is_found_before_anything_runs(pets):
    (pets / "shot2_seed1.txt").write_text("cat/cat_2.png\ncat/cat_0.png\ndog/dog_1.png\n")
    find_sources([str(pets)], draws=[(1, 1), (2, 2)])
    with pytest.raises(DataError, match="fewer than 2 images"):
        find_sources([str(pets)], draws=[(1, 1), (2, 1)])


def test_templates_may_be_for_one_data_set(pets, eurosat_root):
    names = [str(pets), "eurosat"]
    own, other = find_sources(names, eurosat_root, ["pets=a {}, a pet.", "pets=the {}."])
    assert own.templates == ("a {}, a pet.", "the {}.")
    assert other.templates == ("a centered satellite photo of {}.",)
    own, other = find_sources(names, eurosat_root, ["pets=a {}, a pet.", "{} = {}".replace(" {}", " x", 1)])
    assert (own.templates, other.templates) == (("a {}, a pet.",), ("{} = x",))
    with pytest.raises(ConfigError, match="'pest', but there are only: pets"):
        find_sources(names, eurosat_root, ["pest=a {}."])


def test_two_folders_make_a_data_set_and_anything_may_be_named(pets):
    (source,) = find_sources([f"mine={pets}/train:{pets}/test"])
    (plain,) = find_sources([str(pets)])
    assert (source.name, source.fingerprint) == ("mine", plain.fingerprint)
    one, two = find_sources([f"one={pets}", f"two={pets}"])
    assert (one.name, two.name) == ("one", "two")


def test_a_list_is_a_data_set(pets):
    rows = [f"{p.relative_to(pets).as_posix()},{p.parent.name},{p.parts[-3]}" for p in sorted(pets.glob("*/*/*.png"))]
    (pets / "pets.csv").write_text("\n".join(["image,class,split", *rows]))
    (source,) = find_sources([str(pets / "pets.csv")])
    assert source.name == "pets"
    assert [(name, len(images)) for name, images in source.read().items()] == [("train", 6), ("test", 2)]


def test_shifts_belong_to_the_data_sets_that_have_their_classes(pets, eurosat_root):
    make_images(pets.parent / "drawn", ["Dog", "cat"], 2)
    own, other = find_sources([str(pets), "eurosat"], eurosat_root, shifts=[str(pets.parent / "drawn")])
    assert ([shift.name for shift in own.shifts], other.shifts) == (["drawn"], ())
    shift = own.read_shifts(own.read())["drawn"]
    assert (shift.images.class_names, shift.images.counts(), shift.columns) == (["cat", "dog"], [2, 2], (0, 1))
    next((pets.parent / "drawn" / "cat").iterdir()).unlink()
    with pytest.raises(DataError, match="changed while it was in use"):
        own.read_shifts(own.read())


def test_a_shift_of_other_classes_is_refused(pets):
    make_images(pets.parent / "drawn", ["dog", "cow"], 1)
    with pytest.raises(DataError, match="fits none of the data sets: the folder 'cow' is none of the known classes"):
        find_sources([str(pets)], shifts=[f"drawn={pets.parent / 'drawn'}"])
    with pytest.raises(DataError, match="There is no folder"):
        find_sources([str(pets)], shifts=["drawn=no/where"])


def test_shifts_are_measured_and_contamination_corrupts_training_only(pets, monkeypatch):
    pytest.importorskip("imagecorruptions", reason="the extra [corruptions] is not installed")
    from kalmanclip.data.corruptions import CorruptedImage
    from kalmanclip.methods import ZeroShot

    make_images(pets.parent / "drawn", ["dog", "cat"], 2)
    (source,) = find_sources([str(pets)], shifts=[str(pets.parent / "drawn")])
    (run,) = plan([source], ["zero_shot"], [2], [1], "tiny", None, [Contamination(0.5)])
    seen = {}
    fit = ZeroShot.fit

    def spy(self, task, *rest):
        seen["train"], seen["validation"] = task.train.sources, task.validation.sources
        return fit(self, task, *rest)

    monkeypatch.setattr(ZeroShot, "fit", spy)
    record = run_one(run, source, "cpu")
    assert record["status"] == "done", record
    assert sum(isinstance(image, CorruptedImage) for image in seen["train"]) == 2
    assert not any(isinstance(image, CorruptedImage) for image in seen["validation"])
    assert record["images"]["shifts"] == {"drawn": 4}
    assert set(record["shifts"]["drawn"]) == set(record["metrics"])
    assert record["run"]["contamination"]["share"] == 0.5


def test_a_data_set_of_hugging_face_is_the_same_wherever_it_lies(pets):
    datasets = pytest.importorskip("datasets", reason="the extra [huggingface] is not installed")
    found = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
    rows = {part: [str(path) for path in sorted((pets / part).glob("*/*.png"))] for part in ("train", "test")}
    tables = {
        part: datasets.Dataset.from_dict({"image": paths, "label": [int("dog" in p) for p in paths]}, features=found)
        for part, paths in rows.items()
    }
    for place in ("here", "there"):
        datasets.DatasetDict(tables).save_to_disk(pets.parent / place / "mine")
    (here,), (there,) = (find_sources([f"hf:{pets.parent}/{place}/mine"]) for place in ("here", "there"))
    assert (here.name, here.fingerprint) == ("mine", there.fingerprint)
    assert [(name, len(images)) for name, images in here.read().items()] == [("train", 6), ("test", 2)]
