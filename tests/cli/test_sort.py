"""``kalmanclip sort``: pictures into folders, and nothing that was there before ever changes."""

import csv
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from tests.cli.invoke import call
from tests.conftest import full_disk, shape_picture

from kalmanclip import KalmanCLIP, sorting
from kalmanclip.errors import ConfigError, DataError
from kalmanclip.prediction import Prediction
from kalmanclip.prediction.predictive import averaged
from kalmanclip.sorting import COLUMNS, REPORT, folder_names, pictures_to_sort, read_report, sort_pictures

CLASSES = ("cat", "dog")


class Looker:
    """Knows a picture by its first bytes: cat, dog, half (neither is clear), none (of these), broken."""

    def __init__(self):
        self.seen = []

    def __call__(self, files):
        self.seen += [file.name for file in files]
        words = [file.read_bytes().split()[0].decode() for file in files]
        problems = {i: "it is\nbroken" for i, word in enumerate(words) if word == "broken"}
        p = {"cat": (0.9, 0.1), "dog": (0.2, 0.8), "half": (0.51, 0.49), "none": (0.99, 0.01)}
        good = [word for word in words if word != "broken"]
        if not good:
            return None, problems
        logits = torch.tensor([p[word] for word in good]).log()
        found = Prediction.of(CLASSES, averaged(logits.unsqueeze(0)), logits, torch.zeros_like(logits))
        strange = torch.tensor([word == "none" for word in good])
        return replace(found, is_ood=strange, ood_score=strange.float()), problems


@pytest.fixture
def photos(tmp_path):
    """Pictures as far as `Looker` looks; three have the same name, of which two are the same."""
    folder = tmp_path / "photos"
    names = ("a.png", "day/a.png", "night/A.png", "b.png", "half.png", "none.png", "broken.png")
    words = ("cat 1", "cat 2", "cat 2", "dog", "half", "none", "broken")
    for name, word in zip(names, words, strict=True):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(word)
        os.utime(folder / name, ns=(10**18, 10**18))
    return folder


def tree(folder):
    """What every file holds, or where a link leads, but for the lock and the report."""
    found = {}
    for path in folder.rglob("*"):
        if path.is_symlink() or path.is_file():
            found[path.relative_to(folder).as_posix()] = path.readlink() if path.is_symlink() else path.read_text()
    return {name: what for name, what in found.items() if name not in (REPORT, ".lock")}


def report(folder):
    with (folder / REPORT).open(newline="", encoding="utf-8") as stream:
        return {row["image"]: row for row in csv.DictReader(stream)}


def run(photos, out, look=None, **options):
    return sort_pictures(pictures_to_sort(photos, out), out, look or Looker(), CLASSES, **options)


def test_each_picture_goes_to_its_class_or_to_unsure(photos, tmp_path):
    before, out = tree(photos), tmp_path / "out"
    run(photos, out, unsure=0.6)
    assert tree(photos) == before
    names = sorted(name.casefold() for name in tree(out))
    assert names == ["cat/a (2).png", "cat/a (3).png", "cat/a.png", "dog/b.png", "unsure/half.png", "unsure/none.png"]
    rows = report(out)
    assert len(rows) == 7
    for image, row in rows.items():
        if row["place"]:
            assert (out / row["place"]).read_text() == Path(image).read_text()
            assert (out / row["place"]).stat().st_mtime_ns == 10**18  # photographs are ordered by it
    by_name = {Path(image).name: row for image, row in rows.items()}
    assert by_name["half.png"]["answer"] == "cat"
    assert (by_name["none.png"]["answer"], by_name["none.png"]["probability"]) == ("none of these", "")
    assert (by_name["broken.png"]["folder"], by_name["broken.png"]["problem"]) == ("", "it is broken")
    assert (by_name["b.png"]["probability"], by_name["b.png"]["ood_score"]) == ("0.800000", "0.000000")


def test_the_threshold_is_the_least_probability_that_is_sure(photos, tmp_path):
    for least, folder in ((0.50999, "cat"), (0.51001, "unsure")):
        rows = run(photos, tmp_path / "a", unsure=least, how="csv", settings=folder)
        assert [row.folder for row in rows if row.image.endswith("half.png")] == [folder]
    assert tree(tmp_path / "a") == {}


def test_links_lead_to_the_pictures(photos, tmp_path):
    out = tmp_path / "out"
    for _ in range(2):
        run(photos, out, how="link")
        assert len(tree(out)) == 6
        for image, row in report(out).items():
            assert not row["place"] or str((out / row["place"]).readlink()) == image
        (out / REPORT).unlink()  # the second time it finds its own links


def test_nothing_that_is_there_is_replaced(photos, tmp_path):
    out = tmp_path / "out"
    (out / "cat").mkdir(parents=True)
    (out / "dog").mkdir()
    (out / "cat" / "a.png").write_text("mine")
    (out / "dog" / "b.png").symlink_to(photos / "gone.png")
    run(photos, out)
    assert (out / "cat" / "a.png").read_text() == "mine"
    assert (out / "dog" / "b.png").is_symlink()
    assert (out / "dog" / "b (2).png").read_text() == "dog"


def test_a_second_run_looks_at_what_is_new_and_leaves_the_rest_alone(photos, tmp_path):
    out, look = tmp_path / "out", Looker()
    run(photos, out)
    (out / "dog" / "b.png").rename(out / "cat" / "b.png")  # somebody knows better
    (out / "cat" / "a.png").unlink()
    (photos / "new.png").write_text("dog")
    (photos / "half.png").write_text("cat : painted over")
    kept = tree(out)
    run(photos, out, look)
    assert sorted(look.seen) == ["broken.png", "half.png", "new.png"]
    assert tree(out) == kept | {"dog/new.png": "dog", "cat/half (2).png": "cat : painted over"}


def test_what_was_interrupted_is_finished(photos, tmp_path, monkeypatch):
    """Killed between putting pictures somewhere and the report: nothing is there twice in the end."""
    monkeypatch.setattr(sorting, "_AT_ONCE", 2)
    whole, out = tmp_path / "whole", tmp_path / "out"
    run(photos, whole)
    parts = iter([True, False])

    class Stopped(BaseException):
        pass

    def dies(output, rows):
        rows = list(rows)
        if any(row.place for row in rows) and not next(parts):
            raise Stopped
        written(output, rows)

    written = sorting.write_report
    monkeypatch.setattr(sorting, "write_report", dies)
    with pytest.raises(Stopped):
        run(photos, out)
    assert 2 < len(tree(out)) < 6
    assert len(report(out)) == 2
    monkeypatch.setattr(sorting, "write_report", written)
    run(photos, out)
    assert tree(out) == tree(whole)


def test_a_full_disk_leaves_no_half_picture(photos, tmp_path):
    out = tmp_path / "out"
    (photos / "b.png").write_text("dog " + "." * 5000)
    with full_disk(3000), pytest.raises(DataError, match="copy"):
        run(photos, out)
    assert "dog/b.png" not in tree(out)
    assert not list(out.rglob(".tmp*"))
    run(photos, out)
    assert len((out / "dog" / "b.png").read_text()) == 5004


def test_disks_without_hard_links(photos, tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    run(photos, tmp_path / "out")
    assert len(tree(tmp_path / "out")) == 6


def test_a_dry_run_writes_nothing(photos, tmp_path):
    rows = run(photos, tmp_path / "out", dry_run=True)
    assert sorted(row.folder for row in rows) == ["", "cat", "cat", "cat", "cat", "dog", "unsure"]
    assert not (tmp_path / "out").exists()


def test_first_the_report_then_the_copies(photos, tmp_path):
    out, look = tmp_path / "out", Looker()
    run(photos, out, how="csv")
    assert tree(out) == {}
    run(photos, out, look)
    assert look.seen == ["broken.png"]  # the others' answers are in the report
    assert len(tree(out)) == 6


def test_an_output_belongs_to_one_adapter_and_its_thresholds(photos, tmp_path):
    out = tmp_path / "out"
    run(photos, out, how="csv", settings="one")
    run(photos, out, settings="two")  # nothing was put anywhere yet
    with pytest.raises(ConfigError, match="new folder"):
        run(photos, out, settings="one")
    (out / REPORT).write_text("my,table\n")
    with pytest.raises(ConfigError, match=r"sorted\.csv is no report"):
        run(photos, out, settings="two")
    assert (out / REPORT).read_text() == "my,table\n"


def test_an_output_inside_the_pictures_is_not_sorted_itself(photos, tmp_path):
    out = photos / "sorted"
    run(photos, out)
    look = Looker()
    run(photos, out, look)
    assert look.seen == ["broken.png"]
    with pytest.raises(ConfigError, match="into itself"):
        pictures_to_sort(photos, photos)
    assert len(pictures_to_sort(out / "unsure", out)) == 1  # those of one folder can be sorted on


def test_names_that_are_not_text_survive(photos, tmp_path):
    try:
        (photos / os.fsdecode(b'\xff, "x"\n.png')).write_text("dog")
    except OSError:
        pytest.skip("this disk takes UTF-8 names only")
    run(photos, tmp_path / "out")
    rows = read_report(tmp_path / "out", "")
    assert (tmp_path / "out" / os.fsdecode(b'dog/\xff, "x"\n.png')).read_text() == "dog"
    assert str(photos / os.fsdecode(b'\xff, "x"\n.png')) in rows


@pytest.mark.parametrize(
    ("names", "folders"),
    [
        (["golden retriever"], ["golden retriever"]),
        (["unsure", "Unsure?"], ["unsure (2)", "Unsure_"]),
        (["a/b", "a:b", "A*B"], ["a_b", "a_b (2)", "A_B (3)"]),
        (["..", ".", "../../x", ".hidden", " "], ["_", "_ (2)", "_.._.._x", "_.hidden", "_ (3)"]),
        (["CON", "lpt1.txt", "console"], ["_CON", "_lpt1.txt", "console"]),
    ],
)
def test_folders_of_classes(names, folders):
    assert list(folder_names(names).values()) == folders
    assert list(folder_names(names)) == names


def test_long_names_of_classes_are_cut():
    assert len({name: len(name) for name in folder_names(["鳥" * 300, "鳥" * 301]).values()}) == 2
    assert max(len(name.encode()) for name in folder_names(["鳥" * 300, "鳥" * 301]).values()) < 255


# with a real adapter


@pytest.fixture(scope="module")
def adapter(tiny, shapes, tmp_path_factory):
    return KalmanCLIP(tiny, prior_std=0.15, options={"crops": 1}).fit(shapes).save(tmp_path_factory.mktemp("a") / "a")


def test_the_command_sorts_as_predict_says(adapter, noise, tmp_path):
    inbox, out = tmp_path / "inbox", tmp_path / "out"
    inbox.mkdir()
    for c, shape in enumerate(("circle", "square", "triangle")):
        shape_picture(shape, 5000 + c).save(inbox / f"{shape}.png")
    Image.open(noise / "0.png").save(inbox / "noise.png")
    (inbox / "broken.png").write_text("nothing")
    done = call("sort", inbox, adapter, "-o", out, "--unsure", 0.7)
    assert "1 cannot be read" in done.stdout
    assert "broken.png" in done.stderr
    said = json.loads(call("predict", adapter, inbox, "--json", "--skip-bad").stdout)
    rows = report(out)
    assert len(said) == 4
    for answer in said:
        row = rows[answer["image"]]
        sure = answer["probability"] is not None and answer["probability"] >= 0.7
        assert row["folder"] == (answer["class"] if sure else "unsure")
        assert row["answer"] == answer["class"]
        assert float(row["ood_score"]) == pytest.approx(answer["ood_score"], abs=1e-5)
        assert (out / row["place"]).exists()
    assert rows[str(inbox / "noise.png")]["folder"] == "unsure"
    assert tuple(next(iter(rows.values()))) == COLUMNS
    assert "another adapter" in call("sort", inbox, adapter, "-o", out, code=2).stderr
    assert "0 to 1" in call("sort", inbox, adapter, "-o", out, "--unsure", 2, code=2).stderr
    dry = call("sort", inbox, adapter, "-o", tmp_path / "dry", "--dry-run", "--false-alarms", 0, "--unsure", 0).stdout
    assert "unsure" not in dry
    assert not (tmp_path / "dry").exists()
