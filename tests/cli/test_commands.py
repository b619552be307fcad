"""The command line as people use it: arguments in, text, files and exit codes out."""

import csv
import io
import itertools
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw
from safetensors.numpy import load_file
from tests.cli.invoke import call
from tests.processes import PATIENCE, interruptible
from typer.testing import CliRunner

from kalmanclip import KalmanCLIP
from kalmanclip.cli import app
from kalmanclip.cli.fit import MethodOptions
from kalmanclip.methods import method_name

PROGRAM = [sys.executable, "-m", "kalmanclip"]
COMMANDS = ["demo", "fit", "update", "calibrate", "predict", "sort", "evaluate", "serve", "export", "info"]
SHAPES = {"circle": 0, "square": 4, "triangle": 3}  # corners


def draw_shape(path: Path, corners: int, number: int) -> None:
    image = Image.new("RGB", (48, 48), "white")
    pen, colour = ImageDraw.Draw(image), ["red", "green", "blue"][number % 3]
    if corners:
        pen.regular_polygon((24, 24, 14 + 2 * number), corners, fill=colour)
    else:
        pen.ellipse((8, 8 + number, 40, 40 + number), fill=colour)
    image.save(path)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "photos"
    for name, corners in SHAPES.items():
        (folder / name).mkdir(parents=True)
        for number in range(3):
            draw_shape(folder / name / f"{number}.png", corners, number)
    return folder


HEAD = ("--preset", "head", "--epochs", 1)
QUICK = {"default": ("--crops", 2), "head": ("--preset", "head", "--epochs", 2)}
every_preset = pytest.mark.parametrize("preset", list(QUICK))


@pytest.fixture(scope="module")
def adapters(photos, tmp_path_factory):
    """A finished adapter of each; tests must not change them."""
    folder = tmp_path_factory.mktemp("fitted")
    for preset, options in QUICK.items():
        call("fit", photos, "-o", folder / f"{preset}.adapter", *options)
    return {preset: folder / f"{preset}.adapter" for preset in QUICK}


@pytest.fixture(scope="module")
def adapter(adapters):
    return adapters["default"]


def description(folder):
    return json.loads((folder / "adapter.json").read_text())


def tensors(folder):
    return load_file(folder / description(folder)["tensors"]["file"])


def same_tensors(one, other):
    a, b = tensors(one), tensors(other)
    return a.keys() == b.keys() and all(np.array_equal(a[k], b[k]) for k in a)


# --- help, version, imports


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_an_example(command):
    text = call(command, "--help").stdout
    assert "Examples" in text
    assert re.search(rf"kalmanclip {command}\b", text.split("Examples")[1])


@pytest.mark.parametrize("command", ["", *COMMANDS, "data check", "results list", "results export", "results diff"])
def test_help_fits_80_columns(command):
    text = CliRunner().invoke(app, [*command.split(), "--help"], env={"COLUMNS": "80"}).stdout
    assert max(map(len, text.splitlines())) <= 80


def test_help_is_broken_where_the_screen_ends_and_not_where_the_source_does():
    text = call("fit", "--help").stdout.split("Arguments")[0]
    lines = [line.split() for line in text.splitlines()]
    for line, following in itertools.pairwise(lines):
        if line and following and following[0].isalnum():
            assert len(" ".join([*line, following[0]])) > 70, " ".join(line)  # there was no room for one word more


def test_version():
    assert re.fullmatch(r"kalmanclip \d+\.\d+\.\d+\n", call("--version").stdout)


def test_help_waits_for_nothing_heavy():
    script = (
        "import sys\nfrom kalmanclip.cli import app\n"
        "try: app(sys.argv[1:])\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'open_clip', 'matplotlib', 'sklearn', 'numpy'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    for words in (["--help"], ["fit", "--help"], ["demo", "--help"]):
        done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


# --- fit


@pytest.mark.parametrize(
    ("options", "says"), [((), r"prior std +0\.\d\d of a similarity \(chosen among"), (HEAD, r"steps +1, of which 0")]
)
def test_fit_summarises_and_says_what_next(photos, tmp_path, options, says):
    out = tmp_path / "with space.adapter"
    text = call("fit", photos, "-o", out, "--shots", 2, *options).stdout
    assert re.search(says, text)
    assert "3 (circle, square, triangle)" in text
    assert re.search(r"images +6", text)
    assert f"kalmanclip predict '{out}'" in text


def test_options_left_out_are_the_dataclasses_own(adapters):
    from kalmanclip.adapter import read_config
    from kalmanclip.methods import ClassResidualsConfig, KalmanConfig

    found = {name: read_config(description(folder)) for name, folder in adapters.items()}
    assert found["default"] == ClassResidualsConfig(crops=2)
    assert found["head"] == KalmanConfig(epochs=2)


@pytest.mark.parametrize("how", ["flag", "file"])
def test_a_preset_is_named_on_the_command_line_or_in_the_file(photos, tmp_path, how):
    options = tmp_path / "options.json"
    options.write_text('{"low_rank": {"rank": 2}}' if how == "flag" else '{"preset": "paper", "low_rank": {"rank": 2}}')
    flags = ("--preset", "paper") if how == "flag" else ()
    call("fit", photos, "-o", tmp_path / "a", "--config", options, *flags, "--epochs", 1, "--prior-std", 0.2)
    found = description(tmp_path / "a")
    config = found["config"]
    assert (found["method"], config["observation"], config["epochs"]) == ("kalman", "contrastive", 1)
    assert (config["low_rank"]["placement"], config["low_rank"]["rank"], config["prior_std"]) == ("towers", 2, 0.2)


def test_the_usual_preset_is_that_of_the_device_and_of_what_is_learned():
    def resolved(device=None, described=False, captions=False, **flags):
        return method_name(MethodOptions(**flags).resolve(None, captions, device, described))

    assert resolved("cpu") == resolved("cuda", described=True) == "class_residuals"
    assert resolved("cuda") == resolved("cuda:1", preset="default") == "joint"
    assert resolved("cuda", preset="residuals") == "class_residuals"
    assert resolved("cuda", captions=True) == "kalman"


def test_the_flags_of_all_parts_go_with_the_joint_preset(photos, tmp_path):
    assert "joint" in call("fit", "--help").stdout
    file = tmp_path / "options.json"
    file.write_text(json.dumps({"steps": 1, "low_rank": {"last_blocks": 1}}))
    flags = ("--rank", 1, "--crops", 1, "--prior-std", 0.2, "--alpha", 0.3, "--seed", 4, "--config", file)
    call("fit", photos, "-o", tmp_path / "a", "--preset", "joint", *flags)
    found = description(tmp_path / "a")
    config, residuals = found["config"], found["config"]["residuals"]
    assert (found["method"], config["steps"], config["low_rank"]["rank"]) == ("joint", 1, 1)
    assert (config["prior_std"], residuals["prior_std"]) == (0.2, None)  # of the tower
    assert (residuals["crops"], residuals["alpha"], residuals["seed"]) == (1, 0.3, 4)
    assert "diagonal, over" in call("info", tmp_path / "a").stdout
    assert "nothing to resume" in call("fit", photos, "-o", tmp_path / "a", "--resume").stdout
    message = call("fit", photos, "-o", tmp_path / "b", "--preset", "joint", "--epochs", 2, code=2).stderr
    assert "Unknown option '--epochs'" in message
    (question, *_) = json.loads(call("suggest", photos, tmp_path / "a", "-n", 1, "--json").stdout).items()
    assert question == ("by", "filter")
    assert "untouched" in call("export", tmp_path / "a", "-o", tmp_path / "c").stdout


def test_prior_std_is_about_what_is_learned(photos, tmp_path):
    call("fit", photos, "-o", tmp_path / "a", "--prior-std", 0.2, "--crops", 0)
    config = description(tmp_path / "a")["config"]
    assert (config["prior_std"], config["crops"]) == (0.2, 0)
    assert float(tensors(tmp_path / "a")["residuals.strength"]) == pytest.approx(25)
    call("fit", photos, "-o", tmp_path / "b", *HEAD, "--prior-std", 0.2)
    config = description(tmp_path / "b")["config"]
    assert config["prior_std"] == 0.2


def test_flags_win_over_the_file_and_leave_the_rest_of_a_group_alone(photos, tmp_path):
    from kalmanclip.methods import KalmanConfig

    options = tmp_path / "options.json"
    options.write_text('{"preset": "head", "epochs": 7, "noise": {"beta": 0.5}, "low_rank": {"scale": 2.0}}')
    out = tmp_path / "a"
    call("fit", photos, "-o", out, "--config", options, "--epochs", 1, "--rank", 2, "--alpha", 0)
    config, default = description(out)["config"], KalmanConfig()
    assert (config["epochs"], config["noise"]["beta"], config["filter"]["alpha"]) == (1, 0.5, 0)
    assert (config["low_rank"]["scale"], config["low_rank"]["rank"]) == (2.0, 2)
    assert config["noise"]["structure"] == default.noise.structure
    assert config["low_rank"]["placement"] == default.low_rank.placement


def test_templates_and_model_are_taken(photos, tmp_path):
    call("fit", photos, "-o", tmp_path / "a", "--crops", 0, "--template", "a {}.", "--template", "the {}!")
    assert description(tmp_path / "a")["templates"] == ["a {}.", "the {}!"]
    assert description(tmp_path / "a")["backbone"]["name"] == "tiny"


def test_an_adapter_is_not_overwritten_without_force(photos, tmp_path):
    out = tmp_path / "a"
    call("fit", photos, "-o", out, "--crops", 0)
    before = description(out)
    assert "--force" in call("fit", photos, "-o", out, "--crops", 0, "--seed", 1, code=5).stderr
    assert description(out) == before
    (out / "adapter.json").write_text("damaged")
    call("fit", photos, "-o", out, "--crops", 0, "--seed", 1, "--force")
    assert description(out)["config"]["seed"] == 1


def test_other_peoples_folders_are_left_alone(photos):
    assert "other things" in call("fit", photos, "-o", photos, code=2).stderr
    assert sorted(p.name for p in photos.iterdir()) == sorted(SHAPES)


def test_output_is_checked_before_the_work(photos, tmp_path, monkeypatch):
    monkeypatch.setattr("kalmanclip.estimator.KalmanCLIP.fit", lambda *_, **__: pytest.fail("worked first"))
    (tmp_path / "file").touch()
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        assert "write" in call("fit", photos, "-o", out, code=5).stderr


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_place_is_refused(photos, tmp_path):
    tmp_path.chmod(0o500)
    assert "Permission denied" in call("fit", photos, "-o", tmp_path / "a", code=5).stderr


def test_a_failed_fit_leaves_no_empty_folder(photos, tmp_path):
    call("fit", photos, "-o", tmp_path / "a", "--model", "nonsense", code=4)
    assert list(tmp_path.iterdir()) == []


# --- interruption and resuming


def stop_after(passes, monkeypatch):
    """Lets the adapter be saved so often, then presses Ctrl-C."""
    from kalmanclip.estimator import KalmanCLIP

    save, saved = KalmanCLIP.save, []

    def save_and_stop(self, folder, notes):
        save(self, folder, notes)
        saved.append(folder)
        if len(saved) == passes:
            raise KeyboardInterrupt

    monkeypatch.setattr(KalmanCLIP, "save", save_and_stop)


def test_resuming_gives_the_adapter_of_an_uninterrupted_fit(photos, tmp_path, monkeypatch):
    file = tmp_path / "options.json"
    file.write_text(json.dumps({"epochs": 4, "batch_size": 4}))
    options = ("--preset", "head", "--shots", 2, "--seed", 5, "--template", "a {}.", "--config", file)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    call("fit", photos, "-o", whole, *options)
    with monkeypatch.context() as patch:
        stop_after(2, patch)
        stopped = call("fit", photos, "-o", broken, *options, code=130)
    assert "2 of 4 passes" in stopped.stderr
    assert f"kalmanclip fit {photos} -o {broken} --resume" in stopped.stderr
    assert "--resume" in call("fit", photos, "-o", broken, code=5).stderr  # neither lost nor taken for finished
    assert "interrupted" in call("info", broken).stdout
    rows = json.loads(call("predict", broken, photos, "--uncertainty", "--json").stdout)  # what there is can be used
    assert all(row["logit_std"] > 0 for row in rows)
    call("fit", photos, "-o", broken, "--resume")  # just as the message said: options are remembered
    assert same_tensors(whole, broken)
    assert description(whole) == description(broken)
    assert "nothing to resume" in call("fit", photos, "-o", broken, "--resume").stdout


def test_resuming_something_else_is_refused(photos, tmp_path, monkeypatch):
    out = tmp_path / "a"
    with monkeypatch.context() as patch:
        stop_after(1, patch)
        call("fit", photos, "-o", out, "--preset", "head", "--epochs", 3, "--shots", 2, code=130)
    changed = [("--epochs", 5), ("--beta", 0.5), ("--model", "x:y"), ("--template", "a {}."), ("--shots", 3)]
    for option in changed:
        message = call("fit", photos, "-o", out, "--resume", *option, code=2).stderr
        assert option[0].strip("-") in message
        assert "--force" in message
    call("fit", photos, "-o", out, "--resume", "--force", code=2)
    other = tmp_path / "other"
    for name in ("circle", "square"):
        (other / name).mkdir(parents=True)
        for number in range(3):
            draw_shape(other / name / f"{number}.png", SHAPES[name], number)
    assert "classes" in call("fit", other, "-o", out, "--resume", code=3).stderr
    (other / "triangle").mkdir()
    for number in range(3):
        draw_shape(other / "triangle" / f"{number}.jpg", 3, number)
    assert "images" in call("fit", other, "-o", out, "--resume", code=3).stderr
    for preset, differs in (("default", "method"), ("paper", "low_rank.placement")):
        assert f"({differs} was" in call("fit", photos, "-o", out, "--resume", "--preset", preset, code=2).stderr
    # the same options may be repeated
    call("fit", photos, "-o", out, "--resume", "--preset", "head", "--epochs", 3, "--shots", 2)


def test_ctrl_c_in_the_first_pass_says_that_nothing_was_saved(photos, tmp_path, monkeypatch):
    def press(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("kalmanclip.estimator.KalmanCLIP.fit", press)
    assert "nothing was saved" in call("fit", photos, "-o", tmp_path / "a", code=130).stderr
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_stops_a_command_that_is_deleting_something(photos, tmp_path, monkeypatch):
    """Python itself would drop the interrupt and go on."""

    class Interrupted:
        def __del__(self):
            signal.raise_signal(signal.SIGINT)

    def press(*_, **__):
        Interrupted()
        time.sleep(PATIENCE)

    monkeypatch.setattr("kalmanclip.estimator.KalmanCLIP.fit", press)
    hook = sys.unraisablehook
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
    try:
        call("fit", photos, "-o", tmp_path / "a", code=130)
    finally:
        signal.signal(signal.SIGINT, before)
    assert sys.unraisablehook is hook


def test_nothing_is_not_resumed(photos, tmp_path):
    """The options of the first try are not remembered: it would become a fit with other ones."""
    assert "without --resume" in call("fit", photos, "-o", tmp_path / "a", "--resume", code=5).stderr
    assert list(tmp_path.iterdir()) == []


LONG = ("--preset", "head", "--epochs", "40", "--seed", "2")


@pytest.fixture(scope="module")
def uninterrupted(photos, tmp_path_factory):
    folder = tmp_path_factory.mktemp("long") / "whole"
    call("fit", photos, "-o", folder, *LONG)
    return folder


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_a_stopped_process_can_be_resumed(photos, uninterrupted, tmp_path, sent, code):
    broken = tmp_path / "broken"
    fit = [*PROGRAM, "fit", str(photos), "-o", str(broken), *LONG]
    process = subprocess.Popen(fit, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=interruptible)
    while not (broken / "adapter.json").exists() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(sent)
    _, messages = process.communicate(timeout=PATIENCE)
    assert process.returncode == code, messages
    assert "Traceback" not in messages
    assert ("--resume" in messages) == (sent == signal.SIGINT)
    assert 0 < description(broken)["notes"]["epochs_done"] < 40
    call("fit", photos, "-o", broken, "--resume")
    assert same_tensors(uninterrupted, broken)


def test_towers_in_bfloat16(photos, tmp_path):
    """The precision is that of a fit, also when it is resumed; the adapter goes with any."""
    output = tmp_path / "a"
    assert "float32, bfloat16" in call("fit", photos, "-o", output, "--precision", "half", code=2).stderr
    options = ("--shots", 1, "--preset", "head", "--epochs", 2)
    call("fit", photos, "-o", output, *options, "--precision", "bfloat16")
    notes = description(output)["notes"]
    assert notes["precision"] == "bfloat16"
    told = call("fit", photos, "-o", output, "--resume", "--precision", "float32", code=2).stderr
    assert "precision was 'bfloat16'" in " ".join(told.split())
    images = [photos / "circle" / "0.png", photos / "square" / "0.png"]
    exact, rounded = (
        json.loads(call("predict", output, *images, "--json", "--precision", precision).stdout)
        for precision in ("float32", "bfloat16")
    )
    for one, other in zip(exact, rounded, strict=True):
        assert 0 < abs(one["probability"] - other["probability"]) < 0.1


# --- predict


def test_predict_shows_a_table(photos, adapter):
    text = call("predict", adapter, photos / "circle").stdout
    assert text.count("circle" + os.sep) == 3
    assert "choice 2" not in text
    assert "%" in text
    text = call("predict", adapter, photos / "circle", "--all").stdout
    assert "choice 2" in text
    assert "OOD score" in text


def test_json_is_one_array_and_nothing_else(photos, adapter):
    rows = json.loads(call("predict", adapter, photos, photos / "circle" / "0.png", "--json", "--top", 3).stdout)
    assert len(rows) == 10
    assert rows[-1]["image"] == str(photos / "circle" / "0.png")
    for row in rows:
        assert row["class"] == row["top"][0]["class"]
        assert {choice["class"] for choice in row["top"]} == set(SHAPES)
        assert sum(choice["probability"] for choice in row["top"]) == pytest.approx(1, abs=1e-5)


@every_preset
def test_csv_parses_and_agrees_with_json(photos, adapters, preset):
    words = ("predict", adapters[preset], photos, "--uncertainty")
    as_json = json.loads(call(*words, "--json").stdout)
    as_csv = list(csv.DictReader(io.StringIO(call(*words, "--csv").stdout)))
    assert [row["class"] for row in as_csv] == [row["class"] for row in as_json]
    assert [float(row["logit_std"]) for row in as_csv] == [row["logit_std"] for row in as_json]
    assert all(float(row["logit_std"]) > 0 for row in as_csv)
    assert all(float(row["probability_2"]) <= float(row["probability"]) for row in as_csv)


@every_preset
def test_uncertainty_averages_and_says_what_is_left_open(photos, adapters, preset):
    adapter = adapters[preset]
    rows = json.loads(call("predict", adapter, photos, "--json", "--uncertainty", "--top", 3).stdout)
    averaged = KalmanCLIP.load(adapter).predict_full(photos)
    assert [row["probability"] for row in rows] == pytest.approx(averaged.confidence.tolist(), abs=1e-5)
    for row in rows:
        entropy = -sum(c["probability"] * math.log(max(c["probability"], 1e-12)) for c in row["top"])
        assert row["epistemic"] + row["aleatoric"] == pytest.approx(entropy, abs=1e-4)
    assert "lead" in call("predict", adapter, photos, "--uncertainty").stdout


def test_stdout_of_a_real_run_is_clean(photos, adapter):
    done = subprocess.run([*PROGRAM, "predict", str(adapter), str(photos), "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)) == 9
    assert done.stderr == ""


def test_bad_images_are_all_named_or_left_out(photos, adapter, tmp_path):
    (tmp_path / "broken.png").write_text("not an image")
    (tmp_path / "empty.jpg").touch()
    draw_shape(tmp_path / "fine.png", 4, 0)
    message = call("predict", adapter, tmp_path, code=3).stderr
    assert "broken.png" in message
    assert "empty.jpg" in message
    assert "--skip-bad" in message
    result = call("predict", adapter, tmp_path, "--skip-bad", "--json")
    assert [Path(row["image"]).name for row in json.loads(result.stdout)] == ["fine.png"]
    assert "broken.png" in result.stderr
    assert json.loads(call("predict", adapter, tmp_path / "empty.jpg", "--skip-bad", "--json").stdout) == []


def test_file_names_are_shown_as_they_are(photos, adapter, tmp_path):
    odd = tmp_path / "[red]dear :smile: friend[bold].png"
    draw_shape(odd, 4, 0)
    assert str(odd) in call("predict", adapter, odd).stdout
    missing = tmp_path / "[bold]gone.png"
    assert str(missing) in call("predict", adapter, missing, code=3).stderr


# --- evaluate, export, info


def test_evaluate_prints_accuracy_beside_zero_shot(photos, adapter):
    text = call("evaluate", adapter, photos).stdout
    assert "of 9 images" in text
    assert all(word in text for word in ("zero-shot", "precision", "recall", "F1"))


@every_preset
def test_evaluate_agrees_with_the_estimator_and_draws(photos, adapters, tmp_path, preset):
    from kalmanclip import KalmanCLIP

    adapter = adapters[preset]
    picture = tmp_path / "confusion.png"
    result = json.loads(call("evaluate", adapter, photos, "--json", "-o", picture).stdout)
    clf = KalmanCLIP.load(adapter)
    assert result["accuracy"] == pytest.approx(clf.score(photos))
    assert result["zero_shot_accuracy"] == pytest.approx(KalmanCLIP().set_classes(clf.class_names_).score(photos))
    assert [row["class"] for row in result["classes"]] == sorted(SHAPES)
    matrix = np.array(result["confusion_matrix"])
    assert matrix.sum(axis=1).tolist() == [3, 3, 3]
    assert np.trace(matrix) == round(9 * result["accuracy"])
    assert np.asarray(Image.open(picture).convert("L")).std() > 10


def test_evaluate_refuses_bad_pictures_before_the_work(photos, adapter, tmp_path):
    assert ".png" in call("evaluate", adapter, photos, "-o", tmp_path / "matrix.xyz", code=2).stderr
    call("evaluate", adapter, photos, "-o", tmp_path / "nowhere" / "matrix.png", code=2)
    (tmp_path / "folder.png").mkdir()
    call("evaluate", adapter, photos, "-o", tmp_path / "folder.png", code=2)


@every_preset
def test_exported_models_load_as_the_message_says(photos, adapters, tmp_path, preset):
    import open_clip
    import torch

    from kalmanclip import KalmanCLIP

    adapter = adapters[preset]
    text = call("export", adapter, "-o", tmp_path / "clip").stdout
    file = photos / "circle" / "1.png"
    code = "\n".join(line.strip() for line in text.splitlines() if line.startswith("  "))
    found: dict = {}
    exec(code.replace("new.jpg", str(file)), found)
    classes = json.loads((tmp_path / "clip" / "classes.json").read_text())
    prompts = [classes["templates"][0].replace("{}", name) for name in classes["class_names"]]
    expected = KalmanCLIP.load(adapter).predict_proba([file])
    tokenizer = open_clip.get_tokenizer(f"local-dir:{tmp_path / 'clip'}")
    with torch.no_grad():
        torch.testing.assert_close(found["probabilities"].numpy(force=True), expected, atol=1e-4, rtol=1e-3)
        image = found["model"].encode_image(found["preprocess"](Image.open(file)).unsqueeze(0), normalize=True)
        scale = found["model"].logit_scale.exp()
        texts = found["model"].encode_text(tokenizer(prompts), normalize=True)
        p = (scale * image @ texts.mT).softmax(dim=1)
    # low-rank parameters are in the weights of both towers; class residuals are in the classifier alone
    assert np.allclose(p.numpy(), expected, atol=1e-4, rtol=1e-3) == (preset == "head")
    call("export", adapter, "-o", tmp_path / "clip")  # its own files may be replaced


@pytest.mark.parametrize(
    ("preset", "says"),
    [
        ("default", r"about residuals of 3 classes in 512 dimensions"),
        ("head", r"before it saw anything [\d.]+, now [\d.]+ on average"),
    ],
)
def test_info_describes_an_adapter_even_without_its_backbone(adapters, tmp_path, preset, says):
    adapter = adapters[preset]
    text = call("info", adapter).stdout
    assert "tiny" in text
    assert "circle, square, triangle" in text
    assert ("noise.beta" in text, "epochs" in text, "filter.q" in text) == (preset == "head",) * 3
    assert ("crops" in text) == (preset == "default")
    assert re.search(r"alpha +0\.1", text)
    assert re.search(says, text)
    moved = tmp_path / "moved"
    moved.mkdir()
    for file in adapter.iterdir():
        (moved / file.name).write_bytes(file.read_bytes().replace(b'"tiny"', b'"hf-hub:gone/away"'))
    assert "hf-hub:gone/away" in call("info", moved).stdout


def test_info_describes_the_installation():
    text = call("info").stdout
    assert "open_clip_torch" in text
    assert "embedded model" in text


# --- errors


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["fit", "{photos}"], 2, "--output"),
        (["fit", "{photos}", "-o", "{new}", "--preset", "x"], 2, "residuals, joint, head, paper"),
        (["fit", "{photos}", "-o", "{new}", "--epochs", "3"], 2, "Unknown option '--epochs'"),
        (["fit", "{photos}", "-o", "{new}", "--rank", "3"], 2, "Unknown option '--rank'"),
        (["fit", "{photos}", "-o", "{new}", "--batch-size", "3"], 2, "Unknown option '--batch-size'"),
        (["fit", "{photos}", "-o", "{new}", "--preset", "head", "--crops", "3"], 2, "Unknown option '--crops'"),
        (["fit", "{photos}", "-o", "{new}", "--crops", "-1"], 2, "crops must be a whole number"),
        (["fit", "{photos}", "-o", "{new}", "--preset", "head", "--epochs", "0"], 2, "epochs must be at least 1"),
        (["fit", "{photos}", "-o", "{new}", "--preset", "head", "--observation", "x"], 2, "cosine"),
        (["fit", "{photos}", "-o", "{new}", "--preset", "head", "--belief", "x"], 2, "diagonal"),
        (["fit", "{photos}", "-o", "{new}", "--preset", "head", "--placement", "x"], 2, "towers"),
        (["fit", "{photos}", "-o", "{new}", "--template", "no hole"], 2, "{}"),
        (["fit", "{photos}", "-o", "{new}", "--config", "options.toml"], 2, ".json"),
        (["fit", "{photos}", "-o", "{new}", "--config", "gone.json"], 2, "gone.json"),
        (["fit", "{photos}", "-o", "{new}", "--device", "abacus"], 2, "abacus"),
        (["predict", "{adapter}", "{photos}", "--json", "--csv"], 2, "--csv"),
        (["fit", "nowhere", "-o", "{new}"], 3, "does not exist"),
        (["evaluate", "{adapter}", "nowhere"], 2, "no folder of that name"),
        (["evaluate", "{adapter}", "no/where"], 3, "There is no folder"),
        (["predict", "{adapter}", "nowhere.jpg"], 3, "nowhere.jpg"),
        (["fit", "{photos}", "-o", "{new}", "--model", "nonsense"], 4, "tiny"),
        (["predict", "nowhere", "{photos}"], 5, "not an adapter"),
        (["info", "{photos}"], 5, "not an adapter"),
        (["export", "{adapter}", "-o", "{photos}"], 2, "other things"),
    ],
)
def test_errors_are_one_message_with_their_exit_code(words, code, says, photos, adapter, tmp_path):
    places = {"{photos}": photos, "{adapter}": adapter, "{new}": tmp_path / "new"}
    result = call(*(places.get(word, word) for word in words), code=code)
    assert says in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def raising(error):
    def fail(*_, **__):
        raise error

    return fail


def test_numerical_errors_have_their_own_code(photos, tmp_path, monkeypatch):
    from kalmanclip.errors import NumericalError

    monkeypatch.setattr("kalmanclip.estimator.KalmanCLIP.fit", raising(NumericalError("not finite")))
    assert call("fit", photos, "-o", tmp_path / "a", code=6).stderr == "Error: not finite\n"


def test_the_unexpected_is_one_line_unless_debugging(photos, tmp_path, monkeypatch):
    monkeypatch.setattr("kalmanclip.estimator.KalmanCLIP.fit", raising(ZeroDivisionError("oh")))
    words = ["fit", str(photos), "-o", str(tmp_path / "a")]
    assert "ZeroDivisionError: oh" in call(*words, code=1).stderr
    assert isinstance(CliRunner().invoke(app, ["--debug", *words]).exception, ZeroDivisionError)
    by_variable = CliRunner().invoke(app, words, env={"KALMANCLIP_DEBUG": "1"})
    assert isinstance(by_variable.exception, ZeroDivisionError)


def test_logging_is_left_as_it_was(photos, adapter):
    import logging

    level = logging.getLogger().level
    call("predict", adapter, photos)
    assert logging.getLogger().level == level
