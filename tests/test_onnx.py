"""Exported graphs say what the estimator says, run as the example runs them: without torch."""

import ast
import importlib.util
import json
import sys

import numpy as np
import open_clip
import pytest
import torch
from benchmarks.table import ROOT
from open_clip.transform import PreprocessCfg, image_transform_v2
from PIL import Image
from tests.cli.invoke import call
from tests.conftest import shape_picture

from kalmanclip import KalmanCLIP, onnx_export
from kalmanclip.cli.arguments import refuse_foreign
from kalmanclip.cli.export import OURS, Format
from kalmanclip.encoders import as_backbone
from kalmanclip.encoders.preprocess import Preprocess
from kalmanclip.errors import AdapterError, ConfigError, ModelError

for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package, reason=f"{package} is not installed")

EXAMPLE = ROOT / "examples" / "onnx_predict.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("onnx_predict", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def small(resize_mode="shortest"):
    """A backbone with random weights."""
    vision = {"image_size": 32, "patch_size": 16, "width": 32, "head_width": 16, "layers": 2}
    text = {"context_length": 16, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2}
    torch.manual_seed(0)
    model = open_clip.CLIP(24, vision, text)
    config = PreprocessCfg(size=32, resize_mode=resize_mode, interpolation="bilinear", mean=(0.5, 0.4, 0.3))
    return as_backbone(
        model, Preprocess(image_transform_v2(config, is_train=False)), open_clip.SimpleTokenizer(context_length=16)
    )


@pytest.fixture(scope="module")
def clf(shapes):
    return KalmanCLIP(small(), prior_std=0.15, options={"crops": 1}).fit(shapes)


@pytest.fixture(scope="module")
def exported(clf, tmp_path_factory):
    """The folder that the command writes."""
    folder = tmp_path_factory.mktemp("onnx")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kalmanclip.cli.export.load", lambda *_: clf)  # its backbone has no name to load it by
        assert "agrees with PyTorch" in call("export", "a", "-o", folder, "--format", "onnx").stdout
        refuse_foreign(folder, OURS[Format.onnx])  # what it wrote itself, it may replace
        assert "other things" in call("export", "a", "-o", folder, code=2).stderr
    return folder


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Files of every kind: wide, high, turned, grey, with a palette, transparent, and of nothing."""
    folder = tmp_path_factory.mktemp("pictures")
    turned, half = Image.Exif(), Image.new("L", (64, 64), 128)
    turned[0x0112] = 6
    clear = shape_picture("triangle", 903)
    clear.putalpha(half)
    noise = np.random.default_rng(0).integers(0, 256, (50, 70, 3), dtype=np.uint8)
    kinds = {
        "wide": shape_picture("circle", 901, 96).crop((0, 10, 96, 75)),
        "high": shape_picture("square", 902, 301).crop((31, 0, 250, 301)),
        "grey": shape_picture("triangle", 904).convert("L"),
        "palette": shape_picture("circle", 905).quantize(16),
        "clear": clear,
        "noise": Image.fromarray(noise),
    }
    for name, image in kinds.items():
        image.save(folder / f"{name}.png")
    shape_picture("square", 906, 97).crop((0, 0, 97, 64)).save(folder / "turned.png", exif=turned)
    return sorted(folder.iterdir())


def test_the_example_says_what_the_estimator_says(example, exported, clf, pictures):
    classify = example.OnnxClassifier(exported)
    found = classify([Image.open(file) for file in pictures])
    expected = clf.predict_full(pictures, how="mean")
    assert classify.class_names == clf.class_names_
    np.testing.assert_allclose(found["probabilities"], expected.at_mean.numpy(), atol=1e-4)
    np.testing.assert_allclose(found["ood_score"], expected.ood_score.numpy(), atol=1e-4)
    thresholds = classify.about["ood_thresholds"]
    assert thresholds == {str(rate): pytest.approx(clf.ood_threshold(rate)) for rate in (0.01, 0.05, 0.1)}
    one = classify([Image.open(pictures[0])])["probabilities"]  # any number at a time
    np.testing.assert_allclose(one, found["probabilities"][:1], atol=1e-5)


def test_the_example_as_a_program(example, exported, clf, pictures, monkeypatch, capsys):
    for rate in ("0.05", "0"):
        monkeypatch.setattr(
            sys, "argv", ["onnx_predict.py", str(exported), *map(str, pictures), "--false-alarms", rate]
        )
        example.main()
        said = [line.split("\t")[1] for line in capsys.readouterr().out.splitlines()]
        found = clf.predict_full(pictures, how="mean")
        assert said == (found.answers if rate != "0" else found.labels).tolist()


def test_the_example_needs_three_packages():
    tree = ast.walk(ast.parse(EXAMPLE.read_text(encoding="utf-8")))
    names = {alias.name for node in tree if isinstance(node, ast.Import) for alias in node.names}
    tree = ast.walk(ast.parse(EXAMPLE.read_text(encoding="utf-8")))
    names |= {node.module for node in tree if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in names} - set(sys.stdlib_module_names) == {"numpy", "onnxruntime", "PIL"}


def test_low_rank_parameters_are_in_the_graph(example, tmp_path, shapes, pictures):
    clf = KalmanCLIP(small("squash"), preset="paper", epochs=1, options={"low_rank.last_blocks": 1}).fit(shapes)
    untouched = KalmanCLIP(clf.backbone_).set_classes(clf.class_names_).predict_proba(pictures)
    assert clf.export_onnx(tmp_path) <= 1e-4
    (found,) = example.OnnxClassifier(tmp_path)([Image.open(file) for file in pictures]).values()
    np.testing.assert_allclose(found, clf.predict_proba(pictures), atol=1e-5)
    assert np.abs(found - untouched).max() > 1e-4
    assert json.loads((tmp_path / "classifier.json").read_text())["ood_thresholds"] == {}


def test_two_towers_are_one_graph(example, tmp_path, shapes, pictures):
    """The preset of computers with a GPU: untouched and adapted embeddings, and the score of the former."""
    clf = KalmanCLIP(small("squash"), preset="joint", options={"steps": 1, "crops": 1}).fit(shapes)
    assert clf.export_onnx(tmp_path) <= 1e-4
    found = example.OnnxClassifier(tmp_path)([Image.open(file) for file in pictures])
    expected = clf.predict_full(pictures, how="mean")
    np.testing.assert_allclose(found["probabilities"], expected.at_mean.numpy(), atol=1e-4)
    np.testing.assert_allclose(found["ood_score"], expected.ood_score.numpy(), atol=1e-4)


@pytest.mark.parametrize("difference", [1e-3, float("nan")])
def test_a_graph_that_says_something_else_is_not_written(clf, tmp_path, monkeypatch, difference):
    monkeypatch.setattr(onnx_export, "_write_graph", lambda path, *_: path.write_bytes(b""))
    monkeypatch.setattr(onnx_export, "_difference", lambda *_: difference)
    with pytest.raises(AdapterError, match="differs from PyTorch"):
        clf.export_onnx(tmp_path / "graph")
    assert [file.name for file in (tmp_path / "graph").iterdir()] == [".lock"]


def test_a_difference_is_found(clf, exported):
    """The graph of another classifier."""
    other = onnx_export.ImageClassifier(clf.method_)
    names = ["probabilities", "ood_score"]
    same = onnx_export._difference(exported / "classifier.onnx", other, [32, 32], names)
    other.weights = [each.roll(1, 0) for each in other.weights]
    assert same < 1e-4 < 0.01 < onnx_export._difference(exported / "classifier.onnx", other, [32, 32], names)


def test_what_cannot_be_exported_says_why(clf, tmp_path, monkeypatch):
    with pytest.raises(ModelError, match="prepares pictures"):
        onnx_export.describe_preparation(small("longest"))
    monkeypatch.setattr(torch, "__version__", "2.5.1+cpu")
    with pytest.raises(ConfigError, match=r"torch 2\.6"):
        clf.export_onnx(tmp_path)
    monkeypatch.setattr(onnx_export, "find_spec", lambda name: None if name == "onnxscript" else name)
    with pytest.raises(ConfigError, match=r"onnxscript must be installed: pip install 'kalmanclip\[onnx\]'"):
        clf.export_onnx(tmp_path)


@pytest.mark.slow
def test_the_embedded_model(example, tiny, shapes, pictures, tmp_path):
    adapter = KalmanCLIP(tiny).fit(shapes).save(tmp_path / "a")
    said = call("export", adapter, "-o", tmp_path / "graph", "--format", "onnx").stdout
    assert "LICENSE.txt" in said
    assert (tmp_path / "graph" / "LICENSE.txt").exists()
    found = example.OnnxClassifier(tmp_path / "graph")([Image.open(file) for file in pictures])
    expected = KalmanCLIP.load(adapter, tiny).predict_full(pictures, how="mean")
    np.testing.assert_allclose(found["probabilities"], expected.at_mean.numpy(), atol=1e-4)
    np.testing.assert_allclose(found["ood_score"], expected.ood_score.numpy(), atol=1e-4)
    assert [name for name in expected.answers if name != "none of these"]
