"""The front door: scikit-learn's habits, files, merging."""

import json

import numpy as np
import open_clip
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from kalmanclip import KalmanCLIP
from kalmanclip.data import read_folder
from kalmanclip.encoders import LowRankConfig, load_backbone
from kalmanclip.errors import AdapterError, ConfigError, DataError, ImageError
from kalmanclip.methods import KalmanConfig

OPTIONS = {"epochs": 2, "batch_size": 4, "low_rank": LowRankConfig(rank=2)}


@pytest.fixture(scope="module")
def fitted(tiny, shapes):
    return KalmanCLIP(tiny, **OPTIONS).fit(shapes)


def test_fit_from_a_folder_lists_and_arrays_is_the_same(tiny, shapes, fitted):
    images = read_folder(shapes)
    names = [images.class_names[i] for i in images.labels]
    pictures = [Image.open(p) for p in images.sources]
    arrays = np.stack([np.asarray(p) for p in pictures])
    for sources, labels, class_names in (
        (images, None, None),
        (images.sources, names, None),
        (pictures, names, None),
        (arrays, images.labels, images.class_names),
    ):
        again = KalmanCLIP(tiny, **OPTIONS).fit(sources, labels, class_names)
        assert again.classes_ == ["circle", "square", "triangle"]
        assert torch.equal(again.method.encoder.theta, fitted.method.encoder.theta)


def test_predict_and_score(fitted, shapes):
    probabilities = fitted.predict_proba(shapes)
    assert probabilities.shape == (15, 3)
    assert np.allclose(probabilities.sum(axis=1), 1, atol=1e-5)
    labels = fitted.predict(shapes)
    truth = [p.parent.name for p in read_folder(shapes).sources]
    assert fitted.score(shapes) == pytest.approx(np.mean(labels == truth))
    assert fitted.score(read_folder(shapes).sources, truth) == fitted.score(shapes)
    assert fitted.predict([shapes / "circle" / "0.png"]).shape == (1,)
    assert fitted.predict(shapes / "circle" / "0.png").shape == (1,)
    assert fitted.predict([]).shape == (0,)


def test_before_fit_it_is_zero_shot(tiny, shapes):
    clf = KalmanCLIP(tiny).set_classes(["circle", "square", "triangle"])
    image = tiny.preprocess(Image.open(shapes / "circle" / "0.png").convert("RGB"))
    with torch.no_grad():
        images = torch.nn.functional.normalize(tiny.model.encode_image(image[None]), dim=-1)
        T = torch.nn.functional.normalize(
            tiny.model.encode_text(tiny.tokenizer([f"a photo of a {c}." for c in clf.classes_])), dim=-1
        )
        expected = (tiny.logit_scale * images @ T.T).softmax(dim=-1).numpy()
    assert np.allclose(clf.predict_proba(shapes / "circle" / "0.png"), expected, atol=1e-5)


def test_save_load_continue_equals_an_uninterrupted_run(tiny, shapes, tmp_path):
    for options in ({}, {"observation": "log_likelihood"}, {"belief": "low_rank", "belief_options": {"rank": 3}}):
        whole = KalmanCLIP(tiny, **OPTIONS, **options).fit(shapes)
        whole.save(tmp_path / "half")
        whole.partial_fit(shapes, epochs=2)
        resumed = KalmanCLIP.load(tmp_path / "half", tiny)
        resumed.partial_fit(shapes, epochs=2)
        assert torch.equal(resumed.method.encoder.theta, whole.method.encoder.theta)
        theirs, ours = (m.method.filter.belief.marginal_variance() for m in (whole, resumed))
        assert torch.equal(theirs, ours)


def test_two_passes_at_once_equal_two_in_turn(tiny, shapes):
    once = KalmanCLIP(tiny, **{**OPTIONS, "epochs": 3}).fit(shapes)
    turns = KalmanCLIP(tiny, **{**OPTIONS, "epochs": 1}).fit(shapes).partial_fit(shapes).partial_fit(shapes)
    assert torch.equal(once.method.encoder.theta, turns.method.encoder.theta)


def test_partial_fit_adds_classes(tiny, shapes, tmp_path):
    images = read_folder(shapes)
    two = images.subset(range(10))
    clf = KalmanCLIP(tiny, **OPTIONS).fit(two.sources, [images.class_names[i] for i in two.labels])
    assert clf.classes_ == ["circle", "square"]
    (tmp_path / "new" / "triangle").mkdir(parents=True)
    (tmp_path / "new" / "square").mkdir()
    for c, i in (("triangle", 0), ("triangle", 1), ("square", 0)):
        Image.open(shapes / c / f"{i}.png").save(tmp_path / "new" / c / f"{i}.png")
    clf.partial_fit(tmp_path / "new")
    assert clf.classes_ == ["circle", "square", "triangle"]
    assert clf.predict_proba(shapes).shape == (15, 3)


@pytest.mark.parametrize("placement", ["head", "towers"])
def test_merge_gives_the_same_logits(tiny, shapes, placement):
    config = LowRankConfig(placement=placement, rank=2, last_blocks=1 if placement == "towers" else None)
    clf = KalmanCLIP(tiny, epochs=1, low_rank=config).fit(shapes)
    model = clf.merge()
    images = torch.stack([tiny.preprocess(Image.open(p).convert("RGB")) for p in read_folder(shapes).sources])
    tokens = tiny.tokenizer([f"a photo of a {c}." for c in clf.classes_])
    with torch.no_grad():
        merged, _ = model.get_logits(images, tokens)
    assert torch.allclose(merged, clf.method.logits(read_folder(shapes).sources), atol=1e-3)


def test_export_is_read_by_open_clip_alone(fitted, shapes, tmp_path):
    folder = fitted.export(tmp_path / "plain")
    model, _, preprocess = open_clip.create_model_and_transforms(f"local-dir:{folder}")
    model.eval()
    tokenizer = open_clip.get_tokenizer(f"local-dir:{folder}")
    path = shapes / "square" / "1.png"
    with torch.no_grad():
        logits, _ = model.get_logits(
            preprocess(Image.open(path).convert("RGB"))[None],
            tokenizer([f"a photo of a {c}." for c in fitted.classes_]),
        )
    assert np.allclose(logits.softmax(dim=-1).numpy(), fitted.predict_proba(path), atol=1e-4)
    assert json.loads((folder / "classes.json").read_text())["class_names"] == fitted.classes_
    again = load_backbone(f"local-dir:{folder}")
    zero_shot = KalmanCLIP(again).set_classes(fitted.classes_)
    assert np.allclose(zero_shot.predict_proba(path), fitted.predict_proba(path), atol=1e-4)


def test_the_adapter_round_trips(fitted, tiny, tmp_path, shapes):
    folder = fitted.save(tmp_path / "a" / "shapes.adapter")
    again = KalmanCLIP.load(folder)  # finds 'tiny' by itself
    assert again.config == fitted.config
    assert again.classes_ == fitted.classes_
    assert np.array_equal(again.predict_proba(shapes), fitted.predict_proba(shapes))
    assert sorted(p.suffix for p in folder.iterdir()) == [".json", ".safetensors"]


def test_saving_again_replaces_and_leaves_nothing_behind(fitted, tiny, shapes, tmp_path):
    folder = fitted.save(tmp_path / "x")
    KalmanCLIP(tiny, **{**OPTIONS, "seed": 5}).fit(shapes).save(folder)
    assert len(list(folder.iterdir())) == 2
    assert KalmanCLIP.load(folder, tiny).config.seed == 5


def test_an_interrupted_save_leaves_the_old_adapter(fitted, tiny, shapes, tmp_path, monkeypatch):
    folder = fitted.save(tmp_path / "x")
    other = KalmanCLIP(tiny, **{**OPTIONS, "seed": 5}).fit(shapes)

    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("kalmanclip.adapter.write_json_atomic", stop)
    with pytest.raises(KeyboardInterrupt):
        other.save(folder)
    assert KalmanCLIP.load(folder, tiny).config.seed == fitted.config.seed


def damage(folder, how):
    tensors = next(folder.glob("belief-*.safetensors"))
    description = folder / "adapter.json"
    if how == "flipped byte":
        data = bytearray(tensors.read_bytes())
        data[-1] ^= 1
        tensors.write_bytes(bytes(data))
    elif how == "cut off":
        tensors.write_bytes(tensors.read_bytes()[:1000])
    elif how == "tensors gone":
        tensors.unlink()
    elif how == "json cut off":
        description.write_text(description.read_text()[:50])
    elif how == "json gone":
        description.unlink()
    else:
        content = json.loads(description.read_text())
        content.update(how)
        description.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("flipped byte", "not what was saved"),
        ("cut off", "not what was saved"),
        ("tensors gone", "missing"),
        ("json cut off", "adapter.json"),
        ("json gone", "not an adapter folder"),
        ({"format": "other"}, "does not describe"),
        ({"version": 99}, "format version 99"),
        ({"config": {"colour": 3}}, "Unknown option 'colour'"),
        ({"tensors": {"file": "../elsewhere.safetensors", "sha256": ""}}, "missing"),
        ({"backbone": {"name": "tiny", "hash": "0" * 64}}, "was made for backbone 'tiny'"),
    ],
)
def test_damaged_adapters(fitted, tiny, tmp_path, how, words):
    folder = fitted.save(tmp_path / "x")
    damage(folder, how)
    with pytest.raises(AdapterError, match=words):
        KalmanCLIP.load(folder, tiny)


def test_an_adapter_for_another_backbone(fitted, tmp_path):
    folder = fitted.save(tmp_path / "x")
    with pytest.raises(AdapterError, match=r"was made for backbone 'tiny'.*model='tiny'"):
        KalmanCLIP.load(folder, "tiny:random")


def test_nothing_in_the_files_executes(fitted, tmp_path):
    folder = fitted.save(tmp_path / "x")
    tensors = load_file(next(folder.glob("*.safetensors")))  # safetensors, not pickle
    assert {"belief.mean", "belief.s"} <= set(tensors)
    json.loads((folder / "adapter.json").read_text())


def test_no_write_permission(fitted, tmp_path):
    blocker = tmp_path / "file"
    blocker.write_text("in the way")
    with pytest.raises(AdapterError, match="Cannot create"):
        fitted.save(blocker / "adapter")
    with pytest.raises(AdapterError, match="Cannot create"):
        fitted.export(blocker / "model")
    with pytest.raises(AdapterError, match="fit first"):
        KalmanCLIP("tiny").save(tmp_path / "y")


def test_bad_calls(tiny, shapes):
    with pytest.raises(ConfigError, match=r"colour.*Known options: .*epochs"):
        KalmanCLIP(tiny, colour="red")
    with pytest.raises(ConfigError, match="needs labels"):
        KalmanCLIP(tiny).fit([shapes / "circle" / "0.png"])
    with pytest.raises(ConfigError, match="a folder's labels"):
        KalmanCLIP(tiny).fit(shapes, labels=["a"])
    with pytest.raises(ConfigError, match=r"\{\}"):
        KalmanCLIP(tiny, templates=["a photo"])
    with pytest.raises(DataError):
        KalmanCLIP(tiny).fit(shapes / "nowhere")
    with pytest.raises(ConfigError, match="no classes"):
        KalmanCLIP(tiny).predict(shapes)


def test_an_unreadable_image_is_named(tiny, shapes, tmp_path):
    for c in ("a", "b"):
        (tmp_path / c).mkdir()
        Image.open(shapes / "circle" / "0.png").save(tmp_path / c / "0.png")
    (tmp_path / "b" / "broken.jpg").write_bytes(b"\xff\xd8\xff no picture")
    with pytest.raises(ImageError, match=r"broken\.jpg"):
        KalmanCLIP(tiny, **OPTIONS).fit(tmp_path)


def test_odd_images_give_the_result_of_their_plain_twin(fitted, shapes, tmp_path):
    """Grey, palette, CMYK, alpha, one pixel: all of them classified, and equal to the same pixels as plain RGB."""
    plain = Image.open(shapes / "square" / "0.png").convert("RGB")
    grey = plain.convert("L")
    versions = {
        "grey.png": (grey, grey.convert("RGB")),
        "palette.png": (plain.quantize(16), plain.quantize(16).convert("RGB")),
        "cmyk.tif": (plain.convert("CMYK"), plain.convert("CMYK").convert("RGB")),
        "alpha.png": (plain.convert("RGBA"), plain),
        "dot.png": (Image.new("RGB", (1, 1), "blue"), Image.new("RGB", (1, 1), "blue")),
    }
    for name, (odd, twin) in versions.items():
        odd.save(tmp_path / name)
        assert np.allclose(fitted.predict_proba([tmp_path / name]), fitted.predict_proba([twin]), atol=1e-3), name


def test_config_and_single_options_combine(tiny):
    clf = KalmanCLIP(tiny, KalmanConfig(epochs=7, seed=3), seed=4)
    assert (clf.config.epochs, clf.config.seed) == (7, 4)


def test_shots(tiny, shapes):
    clf = KalmanCLIP(tiny, **OPTIONS).fit(shapes, shots=2)
    assert clf.method.filter.steps == 2 * 2  # six images in batches of four, twice


def test_partial_fit_understands_other_spellings_lists_and_single_classes(tiny, shapes, tmp_path):
    clf = KalmanCLIP(tiny, **OPTIONS).fit(shapes)
    picture = Image.open(shapes / "circle" / "0.png")
    clf.partial_fit([picture, picture], ["Circle", "red_disc"])
    assert clf.classes_ == ["circle", "square", "triangle", "red disc"]
    clf.partial_fit([picture], [0])  # numbers count in the classes so far
    (tmp_path / "only" / "blue_disc").mkdir(parents=True)
    picture.save(tmp_path / "only" / "blue_disc" / "0.png")
    clf.partial_fit(tmp_path / "only")
    assert clf.classes_[-1] == "blue disc"
    clf.partial_fit(read_folder(shapes))
    assert len(clf.classes_) == 5
    with pytest.raises(DataError):
        clf.partial_fit([picture], [5])


def test_partial_fit_without_fit_starts_from_the_prior(tiny, shapes):
    online = KalmanCLIP(tiny, **{**OPTIONS, "epochs": 1}).partial_fit(shapes)
    batch = KalmanCLIP(tiny, **{**OPTIONS, "epochs": 1}).fit(shapes)
    assert torch.equal(online.method.encoder.theta, batch.method.encoder.theta)


def test_one_image_is_not_taken_for_many(fitted, shapes):
    picture = Image.open(shapes / "circle" / "0.png").convert("RGB")
    assert fitted.predict(picture).shape == (1,)
    assert fitted.predict(np.stack([np.asarray(picture)] * 2)).shape == (2,)
    for one in (np.asarray(picture), torch.zeros(3, 32, 32), np.zeros((32, 32), np.uint8)):
        with pytest.raises(DataError, match=r"give a list, \[image\]"):
            fitted.predict(one)
    with pytest.raises(DataError, match="not NoneType"):
        fitted.predict(None)


def test_a_failed_fit_leaves_everything_as_it_was(tiny, shapes, tmp_path):
    clf = KalmanCLIP(tiny, **OPTIONS).fit(shapes)
    before = clf.predict_proba(shapes)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "broken.jpg").write_bytes(b"no picture")
    for learn in (clf.fit, clf.partial_fit):
        with pytest.raises(ImageError):
            learn(tmp_path)
        assert clf.classes_ == ["circle", "square", "triangle"]
        assert np.array_equal(clf.predict_proba(shapes), before)


def test_classes_that_the_model_cannot_tell_apart(tiny):
    long = "very " * 90
    with pytest.raises(DataError, match="same prompt"):
        KalmanCLIP(tiny).set_classes([long + "old", long + "new"])
    for nothing in ([], "cat"):
        with pytest.raises(DataError, match="list of at least one name"):
            KalmanCLIP(tiny).set_classes(nothing)


def test_options_that_would_break_later_are_refused_now(tiny, shapes):
    for bad in ({"epochs": 1.5}, {"batch_size": 2.5}, {"seed": "x"}, {"low_rank": {"rank": 4}}):
        with pytest.raises(ConfigError):
            KalmanCLIP(tiny, **bad)
    with pytest.raises(ConfigError, match="larger than the 512 dimensions"):
        KalmanCLIP(tiny, low_rank=LowRankConfig(rank=513))
    with pytest.raises(ConfigError, match="prior_std"):
        KalmanCLIP(tiny, **OPTIONS, prior_std=1e30).fit(shapes)
    with pytest.raises(ConfigError, match="GiB"):
        KalmanCLIP(tiny, belief="dense").fit(shapes)
    with pytest.raises(ConfigError, match="at least 1"):
        KalmanCLIP(tiny).partial_fit(shapes, epochs=0)
    KalmanCLIP(tiny, **{**OPTIONS, "epochs": 1}, seed=10**14).fit(shapes)  # large, but fine
