"""Pairs from a list to recall: `fit`, `retrieve`, and the Python functions under them."""

import csv
import json
import re
import sys

import numpy as np
import pytest
import torch
from tests.cli.invoke import call
from tests.conftest import shape_picture
from tests.methods.test_baselines import QUICK

from kalmanclip import KalmanCLIP
from kalmanclip.data import CaptionedImages, read_caption_splits, task_from_pairs
from kalmanclip.errors import DataError
from kalmanclip.methods import make_method
from kalmanclip.retrieval import fit_pairs, learnable, measure_recall, update_pairs

PHRASES = ("a drawing of a {}", "one {}, seen_from {{above}}", "here is a {}")
SHAPES = ("circle", "square", "triangle")


def description(folder):
    return json.loads((folder / "adapter.json").read_text())


def write(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Six pictures of each shape: four to learn from, two to measure on, in three phrasings."""
    folder = tmp_path_factory.mktemp("pairs")
    rows = []
    for c, shape in enumerate(SHAPES):
        for i in range(6):
            shape_picture(shape, 100 * c + i).save(folder / f"{shape}{i}.png")
            caption = PHRASES[i % 3].format(shape)
            rows.append({"image": f"{shape}{i}.png", "caption": caption, "split": "train" if i < 4 else "test"})
    write(folder / "pairs.csv", rows)
    (folder / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    labelled = [
        {"image": r["image"], "class": r["image"][:-5], "caption": r["caption"], "split": "train"} for r in rows
    ]
    write(folder / "classes.csv", labelled)
    write(folder / "classes_only.csv", [{"image": r["image"], "class": r["class"]} for r in labelled])
    write(folder / "held_out.csv", [row for row in rows if row["split"] == "test"])
    write(folder / "whole.csv", [{"image": r["image"], "caption": r["caption"]} for r in rows])
    return folder


@pytest.fixture(scope="module")
def adapter(folder, tmp_path_factory):
    """A finished adapter; tests must not change it."""
    output = tmp_path_factory.mktemp("fitted") / "pairs.adapter"
    text = call("fit", folder / "pairs.csv", "-o", output, "--epochs", 2).stdout
    assert "captions" in text
    assert re.search(r"images +12", text)
    assert "kalmanclip retrieve" in text
    return output


def test_fit_learns_captions_as_they_are(adapter):
    about = description(adapter)
    assert about["config"]["observation"] == "contrastive"
    assert about["templates"] == ["{}"]
    assert "one circle, seen_from {above}" in about["class_names"]
    assert len(about["class_names"]) == 9


def test_another_observation_can_be_chosen(folder, tmp_path):
    call("fit", folder / "pairs.jsonl", "-o", tmp_path / "a", "--epochs", 1, "--observation", "bounded")
    assert description(tmp_path / "a")["config"]["observation"] == "bounded"
    (tmp_path / "options.json").write_text('{"observation": "pairwise", "epochs": 1}')
    call("fit", folder / "pairs.csv", "-o", tmp_path / "b", "--config", tmp_path / "options.json")
    assert description(tmp_path / "b")["config"]["observation"] == "pairwise"


def test_a_list_with_classes_is_about_classes(folder, tmp_path):
    text = call("fit", folder / "classes.csv", "-o", tmp_path / "a", "--crops", 0, "--shots", 2).stdout
    about = description(tmp_path / "a")
    assert about["class_names"] == list(SHAPES)
    assert about["method"] == "class_residuals"
    assert "kalmanclip evaluate" in text
    call("fit", folder / "classes.csv", "-o", tmp_path / "b", "--preset", "head", "--epochs", 1, "--shots", 2)
    assert description(tmp_path / "b")["config"]["observation"] == "bounded"


def test_captions_have_no_residuals(folder, tmp_path):
    for words, says in ((["--preset", "default"], "residuals"), (["--crops", 2], "Unknown option '--crops'")):
        message = call("fit", folder / "pairs.csv", "-o", tmp_path / "a", *words, code=2).stderr
        assert says in message
    assert not (tmp_path / "a").exists()
    call("fit", folder / "pairs.csv", "-o", tmp_path / "b", "--preset", "head", "--epochs", 1, "--prior-std", 0.2)
    config = description(tmp_path / "b")["config"]
    assert (config["observation"], config["prior_std"]) == ("bounded", 0.2)


def test_resumed_is_the_same_as_uninterrupted(folder, adapter, tmp_path, monkeypatch):
    from safetensors.numpy import load_file

    output, save = tmp_path / "stopped", KalmanCLIP.save

    def stop(self, place, notes):
        save(self, place, notes)
        raise KeyboardInterrupt

    monkeypatch.setattr(KalmanCLIP, "save", stop)
    call("fit", folder / "pairs.csv", "-o", output, "--epochs", 2, code=130)
    monkeypatch.setattr(KalmanCLIP, "save", save)
    call("fit", folder / "pairs.csv", "-o", output, "--resume")
    one, other = (load_file(f / description(f)["tensors"]["file"]) for f in (adapter, output))
    assert one.keys() == other.keys()
    assert all(np.array_equal(one[name], other[name]) for name in one)


def test_resume_notices_another_caption(folder, adapter, tmp_path):
    rows = [{"image": f"{s}{i}.png", "caption": f"a {s} {i}"} for s in SHAPES for i in range(6)]
    write(folder / "other.csv", rows)
    result = call("fit", folder / "other.csv", "-o", adapter, "--resume", code=0)
    assert "finished" in result.stdout
    about = description(adapter)
    about["notes"]["epochs_done"] = 1
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in adapter.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    (copy / "adapter.json").write_text(json.dumps(about))
    assert "other classes" in call("fit", folder / "other.csv", "-o", copy, "--resume", code=3).stderr
    with (folder / "pairs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    rows[3]["caption"] = rows[1]["caption"]  # the same captions in all, but one image has another
    write(folder / "swapped.csv", rows)
    assert "not those" in call("fit", folder / "swapped.csv", "-o", copy, "--resume", code=3).stderr


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("held_out.csv", "held_out.csv has no split 'train'; it has test"),
        ("nothing.jsonl", "there is no list"),
        ("circle0.png", "neither a folder nor a list"),
        ("nowhere", "nowhere does not exist"),
    ],
)
def test_fit_refuses(folder, tmp_path, name, problem):
    assert problem in call("fit", folder / name, "-o", tmp_path / "a", code=3).stderr
    assert not (tmp_path / "a").exists()


def test_templates_do_not_go_with_captions(folder, tmp_path):
    result = call("fit", folder / "pairs.csv", "-o", tmp_path / "a", "--template", "a {}", code=2)
    assert "Captions are prompts themselves" in result.stderr


def test_retrieve_for_people(folder, adapter):
    text = call("retrieve", folder / "pairs.csv", "--adapter", adapter, "--k", "1,2").stdout
    assert re.search(r"pairs +6", text)
    assert re.search(r"texts +6", text)
    assert len(re.findall(r"(?:image to text|text to image) +[12] +(?:16\.7|33\.3) %", text)) == 4
    assert re.search(r"pairs +18", call("retrieve", folder / "whole.csv").stdout)
    assert re.search(r"pairs +12", call("retrieve", folder / "pairs.csv", "--part", "train").stdout)


def test_retrieve_for_programs(folder, adapter):
    result = json.loads(call("retrieve", folder / "pairs.jsonl", "--adapter", adapter, "--json").stdout)
    assert [result[name] for name in ("pairs", "images", "texts")] == [6, 6, 6]
    assert result["guessing"]["image_to_text"] == pytest.approx({"1": 1 / 6, "5": 5 / 6, "10": 1})
    assert result["tuned"]["text_to_image"]["10"] == 1
    assert "tuned" not in json.loads(call("retrieve", folder / "pairs.csv", "--json").stdout)


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        (["pairs.csv", "--k", "1,x"], 2, "--k takes whole numbers"),
        (["pairs.csv", "--k", "0"], 2, "at least 1"),
        (["pairs.csv", "--part", "val"], 3, "no split 'val'; it has train and test"),
        (["pairs.csv", "--model", "tiny", "--adapter", "x"], 2, "not both"),
        (["pairs.txt"], 3, "not a list"),
        (["nothing.csv"], 3, "there is no list"),
        (["classes_only.csv"], 3, "no value for caption or text"),
        (["pairs.csv", "--adapter", "nowhere"], 5, "not an adapter folder"),
        (["hf:./no/such/folder"], 3, "no file or folder"),
    ],
)
def test_refused(folder, words, code, problem):
    if words[0].startswith("hf:"):
        pytest.importorskip("datasets")
    place = words[0] if words[0].startswith("hf:") else folder / words[0]
    assert problem in call("retrieve", place, *words[1:], code=code).stderr


def test_without_the_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)  # importing it fails
    for words in (["retrieve", "hf:owner/name"], ["fit", "hf:owner/name", "-o", tmp_path / "a"]):
        assert 'pip install "kalmanclip[huggingface]"' in call(*words, code=2).stderr


def test_from_hugging_face(folder, tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets", reason="the package `datasets` (extra [huggingface]) is not installed")
    pairs = read_caption_splits(folder / "pairs.csv")
    parts = {}
    for part in ("train", "test"):
        chosen = getattr(pairs, part)
        rows = {"image": [str(source) for source in chosen.sources], "caption": chosen.captions}
        features = datasets.Features({"image": datasets.Image(), "caption": datasets.Value("string")})
        parts[part] = datasets.Dataset.from_dict(rows, features=features)
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "saved")
    call("fit", f"hf:{tmp_path / 'saved'}", "-o", tmp_path / "a", "--epochs", 1)
    found = call("retrieve", f"hf:{tmp_path / 'saved'}", "--adapter", tmp_path / "a", "--json").stdout
    listed = call("retrieve", folder / "pairs.csv", "--adapter", tmp_path / "a", "--json").stdout
    assert json.loads(found) == json.loads(listed)


# --- in Python


def test_recall_is_that_of_the_models_own_embeddings(folder, tiny):
    pairs = read_caption_splits(folder / "whole.csv").train
    found = measure_recall(pairs, tiny, [1, 3])
    texts = list(dict.fromkeys(pairs.captions))
    with torch.no_grad():
        from kalmanclip.data import load_image

        pixels = torch.stack([tiny.preprocess(load_image(source)) for source in pairs.sources])
        images = torch.nn.functional.normalize(tiny.model.encode_image(pixels), dim=-1)
        S = images @ torch.nn.functional.normalize(tiny.model.encode_text(tiny.tokenizer(texts)), dim=-1).T
    for k in (1, 3):
        hits = [texts.index(c) in row.topk(k).indices.tolist() for c, row in zip(pairs.captions, S, strict=True)]
        assert found.zero_shot.image_to_text[k] == pytest.approx(sum(hits) / len(hits))
    assert found.tuned is None


def test_captions_cut_to_the_same_tokens_are_one_to_learn_and_tied_to_measure(folder, tiny):
    long = "a very long caption " * 60
    images = read_caption_splits(folder / "whole.csv").train.sources[:3]
    pairs = CaptionedImages(images, [long + "of a cat", long + "of a dog", "a short one"])
    task = learnable(pairs, tiny)
    assert task.train.labels == [0, 0, 1]
    found = measure_recall(pairs, tiny, [1, 2]).zero_shot
    assert found.texts == 3
    assert (2 * 3 * found.image_to_text[1]) % 1 == pytest.approx(0)  # halves: tied
    with pytest.raises(DataError, match="at least two"):
        learnable(pairs.subset([0, 1]), tiny)


def test_goes_on_learning_and_saves(folder, tiny, tmp_path):
    pairs = read_caption_splits(folder / "pairs.csv")
    clf = fit_pairs(pairs.train, tiny, epochs=1)
    steps = clf.method_.filter.steps
    update_pairs(clf, pairs.test)
    assert clf.method_.filter.steps > steps
    assert len(clf.class_names_) == 6
    clf.save(tmp_path / "a")
    again = KalmanCLIP.load(tmp_path / "a", tiny)
    assert measure_recall(pairs.train, again) == measure_recall(pairs.train, clf)


@pytest.mark.parametrize("name", list(QUICK))
def test_every_method_learns_from_pairs(folder, tiny, name):
    pairs = read_caption_splits(folder / "pairs.csv").train
    method = make_method(name, tiny, QUICK[name])
    method.fit(task_from_pairs(pairs))
    logits = method.logits(pairs.sources[:2])
    assert logits.shape == (2, 9)
    assert torch.isfinite(logits).all()


def test_nothing_to_measure(tiny):
    with pytest.raises(DataError, match="no pairs"):
        measure_recall(CaptionedImages([], []), tiny)


def test_learning_from_pairs_helps_held_out_retrieval(shared_data):
    """EuroSAT: other images, and captions in phrasings that training never showed."""
    from benchmarks.pairs import NEW, measuring, training

    root = shared_data / "eurosat"
    clf = fit_pairs(training(root, seed=1), "tiny", seed=1)
    found = measure_recall(measuring(root, "val", NEW), clf)
    for k in (1, 5):
        assert found.tuned.image_to_text[k] > found.zero_shot.image_to_text[k] + 0.1
    assert found.tuned.text_to_image[10] > found.zero_shot.text_to_image[10]
