"""Descriptions of classes: the mean of the prompts as the prior's centre, their spread as a share of its covariance."""

import json

import pytest
import torch
from tests.cli.invoke import call

from kalmanclip import KalmanCLIP
from kalmanclip.data import read_descriptions, read_folder
from kalmanclip.errors import ConfigError

DESCRIPTIONS = {"Circle": ["a round disc", "a ball without corners"], "square": ["a box with four equal sides"]}
QUICK = {"prior_std": 0.15, "options": {"crops": 0}}


def unit(x):
    return x / x.norm(dim=-1, keepdim=True)


def embedded(backbone, prompts):
    with torch.no_grad():
        return unit(backbone.model.encode_text(backbone.tokenizer(prompts)).double())


@pytest.fixture(scope="module")
def few(shapes):
    return read_folder(shapes).subset([0, 1, 5, 10])


@pytest.fixture(scope="module")
def clf(tiny, few):
    return KalmanCLIP(tiny, descriptions=DESCRIPTIONS, **QUICK).fit(few)


def test_every_prompt_counts_once(clf, tiny, few):
    T = clf.method_.residuals.T.double()
    for row, (name, texts) in enumerate({"circle": "Circle", "square": "square", "triangle": None}.items()):
        prompts = [f"a photo of a {name}.", *DESCRIPTIONS.get(texts, [])]
        torch.testing.assert_close(T[row], unit(embedded(tiny, prompts).mean(dim=0)), atol=1e-5, rtol=0)
    # triangles keep their template
    assert not torch.equal(T, KalmanCLIP(tiny, **QUICK).fit(few).method_.residuals.T.double())


def test_the_spread_is_a_share_of_the_prior(tiny, few):
    share = 0.3
    options = QUICK["options"] | {"description_spread": share}
    method = KalmanCLIP(tiny, prior_std=0.15, descriptions=DESCRIPTIONS, options=options).fit(few).method_
    a, b = embedded(tiny, DESCRIPTIONS["Circle"])
    # a single description has no spread; two differ from their mean by half their difference, one each way
    S = 2 * torch.outer(a - b, a - b) / 4 / 3
    statistics = method.residuals.statistics
    means = (statistics.total / statistics.count.unsqueeze(1)).double()
    S = S / torch.einsum("cd,de,ce->c", means, S, means).mean()
    plain = statistics.metric().double()
    expected = (1 - share) * plain @ plain + share * S
    root = method.residuals.root.double()
    torch.testing.assert_close(root @ root, expected, atol=2e-3 * float(expected.abs().max()), rtol=0)


def test_an_adapter_keeps_them(clf, tiny, shapes, tmp_path):
    loaded = KalmanCLIP.load(clf.save(tmp_path / "a.adapter"), tiny)
    assert torch.equal(loaded.method_.residuals.T, clf.method_.residuals.T)
    images = [shapes / "circle" / "3.png"]
    assert loaded.predict_proba(images).tolist() == clf.predict_proba(images).tolist()
    for one in (loaded, clf):
        one.partial_fit(images, ["disc"])
    assert loaded.predict_proba(images).tolist() == clf.predict_proba(images).tolist()
    assert loaded.method_.descriptions == {name: tuple(texts) for name, texts in DESCRIPTIONS.items()}


def test_files(tmp_path):
    text = tmp_path / "a.txt"
    text.write_text("# how shapes look\n\nCircle: a round disc\nsquare: a box: with four equal sides\nCircle: a ball\n")
    wanted = {"Circle": ("a round disc", "a ball"), "square": ("a box: with four equal sides",)}
    assert read_descriptions(text) == wanted
    (tmp_path / "a.json").write_text(json.dumps(wanted))
    assert read_descriptions(tmp_path / "a.json") == wanted
    for content, message in (("circle\n", "line 1: write a class name"), ("# nothing\n", "lists of texts")):
        text.write_text(content)
        with pytest.raises(ConfigError, match=message):
            read_descriptions(text)
    (tmp_path / "a.json").write_text('{"circle": "round"}')
    with pytest.raises(ConfigError, match="lists of texts"):
        read_descriptions(tmp_path / "a.json")
    with pytest.raises(ConfigError, match=r"nowhere\.txt"):
        read_descriptions(tmp_path / "nowhere.txt")


def test_what_cannot_be_described_is_refused(tiny, few, clf):
    with pytest.raises(ConfigError, match="None of the classes is described"):
        KalmanCLIP(tiny, descriptions={"cat": ["whiskers"]}, **QUICK).fit(few)
    with pytest.raises(ConfigError, match="class residuals alone"):
        KalmanCLIP(tiny, preset="head", descriptions=DESCRIPTIONS).fit(few)
    with pytest.raises(ConfigError, match="before anything is learned"):
        clf.method_.describe(DESCRIPTIONS)
    with pytest.raises(ConfigError, match="description_spread"):
        KalmanCLIP(tiny, options={"description_spread": 1.0}).fit(few)


def test_on_the_command_line(shapes, tmp_path):
    file, out = tmp_path / "shapes.txt", tmp_path / "a.adapter"
    file.write_text("circle: a round disc\n")
    call("fit", shapes, "-o", out, "--shots", 1, "--crops", 0, "--descriptions", file)
    assert json.loads((out / "adapter.json").read_text())["state"]["descriptions"] == {"circle": ["a round disc"]}
    message = call("fit", shapes, "-o", out, "--resume", "--descriptions", file, code=2).stderr
    assert "leave --descriptions out" in " ".join(message.split())
