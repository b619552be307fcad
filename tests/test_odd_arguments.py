"""Arguments, files and names that nobody meant: refused with a reason, or shown in a way that harms no terminal."""

import contextlib
import json
import logging
import os
import shutil
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.error import URLError

import numpy as np
import pytest
import torch
from huggingface_hub import constants
from tests.cli.invoke import call
from tests.conftest import shape_picture
from typer.testing import CliRunner

from kalmanclip import KalmanCLIP, network
from kalmanclip.cli import app
from kalmanclip.cli.console import say_csv
from kalmanclip.data.lists import read_list
from kalmanclip.encoders import load_backbone
from kalmanclip.errors import AdapterError, ConfigError, DataError, KalmanClipError, ModelError
from kalmanclip.estimator import NotFittedError

LONG = "x" * 5000


@pytest.fixture(scope="module")
def fitted(tiny, shapes):
    return KalmanCLIP(tiny, prior_std=0.1, options={"crops": 0}).fit(shapes)


@pytest.fixture(scope="module")
def adapter(fitted, tmp_path_factory):
    return fitted.save(tmp_path_factory.mktemp("odd") / "a.adapter")


# --- the command line


def refused(words, message, code, **places):
    """The command fails with one line of its own, or with the usage."""
    said = call(*(str(word).format(**places) for word in words), code=code).stderr
    text = " ".join(line.strip("│╭╮╰╯─ ") for line in said.splitlines())
    assert message in text
    assert "unexpected" not in text.replace("Got unexpected extra argument", "")
    assert len(said) < 1500


@pytest.mark.parametrize(
    ("words", "message", "code"),
    [
        (["--seed", 2**63], "seed must be at most", 2),
        (["--preset", "head", "--seed", 10**30], "seed must be at most", 2),
        (["--preset", "joint", "--seed", -(2**63)], "seed must be at least", 2),
        (["--prior-std", "1e-300"], "prior_std 1e-300 cannot be computed with", 2),
        (["--prior-std", "1e300"], "give something like 0.1", 2),
        (["--preset", "head", "--prior-std", "1e300"], "give something like 0.1", 2),
        (["--device", "meta"], "The device 'meta' cannot be used here", 2),
        (["--device", "hpu"], "The device 'hpu' cannot be used here", 2),
        (["--model", LONG], "choose a shorter name", 4),
        (["--model", f"ViT-B-16:{LONG}"], "choose a shorter name", 4),
        (["--config", ""], "Invalid value for '--config': the path is empty", 2),
        (["--config", "a\0.json"], "Invalid value for '--config': the path has a null", 2),
        (["--model", ""], "Unknown backbone ''", 4),
    ],
)
def test_options_of_fit(shapes, tmp_path, words, message, code):
    refused(["fit", "{shapes}", "-o", "{new}", *words], message, code, shapes=shapes, new=tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["fit", "", "-o", "{new}"], 3),
        (["fit", "{shapes}", "-o", ""], 2),
        (["predict", "", "{shapes}"], 2),
        (["predict", "{adapter}", ""], 2),
        (["predict", "{adapter}", "{shapes}", ""], 2),
        (["evaluate", "{adapter}", ""], 3),
        (["evaluate", "{adapter}", "{shapes}:"], 3),
        (["export", "{adapter}", "-o", ""], 2),
        (["fuse", "{adapter}", "", "-o", "{new}"], 2),
        (["info", ""], 2),
        (["app", ""], 2),
        (["retrieve", ""], 3),
        (["compare", "--data", "{shapes}", "-o", ""], 2),
        (["results", "list", ""], 2),
        (["data", "list", "--root", ""], 2),
        (["demo", "--out", ""], 2),
    ],
)
def test_an_empty_path_is_not_the_current_folder(shapes, adapter, tmp_path, monkeypatch, words, code):
    monkeypatch.chdir(shapes.parent)  # where it could be taken for a folder of class folders
    message = "There is no folder" if words[-1] == "{shapes}:" else "the path is empty"
    refused(words, message, code, shapes=shapes, adapter=adapter, new=tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["fit", "{long}", "-o", "{new}"], 3),
        (["fit", "{long}.csv", "-o", "{new}"], 3),
        (["fit", "{shapes}", "-o", "{long}"], 1),
        (["predict", "{long}", "{shapes}"], 5),
        (["predict", "{adapter}", "{long}"], 3),
        (["evaluate", "{adapter}", "{long}"], 3),
        (["evaluate", "{adapter}", "NAME={long}"], 3),
        (["retrieve", "{long}.json"], 3),
        (["info", "{long}"], 5),
    ],
)
def test_a_path_that_is_too_long(shapes, adapter, tmp_path, words, code):
    places = {"shapes": shapes, "adapter": adapter, "new": tmp_path / "new", "long": LONG}
    refused(words, "choose a shorter name", code, **places)


NESTED = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("wide.csv", f"image,class\na.png,{'x' * 200_000}\n", "line 2 of"),
        ("open.csv", 'image,class\na.png,"' + "b\n" * 100_000, "look for a quotation mark"),
        ("long.csv", f"image,class\n{LONG}.png,b\n", "1 of 1 images are missing"),
        ("nested.json", NESTED, "more than 100 deep"),
        ("nested.jsonl", NESTED, "more than 100 deep"),
        ("nested.json", json.dumps([[[[1]]]]), "is [[[1]]]; use objects"),
        ("wide.json", json.dumps([["x" * 100_000]]), "use objects"),
        ("number.json", f'[{{"image": "a.png", "class": {"1" * 5000}}}]', "is not JSON"),
        ("half.json", '[{"image": "a.png", "class": "\\ud800"}, {"image": "a.png", "class": "b"}]', "no UTF-8"),
    ],
)
def test_lists(tmp_path, name, content, message):
    shape_picture("circle", 0).save(tmp_path / "a.png")
    (tmp_path / name).write_text(content)
    if name == "long.csv":
        with pytest.raises(DataError, match=message):  # the message has the whole name: it is to be found in the list
            read_list(tmp_path / name)
        return
    refused(["fit", tmp_path / name, "-o", tmp_path / "new"], message, DataError.exit_code)


@pytest.mark.parametrize("depth", [150, 100_000])
def test_options_within_options(shapes, tmp_path, depth):
    (tmp_path / "o.json").write_text('{"alpha": ' + '{"a":' * depth + "1" + "}" * depth + "}")
    words = ["fit", shapes, "-o", tmp_path / "new", "--config", tmp_path / "o.json"]
    refused(words, "more than 100 deep", ConfigError.exit_code)


def test_more_shots_than_there_are_images(shapes, tmp_path):
    words = ["fit", shapes, "-o", tmp_path / "a", "--prior-std", 0.1, "--crops", 0, "--force"]
    said = call(*words, "--shots", 100).stderr
    assert "3 classes have fewer than 100 images, and all of theirs are used: circle 5, square 5, triangle 5." in said
    assert "fewer" not in call(*words, "--shots", 5).stderr


# --- names


@pytest.fixture(scope="module")
def strange(tiny, tmp_path_factory):
    """Classes and files that are called what a terminal obeys, and an adapter that knows them."""
    root = tmp_path_factory.mktemp("strange") / "photos"
    for number, name in enumerate(("cir\x1b[31mcle", "日本", "na\u202eive")):
        (root / name).mkdir(parents=True)
        shape_picture("circle", number).save(root / name / "a\nError: b\x07.png")
    clf = KalmanCLIP(tiny, prior_std=0.1, options={"crops": 0}).fit(root)
    return root, clf.save(root.parent / "bell\x07.adapter")


@pytest.mark.parametrize("command", ["predict", "evaluate", "info", "missing"])
def test_control_characters_are_shown_and_not_obeyed(strange, command):
    photos, adapter = strange
    words = {"info": ["info", adapter], "missing": ["predict", adapter, photos / "mis\x1b[2Jsing"]}
    result = call(*words.get(command, [command, adapter, photos]), code=DataError.exit_code * (command == "missing"))
    printed = result.stdout + result.stderr
    assert not {character for character in printed if ord(character) < 32} - {"\n"}
    assert "\u202e" not in printed
    assert not [line for line in printed.splitlines() if line.strip().startswith("Error: b")]
    assert r"mis\x1b[2Jsing" in printed if command == "missing" else r"cir\x1b[31mcle" in printed


@pytest.mark.parametrize("charset", ["latin-1", "ascii"])
@pytest.mark.parametrize("options", [[], ["--csv"]])
def test_terminals_without_unicode(strange, charset, options):
    photos, adapter = strange
    result = CliRunner(charset=charset).invoke(app, ["predict", str(adapter), str(photos), *options])
    assert result.exit_code == 0, result.stderr
    assert r"\u65e5\u672c" in result.stdout


@pytest.mark.skipif(os.name == "nt", reason="file names are text here")
def test_file_names_that_are_no_text(tiny, tmp_path):
    for name in ("circle", "square"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        picture = os.fsdecode(b"caf\xe9.png")
        try:
            shape_picture(name, 0).save(tmp_path / "photos" / name / picture)
        except OSError:
            pytest.skip("this file system has no such names")
    call("fit", tmp_path / "photos", "-o", tmp_path / "a", "--crops", 0)
    known = KalmanCLIP.load(tmp_path / "a", tiny).training_images_
    assert known is not None
    assert known[0][0] == f"circle/{picture}"
    printed = CliRunner().invoke(app, ["predict", str(tmp_path / "a"), str(tmp_path / "photos"), "--csv"])
    assert b"circle/caf\xe9.png" in printed.stdout_bytes  # as it is, for programs
    assert "caf\\udce9.png" in call("predict", tmp_path / "a", tmp_path / "photos").stdout
    shutil.copytree(tmp_path / "photos" / "circle", tmp_path / "photos" / os.fsdecode(b"tri\xe9"))
    refused(["fit", tmp_path / "photos", "-o", tmp_path / "b"], "rename its folder", DataError.exit_code)


# --- Python


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"model": None}, ModelError, "not NoneType"),
        ({"model": 3}, ModelError, "not int"),
        ({"model": LONG}, ModelError, "shorter name"),
        ({"device": "meta"}, ConfigError, "device 'meta'"),
        ({"device": ""}, ConfigError, "device ''"),
        ({"device": object()}, ConfigError, "device '<object"),
        ({"precision": ""}, ConfigError, "precision must be"),
        ({"options": 3}, ConfigError, "options must be a table"),
        ({"options": {3: 1}}, ConfigError, "options must be a table"),
        ({"templates": None}, ConfigError, "prompt templates are"),
        ({"seed": 10**5000}, ConfigError, "too large to show"),
        ({"seed": -(2**63)}, ConfigError, "seed must be at least"),
        ({"prior_std": 1e-300}, ConfigError, "cannot be computed with"),
    ],
)
def test_arguments_of_the_estimator(tiny, shapes, arguments, error, message):
    given = {} if {"device", "precision"} & set(arguments) else {"model": tiny}
    with pytest.raises(error, match=message):
        KalmanCLIP(**given | arguments).fit(shapes)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shots": 1.5}, "shots must be a whole number, not 1.5"),
        ({"shots": "2"}, "shots must be a whole number, not '2'"),
        ({"shots": True}, "shots must be a whole number, not True"),
        ({"shots": 0}, "shots must be at least 1"),
        ({"calibrate": 1.5}, "to hold out must be a whole number"),
    ],
)
def test_arguments_of_fit(tiny, shapes, arguments, message):
    with pytest.raises(ConfigError, match=message):
        KalmanCLIP(tiny).fit(shapes, **arguments)


def test_numbers_of_numpy_are_numbers(tiny, shapes, tmp_path):
    options = {"crops": np.int64(0), "seed": np.int64(3), "prior_std": np.float64(0.1)}
    KalmanCLIP(tiny, options=options).fit(shapes, shots=np.int64(2)).save(tmp_path)
    assert KalmanCLIP.load(tmp_path, tiny).options_["seed"] == 3


@pytest.mark.parametrize("parts", [[1, 2], None, 3, "ab", [None]])
def test_what_cannot_be_fused(parts):
    with pytest.raises(ConfigError, match="list of fitted KalmanCLIP"):
        KalmanCLIP.fuse(parts)


@pytest.mark.parametrize("method", ["score", "predict", "predict_proba", "predict_sets", "ood_score", "save", "export"])
def test_not_fitted_yet(tiny, shapes, method):
    with pytest.raises(NotFittedError, match="call fit first"):
        getattr(KalmanCLIP(tiny), method)(shapes)


@pytest.mark.parametrize(
    ("call_it", "error"),
    [
        (lambda clf: clf.predict(""), DataError),
        (lambda clf: clf.predict(LONG), DataError),
        (lambda clf: clf.fit(""), DataError),
        (lambda clf: clf.fit("a\0b"), DataError),
        (lambda clf: clf.save(""), AdapterError),
        (lambda clf: clf.save(None), AdapterError),
        (lambda clf: clf.save("a\0b"), AdapterError),
        (lambda clf: clf.export(3), AdapterError),
        (lambda clf: clf.load(LONG), AdapterError),
        (lambda clf: clf.load(None), AdapterError),
        (lambda clf: clf.set_classes(3), DataError),
        (lambda clf: clf.set_classes([1, 2]), DataError),
        (lambda clf: clf.predict_full([], neighbors=-1), ConfigError),
        (lambda clf: clf.predict_full([], neighbors=1.5), ConfigError),
        (lambda clf: clf.predict_full([], samples=2.5), ConfigError),
        (lambda clf: clf.predict_full([], false_alarms="a"), ConfigError),
        (lambda clf: clf.predict_full([], coverage="a"), ConfigError),
        (lambda clf: clf.partial_fit([], [], epochs="1"), KalmanClipError),
        (lambda clf: clf.score([shape_picture("circle", 0)], ["circle"], [1, 2]), DataError),
    ],
)
def test_arguments_of_methods(fitted, tmp_path, monkeypatch, call_it, error):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error):
        call_it(fitted)
    assert not list(tmp_path.iterdir())


# --- models


class Malicious:
    def __reduce__(self):
        return os.system, ("touch executed",)


@pytest.mark.parametrize("kind", ["file", "old file", "folder"])
def test_a_refused_pickle_does_not_say_how_to_run_it(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    name = "open_clip_pytorch_model.bin" if kind == "folder" else "weights.pt"
    torch.save({"a": Malicious()}, name, _use_new_zipfile_serialization=kind != "old file")
    if kind == "folder":
        config = {"model_cfg": {"embed_dim": 8, "vision_cfg": {}, "text_cfg": {"layers": 1}}, "preprocess_cfg": {}}
        config["model_cfg"]["vision_cfg"] = {"layers": 1, "width": 64, "image_size": 32, "patch_size": 16}
        (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"a program that calls \w+\.system") as caught:
        load_backbone(f"local-dir:{tmp_path}" if kind == "folder" else f"ViT-B-32:{name}")
    assert "weights_only" not in str(caught.value)
    assert not (tmp_path / "executed").exists()


def test_without_a_network_the_hub_is_asked_once(tmp_path, shapes, monkeypatch):
    asked = []

    def refuse(request, timeout):
        asked.append(request.full_url)
        raise URLError("no network")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    words = ["fit", shapes, "-o", tmp_path / "a", "--model", "ViT-B-16:openai"]
    (said,) = call(*words, code=ModelError.exit_code).stderr.splitlines()
    assert "the Hub cannot be reached" in said
    assert "'tiny' is embedded" in said
    assert asked == [constants.ENDPOINT]
    assert constants.HF_HUB_OFFLINE is False
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)  # as the variable of that name does
    with network.hub_or_cache() as online:
        assert not online
    assert len(asked) == 1


def test_an_error_is_an_answer(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")

    class Refusing(BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.send_error(401)

        def log_message(self, *_):
            pass

    with contextlib.closing(HTTPServer(("127.0.0.1", 0), Refusing).socket) as closed:
        nobody = f"http://127.0.0.1:{closed.getsockname()[1]}"
    assert not network.reachable(nobody)
    with HTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        assert network.reachable(f"http://127.0.0.1:{server.server_port}")


def test_a_network_that_never_answers(monkeypatch):
    done = threading.Event()

    def wait(request, timeout):
        done.wait()
        raise URLError("too late")

    monkeypatch.setattr("urllib.request.urlopen", wait)
    assert not network.reachable("http://127.0.0.1", patience=0.05)
    done.set()


def test_without_a_network_nothing_else_is_said_in_python(monkeypatch, caplog):
    """open_clip logs what the error says again."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("open_clip.create_model_and_transforms", lambda *_, **__: logging.error("no file") or 1 / 0)
    level = logging.getLogger().level
    with pytest.raises(ModelError):
        load_backbone("RN50:openai")
    assert caplog.records == []
    assert logging.getLogger().level == level


@pytest.mark.parametrize("screen", [True, False])
def test_tables_for_programs_are_escaped_on_a_screen_alone(monkeypatch, capsys, screen):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: screen)
    say_csv([{"image": "a\x1b[2J", "p": 0.5}], ["image", "p"])
    shown = "\\x1b" if screen else "\x1b"
    assert capsys.readouterr().out == f"image,p\na{shown}[2J,0.5\n"
