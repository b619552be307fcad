"""Methods with a cache: the same to the last bit, nothing decoded twice, nothing taken for something else."""

import dataclasses
import os

import numpy as np
import pytest
import torch
from PIL import Image

from kalmanclip.data import FewShotTask, LabelledImages, LazyImage
from kalmanclip.data.corruptions import CorruptedImage
from kalmanclip.data.images import cache_decoded, content_identities, content_identity
from kalmanclip.encoders import Backbone, DualEncoder, FeatureCache, LowRankConfig, features, load_backbone
from kalmanclip.encoders.cache import describe_product
from kalmanclip.encoders.features import epoch_features
from kalmanclip.encoders.preprocess import RandomCrop
from kalmanclip.errors import ImageError
from kalmanclip.experiments import Store, find_sources, plan, run_all
from kalmanclip.methods import ClassResidualsConfig, KalmanConfig, make_method
from kalmanclip.methods.baselines.clip_lora import CLIPLoRAConfig
from kalmanclip.methods.baselines.gda import GDAConfig
from kalmanclip.methods.baselines.linear_probe import LinearProbeConfig
from kalmanclip.methods.baselines.tip_adapter import TipAdapterFConfig

TOWERS = LowRankConfig(placement="towers", last_blocks=1, rank=2, scale=0.5)
LOW_RANK = KalmanConfig(batch_size=4)
METHODS = {
    "linear_probe": ("linear_probe", LinearProbeConfig(l2_grid=(10.0, 1.0))),
    "class residuals": ("class_residuals", ClassResidualsConfig(crops=2, folds=2)),
    "kalman on the head": ("kalman", dataclasses.replace(LOW_RANK, epochs=2, low_rank=LowRankConfig(rank=2))),
    "kalman in the towers": ("kalman", dataclasses.replace(LOW_RANK, epochs=1, low_rank=TOWERS)),
    "gda on crops": ("gda", GDAConfig(crops=2)),
    "clip_lora": ("clip_lora", CLIPLoRAConfig(low_rank=TOWERS, iterations=3, batch_size=8, augment=False)),
}


def image_features(backbone, *arguments, **options):
    """Of the frozen towers."""
    return features.image_features(DualEncoder(backbone), *arguments, **options)


@pytest.fixture
def decoded_files(monkeypatch):
    """The files that are decoded."""
    from kalmanclip.data import images as module

    files, decode = [], module.decode_file
    monkeypatch.setattr(module, "decode_file", lambda path, *rest: files.append(path) or decode(path, *rest))
    return files


def cached(backbone: Backbone, folder) -> Backbone:
    """As in a new process: all that is known of earlier ones is on disk."""
    return dataclasses.replace(backbone, cache=FeatureCache(folder))


def pictures(count, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 255, (64, 64, 3), dtype=np.uint8) for _ in range(count)]


def learn_and_score(backbone, method, config, task, sources):
    learner = make_method(method, backbone, config)
    learner.fit(task)
    return learner.logits(sources)


def test_there_is_no_cache_unless_asked_for(tiny):
    assert load_backbone("tiny").cache is None
    assert tiny.cache is None


@pytest.mark.parametrize("name", METHODS)
def test_results_are_the_same_to_the_last_bit_and_nothing_is_decoded_twice(
    tiny, tmp_path, task, images, decoded_files, name
):
    plain = learn_and_score(tiny, *METHODS[name], task, images.sources)
    empty, full = cached(tiny, tmp_path), cached(tiny, tmp_path)
    assert torch.equal(learn_and_score(empty, *METHODS[name], task, images.sources), plain)
    assert empty.cache.added > 0
    del decoded_files[:]
    assert torch.equal(learn_and_score(full, *METHODS[name], task, images.sources), plain)
    assert decoded_files == []
    assert full.cache.served >= 15 + 9


@pytest.mark.parametrize("count", [3, 10, 23])
def test_what_is_in_the_cache_already_changes_no_bit(tiny, tmp_path, monkeypatch, count):
    monkeypatch.setattr("kalmanclip.encoders.features.ENCODE_BATCH", 10)
    # in a batch of another size, or at another place in it, an image may come out with other last digits
    arrays = pictures(count)
    plain = image_features(tiny, arrays)
    for others in (arrays[::-1], arrays[1:], [*arrays, *pictures(3, seed=1)]):
        image_features(cached(tiny, tmp_path), others)
    for _ in range(2):
        assert torch.equal(image_features(cached(tiny, tmp_path), arrays), plain)


def test_activations_too_large_to_keep_do_not_fill_the_disk(tiny, tmp_path, task, monkeypatch):
    monkeypatch.setattr("kalmanclip.encoders.features.ActivationStore.__init__.__defaults__", (1000,))
    name, config = METHODS["kalman on the head"]
    plain = make_method(name, tiny, config)
    plain.fit(task)
    method = make_method(name, cached(tiny, tmp_path), config)
    method.fit(task)
    assert torch.equal(method.encoder.theta, plain.encoder.theta)
    assert method.backbone.cache.added == len(task.train)  # of the first look, not of every step


def test_other_weights_are_another_product(tiny, tmp_path, images):
    image_features(cached(tiny, tmp_path), images.sources)
    other = load_backbone("tiny")
    with torch.no_grad():
        next(other.model.visual.parameters()).mul_(1.01)
    assert other.hash != tiny.hash
    with_cache = cached(other, tmp_path)
    assert torch.equal(image_features(with_cache, images.sources), image_features(other, images.sources))
    assert with_cache.cache.served == 0


def test_whatever_changes_a_product_changes_its_description(tiny, monkeypatch):
    whole = describe_product(tiny, "embedding", 64)
    assert whole == describe_product(load_backbone("tiny"), "embedding", 64)
    double = load_backbone("tiny")
    double.model.double()
    heads = load_backbone("tiny")
    heads.model.visual.transformer.resblocks[0].attn.num_heads *= 2
    crops = [str(RandomCrop(tiny, (0.5, 1.0), seed, epoch)) for seed, epoch in ((0, 0), (0, 1), (1, 0))]
    others = [
        describe_product(tiny, "tokens after 2 blocks", 64),
        describe_product(tiny, "embedding", 65),
        *(describe_product(tiny, "embedding", 64, crop) for crop in (*crops, str(RandomCrop(tiny, (0.4, 1.0), 0, 0)))),
        describe_product(double, "embedding", 64),
        describe_product(heads, "embedding", 64),
        describe_product(dataclasses.replace(tiny, preprocess=str.upper), "embedding", 64),
    ]
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    others.append(describe_product(tiny, "embedding", 64))
    assert None not in others
    assert len({whole, *others}) == 1 + len(others)


def test_preprocessing_that_does_not_say_what_it_does_is_not_cached(tiny, tmp_path, images):
    backbone = dataclasses.replace(cached(tiny, tmp_path), preprocess=lambda image: tiny.preprocess(image))
    assert torch.equal(image_features(backbone, images.sources), image_features(tiny, images.sources))
    assert (backbone.cache.served, backbone.cache.added) == (0, 0)


@pytest.mark.parametrize("keep_times", [False, True])
def test_a_file_that_changes_under_its_name(tiny, tmp_path, monkeypatch, keep_times):
    monkeypatch.setattr("kalmanclip.data.images._SETTLING_NS", -1)  # hashes of new files are remembered, too
    file, cache = tmp_path / "image.bmp", tmp_path / "cache"  # uncompressed: both have the same size
    first, second = pictures(2)
    Image.fromarray(first).save(file)
    os.utime(file, (1, 1))
    before = image_features(cached(tiny, cache), [file])
    Image.fromarray(second).save(file)
    if keep_times:
        os.utime(file, (1, 1))
    after = image_features(cached(tiny, cache), [file])
    assert not torch.equal(before, after)
    assert torch.equal(after, image_features(tiny, [file]))


def test_the_same_file_under_another_name_is_known(tiny, tmp_path, images, decoded_files):
    copies = []
    for i, source in enumerate(images.sources):
        copies.append(tmp_path / f"copy {i}.png")
        copies[-1].write_bytes(source.read_bytes())
    image_features(cached(tiny, tmp_path / "cache"), images.sources)
    del decoded_files[:]
    image_features(cached(tiny, tmp_path / "cache"), copies)
    assert decoded_files == []


def test_corrupted_images_are_known_by_what_is_done_to_them(tiny, tmp_path, images, decoded_files):
    pytest.importorskip("imagecorruptions", reason="the optional package for corruptions is not installed")

    def damaged(corruption, severity, seed=0):
        return [CorruptedImage(source, corruption, severity, seed, 64) for source in images.sources[:2]]

    kinds = [damaged("contrast", 1), damaged("contrast", 5), damaged("gaussian_noise", 5), images.sources[:2]]
    kinds.append(damaged("gaussian_noise", 5, seed=1))
    plain = [image_features(tiny, kind) for kind in kinds]
    for times in range(2):
        del decoded_files[:]
        for kind, expected in zip(kinds, plain, strict=True):
            assert torch.equal(image_features(cached(tiny, tmp_path), kind), expected)
        assert len(decoded_files) == (0 if times else 2 * len(kinds))


@pytest.mark.parametrize("broken", ["missing", "not an image", "array"])
def test_an_unreadable_image_gives_the_same_error(tiny, tmp_path, images, monkeypatch, broken):
    monkeypatch.setattr("kalmanclip.encoders.features.ENCODE_BATCH", 4)
    bad = {"missing": tmp_path / "none.png", "not an image": tmp_path / "bad.png", "array": np.zeros((2, 2, 7))}[broken]
    (tmp_path / "bad.png").write_bytes(b"no picture")
    sources = [*pictures(4), *images.sources[:3], bad]
    with pytest.raises(ImageError) as plain:
        image_features(tiny, sources)
    for _ in range(2):
        backbone = cached(tiny, tmp_path / "cache")
        with pytest.raises(ImageError) as error:
            image_features(backbone, sources)
        assert str(error.value) == str(plain.value)
    assert backbone.cache.served == 4  # the batch before


def test_fresh_crops_are_not_cached_and_pictures_are_decoded_once(tiny, tmp_path, task, decoded_files):
    backbone = cached(tiny, tmp_path / "cache")
    of_epoch = epoch_features(DualEncoder(backbone), task.train.sources, (0.5, 1.0), None, task.seed)
    epochs = [of_epoch(epoch) for epoch in range(3)]
    assert len(decoded_files) == len(task.train)
    assert not (tmp_path / "cache").exists()
    for epoch, f in enumerate(epochs):
        crop = RandomCrop(tiny, (0.5, 1.0), task.seed, epoch)
        assert torch.equal(f, image_features(tiny, task.train.sources, crop=crop))


@pytest.mark.parametrize(
    ("method", "config"),
    [
        ("clip_lora", CLIPLoRAConfig(low_rank=TOWERS, iterations=4, batch_size=8)),
        ("tip_adapter_f", TipAdapterFConfig(crops=0, train_crops=None, epochs=2)),
    ],
)
def test_training_on_fresh_crops_decodes_every_picture_once(tiny, task, decoded_files, method, config):
    make_method(method, tiny, config).fit(FewShotTask(task.train))
    assert len(set(decoded_files)) == len(task.train)
    assert len(decoded_files) <= 2 * len(task.train)  # once for the crops, and once for centre crops, if any


def test_kept_pictures_stay_within_their_room(images, decoded_files):
    kept = cache_decoded(images.sources[:3], max_bytes=2 * 3 * 64 * 64)
    for _ in range(4):
        for source in kept:
            source.load(10**6)
    assert len(decoded_files) == 1 + 1 + 4


def test_an_unreadable_picture_among_kept_ones_is_named_as_ever(tiny, tmp_path):
    missing = tmp_path / "none.png"
    with pytest.raises(ImageError) as plain:
        image_features(tiny, [missing])
    with pytest.raises(ImageError) as kept:
        image_features(tiny, cache_decoded([missing]))
    assert str(kept.value) == str(plain.value)


class Unknown(LazyImage):
    """An image that does not say what it follows from."""

    identity = "unknown"

    def load(self, max_pixels):
        return Image.new("RGB", (64, 64))


def test_what_images_are_known_by(tmp_path, images):
    (array,) = pictures(1)
    os.mkfifo(tmp_path / "pipe")
    same = [array, Image.fromarray(array), torch.from_numpy(array).permute(2, 0, 1)]
    assert len(set(content_identities(same))) == 1
    assert len(set(content_identities(images.sources))) == len(images)
    nothing = [tmp_path / "pipe", tmp_path / "none", tmp_path, "a\0b", np.zeros((2, 2, 7)), Unknown()]
    assert content_identities(nothing) == [None] * len(nothing)
    assert all(len(key) == 64 for key in content_identities(same))
    # the same numbers in another shape are another image
    assert content_identity(np.zeros((8, 4, 3), np.uint8)) != content_identity(np.zeros((4, 8, 3), np.uint8))


def test_images_that_do_not_say_what_they_are_work_without_being_kept(tiny, tmp_path):
    backbone = cached(tiny, tmp_path)
    assert image_features(backbone, [Unknown()]).shape == (1, tiny.width)
    assert backbone.cache.added == 0
    assert image_features(backbone, []).shape == (0, tiny.width)


def test_a_comparison_shares_the_cache_with_the_next(tmp_path, images):
    sources = find_sources([_split(tmp_path / "photos", images)])
    runs = plan(sources, ["linear_probe", "zero_shot"], [1], [1], "tiny", {})
    stores = [Store(tmp_path / name) for name in "abc"]
    for store in stores:
        store.folder.mkdir()
    plain = run_all(runs, sources, stores[0])
    first = run_all(runs, sources, stores[1], cache=tmp_path / "cache")
    again = run_all(runs, sources, stores[2], cache=tmp_path / "cache")
    assert [record["status"] for record in plain] == ["done", "done"]
    for records in (first, again):
        assert [record["metrics"] for record in records] == [record["metrics"] for record in plain]
    assert [record["served_by_cache"] for record in plain] == [0, 0]
    assert first[0]["served_by_cache"] == 0
    assert first[1]["served_by_cache"] == 6  # the test images, which the other method has seen
    assert again[0]["served_by_cache"] >= 9


def _split(root, images: LabelledImages):
    """photos/{train,test}/{circle,square,triangle}: three and two of each."""
    for source in images.sources:
        folder = root / ("train" if int(source.stem) < 3 else "test") / source.parent.name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / source.name).write_bytes(source.read_bytes())
    return str(root)
