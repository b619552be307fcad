"""Adapters on the Hub: what is written, what a stand-in for the Hub gets, and what comes back from it."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import yaml
from benchmarks.table import ROOT
from huggingface_hub import ModelCard, ModelHubMixin, constants, file_download
from sklearn.base import clone
from tests import hub_server
from tests.conftest import shape_picture

from kalmanclip import KalmanCLIP
from kalmanclip.card import base_model
from kalmanclip.errors import AdapterError, ConfigError
from kalmanclip.files import read_json

NAMES = ["circle", "square", "triangle"]
LABELS = NAMES * 2
PICTURES = [shape_picture(name, i) for i, name in enumerate(LABELS)]
TEST = [shape_picture(name, 100 + i) for i, name in enumerate(NAMES * 4)]
PAPER = {"preset": "paper", "options": {"low_rank.last_blocks": 1, "epochs": 1}}


@pytest.fixture(scope="module")
def default(tiny):
    return KalmanCLIP(tiny).fit(PICTURES, LABELS)


@pytest.fixture(scope="module")
def low_rank(tiny):
    return KalmanCLIP(tiny, **PAPER).fit(PICTURES[:5], LABELS[:5])


@pytest.fixture
def test_folder(tmp_path):
    for i, picture in enumerate(TEST):
        folder = tmp_path / "held out" / NAMES[i % 3]
        folder.mkdir(parents=True, exist_ok=True)
        picture.save(folder / f"{i}.png")
    return tmp_path / "held out"


@pytest.fixture
def hub(monkeypatch, tmp_path):
    with hub_server.running() as started:
        monkeypatch.setattr(constants, "ENDPOINT", started.url)
        for module in (constants, file_download):  # older versions have a copy in the second
            template = started.url + "/{repo_id}/resolve/{revision}/{filename}"
            monkeypatch.setattr(module, "HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no token"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True, raising=False)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        yield started


def metadata(text):
    return yaml.safe_load(text.split("---")[1])


def test_what_goes_up_comes_down(default, tiny, hub, test_folder):
    address = default.push_to_hub("me/shapes", test=test_folder, token="secret-token")
    assert address == f"{hub.url}/me/shapes/commit/{hub.sha('me/shapes')}"
    assert len(hub.repositories["me/shapes"]) == 2  # empty, then all in one commit
    changing = [token for request, token in hub.requests if "/create" in request or "/commit" in request]
    assert changing == ["secret-token"] * 2
    files = hub.files("me/shapes")
    assert {name.split("-")[0] for name in files} == {"adapter.json", "README.md", "belief"}
    before = len(hub.requests)
    again = KalmanCLIP.from_pretrained("me/shapes", model=tiny)
    np.testing.assert_array_equal(again.predict_proba(TEST), default.predict_proba(TEST))
    fetched = {request for request, _ in hub.requests[before:] if "/resolve/" in request}
    assert fetched
    assert not any("README" in request for request in fetched)  # nothing but the adapter


def test_the_card_is_made_from_the_adapter(default, low_rank, tiny, hub, test_folder, tmp_path):
    default.save_pretrained(tmp_path / "a", test=test_folder)
    text = (tmp_path / "a" / "README.md").read_text()
    facts = metadata(text)
    assert facts["library_name"] == "kalmanclip"
    assert facts["license"] == "other"  # of tiny's weights
    assert facts["license_name"] == "research-use"
    assert "base_model" not in facts
    assert "peft" not in facts["tags"]
    accuracy = default.score(test_folder)
    untouched = KalmanCLIP(tiny).set_classes(NAMES).score(test_folder)
    assert f"{accuracy:.1%} on 12 labelled images (held out)" in text
    assert f"untouched backbone with the same prompts: {untouched:.1%}." in text
    (result,) = ModelCard(text).data.eval_results  # as the Hub reads it
    assert (result.dataset_name, result.metric_type) == ("held out", "accuracy")
    assert result.metric_value == pytest.approx(accuracy, abs=1e-4)
    assert "**Classes:** circle, square, triangle." in text
    assert "| learned from | 6 images, 2 per class |" in text
    assert "the file names of 6 training images" in text

    low_rank.save_pretrained(tmp_path / "a", license="mit")  # a card that is there is of another adapter
    text = (tmp_path / "a" / "README.md").read_text()
    assert metadata(text)["license"] == "mit"
    assert {"lora", "peft"} <= set(metadata(text)["tags"])
    assert "model-index" not in metadata(text)
    assert "Not measured" in text
    assert "| learned from | 5 images, 1 to 2 per class |" in text
    assert "the file names of 5 training images" in text


def test_images_learned_later_are_counted(tiny, tmp_path):
    clf = KalmanCLIP(tiny, **PAPER).partial_fit(PICTURES[:3], LABELS[:3])
    clf = KalmanCLIP.load(clf.save(tmp_path / "a"), model=tiny)
    clf.partial_fit([*PICTURES[:2], shape_picture("circle", 9)], ["square", "square", "ring"])
    assert clf.class_names_ == [*NAMES, "ring"]
    assert clf.notes_["learned_from"] == [1, 3, 1, 1]


def test_a_folder_is_enough(low_rank, tiny, tmp_path):
    low_rank.notes_["folder"] = "/home/somebody/pictures"
    low_rank.save_pretrained(tmp_path / "a")
    assert low_rank.notes_.pop("folder")  # still known here
    assert "somebody" not in (tmp_path / "a" / "adapter.json").read_text()
    assert read_json(tmp_path / "a" / "adapter_config.json")["base_model_name_or_path"] == "tiny"
    again = KalmanCLIP.from_pretrained(tmp_path / "a", model=tiny)
    np.testing.assert_array_equal(again.predict_proba(TEST), low_rank.predict_proba(TEST))


def test_a_push_replaces_what_was_there(default, low_rank, hub):
    low_rank.push_to_hub("me/shapes")
    first = set(hub.files("me/shapes"))
    assert {"adapter_config.json", "adapter_model.safetensors"} <= first
    default.push_to_hub("me/shapes", ignore_patterns="README.md")
    files = hub.files("me/shapes")
    assert set(files) & first == {"README.md", "adapter.json"}  # no belief of before, no LoRA of before
    assert "peft" in metadata(files["README.md"].decode())["tags"]  # the card was to stay
    assert json.loads(files["adapter.json"])["tensors"]["file"] in files


def test_the_licence_of_the_backbone_is_asked_for(default, tiny, hub, tmp_path):
    base = "laion/CLIP-ViT-B-32-laion2B-s34B-b79K"
    clf = KalmanCLIP.load(default.save(tmp_path / "a"), model=tiny)
    object.__setattr__(clf.method_, "backbone", replace(tiny, name="ViT-B-32:laion2b_s34b_b79k"))
    clf.push_to_hub("me/unknown")
    facts = metadata(hub.files("me/unknown")["README.md"].decode())
    assert (facts["license"], facts["base_model"]) == ("unknown", base)
    hub.commit(base, {"README.md": b"---\nlicense: other\nlicense_name: ours\ntags: [clip]\n---\n"})
    clf.push_to_hub("me/known")
    facts = metadata(hub.files("me/known")["README.md"].decode())
    assert (facts["license"], facts["license_name"], facts["base_model_relation"]) == ("other", "ours", "adapter")
    clf.save_pretrained(tmp_path / "b")
    assert metadata((tmp_path / "b" / "README.md").read_text())["license"] == "unknown"  # nobody was asked


def test_what_was_downloaded_is_there_without_a_network(default, tiny, hub, monkeypatch):
    default.push_to_hub("me/shapes")
    KalmanCLIP.from_pretrained("me/shapes", model=tiny)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    again = KalmanCLIP.from_pretrained("me/shapes", model=tiny, local_files_only=True)
    np.testing.assert_array_equal(again.predict(TEST), default.predict(TEST))
    with pytest.raises(AdapterError, match=r"'me/other' is no folder here.*cannot be reached.*without a network"):
        KalmanCLIP.from_pretrained("me/other", model=tiny)
    with pytest.raises(AdapterError, match=r"could not be pushed: the Hub cannot be reached.*`save_pretrained` writes"):
        default.push_to_hub("me/shapes")


def test_what_the_hub_refuses(default, tiny, hub, tmp_path):
    with pytest.raises(ConfigError, match="call fit first"):
        KalmanCLIP(tiny).push_to_hub("me/shapes")
    with pytest.raises(AdapterError, match="no folder"):
        KalmanCLIP.from_pretrained("me/nothing", model=tiny)
    hub.commit("me/other", {"config.json": b"{}"})
    with pytest.raises(AdapterError, match=r"adapter\.json"):
        KalmanCLIP.from_pretrained("me/other", model=tiny)
    with pytest.raises(AdapterError, match=r"Hub answered 404.*Check the name"):
        KalmanCLIP.from_pretrained("me/other", model=tiny, revision="v9")
    with pytest.raises(AdapterError, match="could not be had"):
        KalmanCLIP.from_pretrained("no/such/name", model=tiny)
    hub.closed = True
    with pytest.raises(AdapterError, match="hf auth login"):
        default.push_to_hub("me/shapes")
    assert "me/shapes" not in hub.repositories
    (tmp_path / "file").write_text("")
    with pytest.raises(AdapterError, match="cannot write to"):
        default.save_pretrained(tmp_path / "file")


def test_the_page_runs(hub, monkeypatch, tmp_path, test_folder):
    monkeypatch.chdir(tmp_path)
    test_folder.rename("test")
    for i, picture in enumerate(PICTURES):
        (tmp_path / "photos" / LABELS[i]).mkdir(parents=True, exist_ok=True)
        picture.save(tmp_path / "photos" / LABELS[i] / f"{i}.png")
    (tmp_path / "new").mkdir()
    PICTURES[0].save("new/1.jpg")
    names = {}
    for block in re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "hub.md").read_text(), re.DOTALL | re.MULTILINE):
        if "peft" not in block:  # it needs a large model
            exec(block, names)
    assert names["model"].class_names_ == NAMES
    assert "on 12 labelled images (test)" in hub.files("me/pets")["README.md"].decode()


def test_the_estimator_stays_one_of_scikit_learn(tiny):
    clf = KalmanCLIP(tiny, seed=3)
    assert isinstance(clf, ModelHubMixin)
    assert clone(clf).get_params() == clf.get_params()
    assert set(vars(clf)) == set(clf.get_params())  # the constructor stores its arguments, and nothing else


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("tiny", None),
        ("ViT-B-16:openai", "timm/vit_base_patch16_clip_224.openai"),
        ("hf-hub:org/repo", "org/repo"),
        ("openai/clip-vit-base-patch32", "openai/clip-vit-base-patch32"),
        ("ViT-B-32:random", None),
        ("in-memory:CLIP", None),
    ],
)
def test_where_a_backbone_comes_from(name, base):
    assert base_model(name) == base
