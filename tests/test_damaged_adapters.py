"""Adapters that somebody changed, hash and all: refused with a reason, before a model is opened."""

import hashlib
import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from kalmanclip import KalmanCLIP
from kalmanclip.adapter import read_adapter, read_description
from kalmanclip.errors import AdapterError


@pytest.fixture(scope="module")
def originals(tiny, shapes, tmp_path_factory):
    place = tmp_path_factory.mktemp("originals")
    residuals = KalmanCLIP(tiny, prior_std=0.15, options={"crops": 0}).fit(shapes, calibrate=1)
    head = KalmanCLIP(tiny, preset="head", epochs=1, options={"batch_size": 8, "low_rank.rank": 2}).fit(shapes)
    return {"residuals": residuals.save(place / "residuals"), "head": head.save(place / "head")}


def described(folder, change):
    """Apply a change to what adapter.json holds."""
    content = json.loads((folder / "adapter.json").read_text())
    change(content)
    (folder / "adapter.json").write_text(json.dumps(content))


def forged(folder, change):
    """Apply a change to the tensors, with the hash to match."""
    path = next(folder.glob("belief-*.safetensors"))
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    described(folder, lambda content: content["tensors"].update(sha256=digest))


def put(*path_and_value):
    *path, last, value = path_and_value

    def change(content):
        for name in path:
            content = content[name]
        content[last] = value

    return change


WRONG = {
    "no table of state": (put("state", []), r"state must be a table"),
    "backbone without hash": (put("backbone", {"name": "tiny"}), r"hash missing in it\.backbone"),
    "backbone is a number": (put("backbone", "name", 7), r"backbone\.name must be text, not 7"),
    "hash is no hash": (put("backbone", "hash", "tiny"), "no hash"),
    "classes are one text": (put("class_names", "cat"), "class_names must be a list"),
    "a class is a number": (put("class_names", [1, "b", "c"]), r"class_names\[0\] must be text"),
    "a class without letters": (put("class_names", ["a", " ", "c"]), "one without letters"),
    "no classes": (put("class_names", []), "names no classes"),
    "a template without a place": (put("templates", ["a photo"]), r"must contain \{\}"),
    "no templates": (put("templates", []), "no prompt templates"),
    "tensors without a file": (put("tensors", {"sha256": "0"}), "file missing"),
    "the file is a list": (put("tensors", "file", ["x"]), r"tensors\.file must be text"),
    "labels of other classes": (put("notes", {"labels": [1]}), "labels are not those"),
    "labels are tables": (put("notes", {"labels": [{}, {}, {}]}), "labels are not those"),
    "passes are text": (put("notes", {"epochs": "five"}), r"notes\.epochs must be a whole number"),
    "more passes done than there are": (put("notes", {"epochs": 1, "epochs_done": 2}), "passes are impossible"),
    "a method without belief": (put("method", "gda"), "unknown method, 'gda'"),
    "a method that is a list": (put("method", ["kalman"]), "method must be text"),
    "more were right than were held out": (
        put("state", "held_out", {"right": 3, "images": 2}),
        "more images were right",
    ),
    "none was held out": (put("state", "held_out", {"right": 0, "images": 0}), "more images were right"),
    "held out without a count": (put("state", "held_out", {"right": 3}), r"images missing in it\.state\.held_out"),
    "unknown conformal": (put("state", "conformal", "magic"), "conformal is none of"),
    "a config of text": (put("config", "small"), "config must be a table"),
    "prior_std is text": (put("config", {"prior_std": "wide"}), "prior_std must be a number or nothing, not 'wide'"),
    "prior_std is negative": (put("config", {"prior_std": -1.0}), "prior_std must be positive"),
    "prior_std is infinite": (put("config", {"prior_std": 1e999}), "not valid JSON: Infinity"),
    "crops are a share": (put("config", {"crops": 2.5}), "crops must be a whole number, not 2.5"),
    "crops are true": (put("config", {"crops": True}), "crops must be a whole number, not True"),
    "crop_scale has three members": (put("config", {"crop_scale": [0.1, 0.2, 0.3]}), "must have 2 members"),
}


@pytest.mark.parametrize("name", WRONG)
def test_types_and_ranges(originals, tmp_path, name, monkeypatch):
    change, message = WRONG[name]
    folder = shutil.copytree(originals["residuals"], tmp_path / "x")
    described(folder, change)
    monkeypatch.setattr("kalmanclip.estimator.load_backbone", lambda *_: pytest.fail("the backbone was opened"))
    with pytest.raises(AdapterError, match=message):
        KalmanCLIP.load(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("state", "steps", "many"), r"steps must be a whole number"),
        (put("state", "steps", -1), "impossible"),
        (put("state", "skipped", 10**6), "impossible"),
        (put("state", "covariance_scale", 0), "variance is not positive"),
        (put("state", "prior_variance", [1.0]), r"prior_variance must be a number or nothing"),
        (put("config", "low_rank", {"rank": "two"}), "rank must be a whole number"),
        (put("config", "noise", {"beta": None}), "beta must be a number"),
        (put("config", "filter", 3), "FilterConfig must be a table"),
    ],
)
def test_types_and_ranges_of_low_rank_adapters(originals, tmp_path, change, message):
    folder = shutil.copytree(originals["head"], tmp_path / "x")
    described(folder, change)
    with pytest.raises(AdapterError, match=message):
        read_description(folder)


def test_untouched_ones_are_read(originals):
    for folder in originals.values():
        read_adapter(folder)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize(("kind", "tensor"), [("residuals", "residuals.mean"), ("head", "belief.s")])
def test_tensors_that_are_not_finite(originals, tmp_path, tiny, kind, tensor, value):
    folder = shutil.copytree(originals[kind], tmp_path / "x")
    forged(folder, lambda tensors: tensors[tensor].view(-1)[:1].fill_(value))
    with pytest.raises(AdapterError, match=f"{tensor} is not finite"):
        KalmanCLIP.load(folder, tiny)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("residuals", lambda t: t.update({"residuals.mean": t["residuals.mean"][:, :5].contiguous()})),
        ("residuals", lambda t: t.pop("residuals.root")),
        ("residuals", lambda t: t.update({"residuals.strength": torch.zeros(3)})),
        ("residuals", lambda t: t.update({"residuals.strength": torch.tensor(-1.0)})),
        ("residuals", lambda t: t.update({"ood.features": t["ood.features"][:, :5].contiguous()})),
        ("residuals", lambda t: t.update({"ood.labels": t["ood.labels"].float()})),
        ("residuals", lambda t: t.update({"ood.calibration": torch.zeros(2, 2)})),
        ("residuals", lambda t: t.update({"conformal.scores": t["conformal.scores"][:1].clone()})),
        ("head", lambda t: t.update({"belief.s": t["belief.s"][:5].clone()})),
        ("head", lambda t: t.pop("belief.s")),
        ("head", lambda t: t.update({"belief.mean": torch.zeros(3, 4)})),
        ("head", lambda t: t.clear()),
    ],
)
def test_tensors_that_do_not_fit(originals, tmp_path, tiny, kind, change):
    folder = shutil.copytree(originals[kind], tmp_path / "x")
    forged(folder, change)
    with pytest.raises(AdapterError, match="damaged"):
        KalmanCLIP.load(folder, tiny)
