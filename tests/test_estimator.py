"""The front door: scikit-learn's habits, files, merging."""

import dataclasses
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
from kalmanclip.estimator import make_config
from kalmanclip.files import LOCK
from kalmanclip.methods import PRESETS, ClassResidualsConfig, JointConfig, KalmanConfig

HEAD = {"batch_size": 4, "low_rank.rank": 2}
OPTIONS = {"preset": "head", "epochs": 2, "options": HEAD}
RESIDUALS = {"prior_std": 0.15, "options": {"crops": 2}}  # given: the search for it takes most of a small fit
SMALL = JointConfig(
    low_rank=LowRankConfig(placement="towers", towers=("image",), last_blocks=1, rank=2, learn_a=False),
    steps=2,
    batch_size=4,
    residuals=ClassResidualsConfig(crops=1, prior_std=0.15),
)
BOTH = {"config": SMALL}
KINDS = {"default": RESIDUALS, "head": OPTIONS, "both": BOTH}
"""What is learned: class residuals, low-rank parameters, or both."""

every_kind = pytest.mark.parametrize("kind", list(KINDS))


@pytest.fixture(scope="module")
def fits(tiny, shapes):
    """One finished fit of each kind; tests must not change them."""
    return {kind: KalmanCLIP(tiny, **options).fit(shapes) for kind, options in KINDS.items()}


@pytest.fixture(params=["default", "head"])
def fitted(fits, request):
    return fits[request.param]


@pytest.fixture
def options(fitted, fits):
    """Those that `fitted` was made with."""
    return next(KINDS[kind] for kind, clf in fits.items() if clf is fitted)


def learned(clf):
    """All that a fit has found, as named tensors."""
    method = clf.method_
    return {"theta": method.encoder.theta} | method.state_dict().tensors


def same(one, other):
    a, b = learned(one), learned(other)
    for state in (a, b):
        del state["fingerprints"]  # of a file's bytes, or of pixels in memory
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_fit_from_a_folder_lists_and_arrays_is_the_same(tiny, shapes, fitted, options):
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
        again = KalmanCLIP(tiny, **options).fit(sources, labels, class_names)
        assert again.class_names_ == ["circle", "square", "triangle"]
        assert same(again, fitted)


def test_predict_and_score(fitted, shapes):
    probabilities = fitted.predict_proba(shapes)
    assert probabilities.shape == (15, 3)
    assert np.allclose(probabilities.sum(axis=1), 1, atol=1e-5)
    labels = fitted.predict(shapes)
    truth = [p.parent.name for p in read_folder(shapes).sources]
    assert fitted.score(shapes) == np.mean(labels == truth)
    assert fitted.score(read_folder(shapes).sources, truth) == fitted.score(shapes)
    assert fitted.predict([shapes / "circle" / "0.png"]).shape == (1,)
    assert fitted.predict(shapes / "circle" / "0.png").shape == (1,)
    assert fitted.predict([]).shape == (0,)


@pytest.mark.parametrize("preset", list(PRESETS))
def test_before_fit_it_is_zero_shot(tiny, shapes, preset):
    clf = KalmanCLIP(tiny, preset=preset).set_classes(["circle", "square", "triangle"])
    image = tiny.preprocess(Image.open(shapes / "circle" / "0.png").convert("RGB"))
    with torch.no_grad():
        images = torch.nn.functional.normalize(tiny.model.encode_image(image[None]), dim=-1)
        T = torch.nn.functional.normalize(
            tiny.model.encode_text(tiny.tokenizer([f"a photo of a {c}." for c in clf.class_names_])), dim=-1
        )
        expected = (tiny.logit_scale * images @ T.T).softmax(dim=-1).numpy()
    assert np.allclose(clf.predict_proba(shapes / "circle" / "0.png"), expected, atol=1e-5)


def test_save_load_continue_equals_an_uninterrupted_run(tiny, shapes, tmp_path):
    for options in ({}, {"observation": "log_likelihood"}, {"belief": "low_rank", "belief_options": {"rank": 3}}):
        whole = KalmanCLIP(tiny, **{**OPTIONS, "options": HEAD | options}).fit(shapes)
        whole.save(tmp_path / "half")
        whole.partial_fit(shapes, epochs=2)
        resumed = KalmanCLIP.load(tmp_path / "half", tiny)
        resumed.partial_fit(shapes, epochs=2)
        assert torch.equal(resumed.method_.encoder.theta, whole.method_.encoder.theta)
        theirs, ours = (m.method_.filter.belief.marginal_variance() for m in (whole, resumed))
        assert torch.equal(theirs, ours)


@pytest.mark.parametrize("prior_std", [None, 0.17])
@pytest.mark.parametrize("kind", ["default", "both"])
def test_class_residuals_are_saved_to_the_last_digit(tiny, shapes, tmp_path, kind, prior_std):
    """What comes after, uncertainty and more learning, is the same too."""
    residuals = ClassResidualsConfig(crops=2, prior_std=prior_std)
    both = dataclasses.replace(SMALL, residuals=residuals)
    whole = KalmanCLIP(tiny, residuals if kind == "default" else both).fit(shapes)
    whole.save(tmp_path / "half")
    resumed = KalmanCLIP.load(tmp_path / "half", tiny)
    assert same(resumed, whole)
    for clf in (whole, resumed):
        clf.partial_fit([shapes / "circle" / "0.png", shapes / "square" / "1.png"], ["oval", "square"])
    assert same(resumed, whole)
    theirs, ours = (clf.predict_full(shapes / "triangle") for clf in (whole, resumed))
    assert torch.equal(theirs.mean, ours.mean)
    assert torch.equal(theirs.std, ours.std)


def test_two_passes_at_once_equal_two_in_turn(tiny, shapes):
    once = KalmanCLIP(tiny, **{**OPTIONS, "epochs": 3}).fit(shapes)
    turns = KalmanCLIP(tiny, **{**OPTIONS, "epochs": 1}).fit(shapes).partial_fit(shapes).partial_fit(shapes)
    assert torch.equal(once.method_.encoder.theta, turns.method_.encoder.theta)


@every_kind
def test_partial_fit_adds_classes(tiny, shapes, tmp_path, kind):
    images = read_folder(shapes)
    two = images.subset(range(10))
    clf = KalmanCLIP(tiny, **KINDS[kind]).fit(two.sources, [images.class_names[i] for i in two.labels])
    assert clf.class_names_ == ["circle", "square"]
    triangles = images.sources[10:]
    (tmp_path / "new" / "triangle").mkdir(parents=True)
    (tmp_path / "new" / "square").mkdir()
    for c, i in (("triangle", 0), ("triangle", 1), ("square", 0)):
        Image.open(shapes / c / f"{i}.png").save(tmp_path / "new" / c / f"{i}.png")
    clf.partial_fit(tmp_path / "new")
    assert clf.class_names_ == ["circle", "square", "triangle"]
    assert clf.predict_proba(shapes).shape == (15, 3)
    assert (clf.predict(triangles) == "triangle").all()
    assert torch.isfinite(clf.predict_full(shapes).std).all()
    clf.save(tmp_path / "three")
    again = KalmanCLIP.load(tmp_path / "three", tiny)
    assert again.class_names_ == clf.class_names_
    assert np.array_equal(again.predict_proba(shapes), clf.predict_proba(shapes))


def test_residuals_stay_with_their_classes(fits, shapes, tiny):
    """Other names, another order: a class that was learned keeps what was learned, another has its text alone."""
    # the generative classifier is about the mean of all classes that are there
    clf = KalmanCLIP(tiny, prior_std=0.15, options={"crops": 2, "generative": 0.0}).fit(shapes)
    before, images = clf.method_.logits(read_folder(shapes).sources), read_folder(shapes).sources
    clf.set_classes(["triangle", "elephant", "circle"])
    after = clf.method_.logits(images)
    assert torch.allclose(after[:, [0, 2]], before[:, [2, 0]], atol=1e-4)
    untouched = KalmanCLIP(tiny).set_classes(["elephant"]).method_.logits(images)
    gain = clf.method_.residuals.belief.gain
    assert torch.allclose(after[:, 1:2], gain * untouched, atol=1e-3)
    std = clf.predict_full(images).std
    assert (std[:, 1] > std[:, 0]).all()  # of the elephant it has seen nothing


@every_kind
def test_other_names_may_be_given(tiny, shapes, tmp_path, kind):
    clf = KalmanCLIP(tiny, **KINDS[kind]).fit(shapes).set_classes(["cat", "circle", "dog", "square"])
    assert clf.predict_proba(shapes).shape == (15, 4)
    assert clf.predict_full(shapes).std.shape == (15, 4)
    clf.save(tmp_path / "a")
    again = KalmanCLIP.load(tmp_path / "a", tiny)
    assert again.class_names_ == ["cat", "circle", "dog", "square"]
    assert np.array_equal(again.predict_proba(shapes), clf.predict_proba(shapes))


@pytest.mark.parametrize("placement", ["head", "towers"])
def test_merge_gives_the_same_logits(tiny, shapes, placement):
    config = LowRankConfig(placement=placement, rank=2, last_blocks=1 if placement == "towers" else None)
    clf = KalmanCLIP(tiny, preset="head", epochs=1, options={"low_rank": config}).fit(shapes)
    model = clf.merge()
    images = torch.stack([tiny.preprocess(Image.open(p).convert("RGB")) for p in read_folder(shapes).sources])
    tokens = tiny.tokenizer([f"a photo of a {c}." for c in clf.class_names_])
    with torch.no_grad():
        merged, _ = model.get_logits(images, tokens)
    assert torch.allclose(merged, clf.method_.logits(read_folder(shapes).sources), atol=1e-3)


def features_of(model, preprocess, files):
    with torch.no_grad():
        images = torch.stack([preprocess(Image.open(file).convert("RGB")) for file in files])
        return torch.nn.functional.normalize(model.encode_image(images), dim=-1)


@pytest.mark.parametrize("kind", ["default", "head"])
def test_export_is_read_by_open_clip_alone(fits, shapes, tmp_path, kind):
    clf, files = fits[kind], read_folder(shapes).sources
    folder = clf.export(tmp_path / "plain")
    model, _, preprocess = open_clip.create_model_and_transforms(f"local-dir:{folder}")
    model.eval()
    weight = load_file(folder / "classifier.safetensors")["weight"]
    with torch.no_grad():
        logits = model.logit_scale.exp() * features_of(model, preprocess, files) @ weight.T
    assert torch.allclose(logits, clf.method_.logits(files), atol=1e-3)
    assert json.loads((folder / "classes.json").read_text())["class_names"] == clf.class_names_


@pytest.mark.parametrize("templates", [["a photo of a {}."], ["a {}.", "the {}!"]])
@pytest.mark.parametrize("kind", ["default", "head"])
def test_class_weights_are_the_classifier(tiny, shapes, kind, templates):
    clf = KalmanCLIP(tiny, **KINDS[kind], templates=templates).fit(shapes, shots=2)
    files = read_folder(shapes).sources
    features = features_of(clf.merge(), tiny.preprocess, files)
    assert torch.allclose(tiny.logit_scale * features @ clf.class_weights().T, clf.method_.logits(files), atol=1e-3)


def test_two_towers_are_no_plain_model(fits, tmp_path):
    with pytest.raises(ConfigError, match="--format onnx"):
        fits["both"].class_weights()
    folder = fits["both"].export(tmp_path / "plain")
    weights = [load_file(part / "classifier.safetensors")["weight"] for part in (folder, folder / "untouched")]
    assert not torch.equal(*weights)


def test_low_rank_parameters_alone_are_exported_with_the_text_tower(fits, shapes, tmp_path):
    clf = fits["head"]
    folder = clf.export(tmp_path / "plain")
    model, _, preprocess = open_clip.create_model_and_transforms(f"local-dir:{folder}")
    model.eval()
    tokenizer = open_clip.get_tokenizer(f"local-dir:{folder}")
    path = shapes / "square" / "1.png"
    with torch.no_grad():
        logits, _ = model.get_logits(
            preprocess(Image.open(path).convert("RGB"))[None],
            tokenizer([f"a photo of a {c}." for c in clf.class_names_]),
        )
    assert np.allclose(logits.softmax(dim=-1).numpy(), clf.predict_proba(path), atol=1e-4)
    again = load_backbone(f"local-dir:{folder}")
    zero_shot = KalmanCLIP(again).set_classes(clf.class_names_)
    assert np.allclose(zero_shot.predict_proba(path), clf.predict_proba(path), atol=1e-4)


def shown(folder):
    """The files of an adapter, without its lock."""
    return [path for path in folder.iterdir() if path.name != LOCK]


@every_kind
def test_the_adapter_round_trips(fits, tmp_path, shapes, kind):
    fitted = fits[kind]
    folder = fitted.save(tmp_path / "a" / "shapes.adapter")
    again = KalmanCLIP.load(folder)  # finds 'tiny' by itself
    assert again.config_ == fitted.config_
    assert again.class_names_ == fitted.class_names_
    files = read_folder(shapes).sources
    assert torch.equal(again.method_.logits(files), fitted.method_.logits(files))
    assert torch.equal(again.predict_full(files).std, fitted.predict_full(files).std)
    if kind != "both":  # two models have no common weights
        assert torch.equal(again.class_weights(), fitted.class_weights())
    assert sorted(p.suffix for p in shown(folder)) == [".json", ".safetensors"]


def test_saving_again_replaces_and_leaves_nothing_behind(fitted, options, tiny, shapes, tmp_path):
    folder = fitted.save(tmp_path / "x")
    KalmanCLIP(tiny, **{**options, "seed": 5}).fit(shapes).save(folder)
    assert len(shown(folder)) == 2
    assert KalmanCLIP.load(folder, tiny).config_.seed == 5


def test_an_interrupted_save_leaves_the_old_adapter(fitted, options, tiny, shapes, tmp_path, monkeypatch):
    folder = fitted.save(tmp_path / "x")
    other = KalmanCLIP(tiny, **{**options, "seed": 5}).fit(shapes)

    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("kalmanclip.adapter.write_json_atomic", stop)
    with pytest.raises(KeyboardInterrupt):
        other.save(folder)
    assert KalmanCLIP.load(folder, tiny).config_.seed == fitted.config_.seed


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
        ({"version": 1}, "format version 1; this kalmanclip reads version 3.*fit again"),
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


@pytest.mark.parametrize("method", ["kalman", "joint"])
def test_tensors_of_other_parameters_than_described(fits, tiny, tmp_path, method):
    folder = fits["default"].save(tmp_path / "x")
    content = json.loads((folder / "adapter.json").read_text())
    content |= {"method": method, "config": {}}
    (folder / "adapter.json").write_text(json.dumps(content))
    with pytest.raises(AdapterError, match="is damaged"):
        KalmanCLIP.load(folder, tiny)


@pytest.mark.parametrize("change", [{"class_names": ["circle", "square"]}, {"class_names": []}])
def test_tensors_of_other_classes_than_described(fits, tiny, tmp_path, change):
    folder = fits["default"].save(tmp_path / "x")
    damage(folder, change)
    with pytest.raises(AdapterError, match="is damaged"):
        KalmanCLIP.load(folder, tiny)


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("default", {"residuals.mean", "residuals.root", "residuals.gram", "residuals.gain"}),
        ("head", {"belief.mean", "belief.s"}),
        ("both", {"belief.mean", "belief.s", "residuals.mean"}),
    ],
)
def test_nothing_in_the_files_executes(fits, tmp_path, kind, names):
    folder = fits[kind].save(tmp_path / "x")
    tensors = load_file(next(folder.glob("*.safetensors")))  # safetensors, not pickle
    assert names <= set(tensors)
    assert ("belief.mean" in tensors) == (kind != "default")
    json.loads((folder / "adapter.json").read_text())


def test_no_write_permission(fitted, tmp_path):
    blocker = tmp_path / "file"
    blocker.write_text("in the way")
    with pytest.raises(AdapterError, match="cannot create"):
        fitted.save(blocker / "adapter")
    with pytest.raises(AdapterError, match="cannot create"):
        fitted.export(blocker / "model")
    with pytest.raises(ConfigError, match="call fit first"):
        KalmanCLIP("tiny").save(tmp_path / "y")
    with pytest.raises(AdapterError, match="fit first"):
        KalmanCLIP("tiny").set_classes(["a", "b"]).save(tmp_path / "y")


def test_bad_calls(tiny, shapes):
    with pytest.raises(ConfigError, match=r"colour.*Known options: .*crops"):
        KalmanCLIP(tiny, options={"colour": "red"}).fit(shapes)
    with pytest.raises(ConfigError, match="needs labels"):
        KalmanCLIP(tiny).fit([shapes / "circle" / "0.png"])
    with pytest.raises(ConfigError, match="a folder's labels"):
        KalmanCLIP(tiny).fit(shapes, ["a"])
    with pytest.raises(ConfigError, match=r"\{\}"):
        KalmanCLIP(tiny, templates=["a photo"]).fit(shapes)
    with pytest.raises(DataError):
        KalmanCLIP(tiny).fit(shapes / "nowhere")
    with pytest.raises(ConfigError, match="no classes"):
        KalmanCLIP(tiny).predict(shapes)


@every_kind
def test_an_unreadable_image_is_named(tiny, shapes, tmp_path, kind):
    for c in ("a", "b"):
        (tmp_path / c).mkdir()
        Image.open(shapes / "circle" / "0.png").save(tmp_path / c / "0.png")
    (tmp_path / "b" / "broken.jpg").write_bytes(b"\xff\xd8\xff no picture")
    with pytest.raises(ImageError, match=r"broken\.jpg"):
        KalmanCLIP(tiny, **KINDS[kind]).fit(tmp_path)


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
    config = KalmanConfig(epochs=7, seed=3)
    clf = KalmanCLIP(tiny, config, seed=4).set_classes(["a", "b"])
    assert (clf.config_.epochs, clf.config_.seed, clf.config) == (7, 4, config)
    with pytest.raises(ConfigError, match="either config or preset"):
        KalmanCLIP(tiny, config, preset="head").set_classes(["a", "b"])


def test_presets_and_single_options_combine(tiny):
    assert make_config() == ClassResidualsConfig()
    config = make_config("paper", options={"epochs": 7})
    assert (config.observation, config.epochs) == ("contrastive", 7)
    assert make_config(options={"prior_std": 0.1, "alpha": 0.5}) == ClassResidualsConfig(prior_std=0.1, alpha=0.5)
    assert make_config("head", options={"alpha": 0.5}).filter.alpha == 0.5
    assert make_config("head", options={"prior_std": 0.1}).prior_std == 0.1
    nested = make_config("head", options={"noise": {"beta": 0.5}, "noise.method": 1})
    assert (nested.noise.beta, nested.noise.method) == (0.5, 1)
    with pytest.raises(ConfigError, match=r"Unknown preset 'peper'.*paper"):
        KalmanCLIP(tiny, preset="peper").set_classes(["a", "b"])


def test_options_of_another_method_are_refused(tiny):
    with pytest.raises(ConfigError, match=r"Unknown option 'epochs' of the method 'class_residuals'.*presets head"):
        KalmanCLIP(tiny, epochs=3).set_classes(["a", "b"])
    with pytest.raises(ConfigError, match=r"Unknown option 'crops' of the method 'kalman'.*presets default"):
        make_config("head", options={"crops": 2})


def test_shots(tiny, shapes):
    clf = KalmanCLIP(tiny, **OPTIONS).fit(shapes, shots=2)
    assert clf.method_.filter.steps == 2 * 2  # six images in batches of four, twice


@every_kind
def test_partial_fit_understands_other_spellings_lists_and_single_classes(tiny, shapes, tmp_path, kind):
    clf = KalmanCLIP(tiny, **KINDS[kind]).fit(shapes)
    picture = Image.open(shapes / "circle" / "0.png")
    clf.partial_fit([picture, picture], ["Circle", "red_disc"])
    assert clf.class_names_ == ["circle", "square", "triangle", "red disc"]
    clf.partial_fit([picture], [0])  # numbers count in the classes so far
    (tmp_path / "only" / "blue_disc").mkdir(parents=True)
    picture.save(tmp_path / "only" / "blue_disc" / "0.png")
    clf.partial_fit(tmp_path / "only")
    assert clf.class_names_[-1] == "blue disc"
    clf.partial_fit(read_folder(shapes))
    assert len(clf.class_names_) == 5
    with pytest.raises(DataError):
        clf.partial_fit([picture], [5])


@every_kind
def test_partial_fit_without_fit_starts_from_the_prior(tiny, shapes, kind):
    once = {"epochs": 1} if kind == "head" else {}
    online = KalmanCLIP(tiny, **KINDS[kind] | once).partial_fit(shapes)
    batch = KalmanCLIP(tiny, **KINDS[kind] | once).fit(shapes)
    assert same(online, batch)


def test_one_image_is_not_taken_for_many(fitted, shapes):
    picture = Image.open(shapes / "circle" / "0.png").convert("RGB")
    assert fitted.predict(picture).shape == (1,)
    assert fitted.predict(np.stack([np.asarray(picture)] * 2)).shape == (2,)
    for one in (np.asarray(picture), torch.zeros(3, 32, 32), np.zeros((32, 32), np.uint8)):
        with pytest.raises(DataError, match=r"give a list, \[image\]"):
            fitted.predict(one)
    with pytest.raises(DataError, match="not NoneType"):
        fitted.predict(None)


@every_kind
def test_a_failed_fit_leaves_everything_as_it_was(tiny, shapes, tmp_path, kind):
    clf = KalmanCLIP(tiny, **KINDS[kind]).fit(shapes)
    before = clf.predict_proba(shapes)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "broken.jpg").write_bytes(b"no picture")
    for learn in (clf.fit, clf.partial_fit):
        with pytest.raises(ImageError):
            learn(tmp_path)
        assert clf.class_names_ == ["circle", "square", "triangle"]
        assert np.array_equal(clf.predict_proba(shapes), before)


def test_classes_that_the_model_cannot_tell_apart(tiny):
    long = "very " * 90
    with pytest.raises(DataError, match="same prompt"):
        KalmanCLIP(tiny).set_classes([long + "old", long + "new"])
    for nothing in ([], "cat"):
        with pytest.raises(DataError, match="list of at least one name"):
            KalmanCLIP(tiny).set_classes(nothing)


def test_options_that_would_break_later_are_refused_now(tiny, shapes):
    for bad in ({"epochs": 1.5}, {"batch_size": 2.5}, {"seed": "x"}, {"low_rank": 4}):
        with pytest.raises(ConfigError, match=r"epochs|batch_size|seed|LowRankConfig"):
            make_config("head", options=bad)
    with pytest.raises(ConfigError, match="larger than the 512 dimensions"):
        KalmanCLIP(tiny, preset="head", options={"low_rank.rank": 513}).fit(shapes)
    with pytest.raises(ConfigError, match="prior_std"):
        KalmanCLIP(tiny, **OPTIONS, prior_std=1e30).fit(shapes)
    with pytest.raises(ConfigError, match="GiB"):
        KalmanCLIP(tiny, preset="head", options={"belief": "dense"}).fit(shapes)
    with pytest.raises(ConfigError, match="at least 1"):
        KalmanCLIP(tiny).partial_fit(shapes, epochs=0)
    KalmanCLIP(tiny, **{**OPTIONS, "epochs": 1}, seed=10**14).fit(shapes)  # large, but fine
    KalmanCLIP(tiny, **KINDS["default"], seed=10**14).fit(shapes)
