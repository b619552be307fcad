"""What the page says, learns and refuses, without a browser."""

import asyncio
import base64
import io
import json
import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.app.conftest import png_header
from tests.conftest import full_disk, shape_picture
from typer.testing import CliRunner

from kalmanclip.app import images as page_images
from kalmanclip.app import render, service
from kalmanclip.app.images import MAX_WAITING, STALE, Gallery, Upload, preview, read_upload, take_uploads
from kalmanclip.app.service import CHOICES, RANGE, AdapterService, _choices, answer
from kalmanclip.cli import app as program
from kalmanclip.data import read_folder
from kalmanclip.errors import AdapterError, ConfigError, DataError, ImageError
from kalmanclip.estimator import KalmanCLIP
from kalmanclip.prediction import Averaged, Prediction


@pytest.fixture(scope="module")
def classifier(fitted, tiny):
    return KalmanCLIP.load(fitted, tiny)


@pytest.fixture
def page(adapter, tiny, learned, unseen):
    """The adapter behind a page, with pictures to show and to measure on."""
    classifier = KalmanCLIP.load(adapter, tiny)
    return AdapterService(classifier, adapter, Gallery(learned), read_folder(unseen, classifier.class_names_))


def shape(name, seed=9):
    return Upload(shape_picture(name, seed), f"{name}.png")


def stripes(seed):
    """Something that no shape looks like."""
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, 255, (64, 1, 3), dtype=np.uint8)
    return Upload(Image.fromarray(np.repeat(rows, 64, axis=1)), f"stripes{seed}.png")


# Answers.


def test_choices_are_the_prediction_in_order(classifier):
    image = shape("square")
    said = answer(classifier, image, Gallery())
    p = classifier.predict_full([image]).probabilities[0]
    assert [choice.probability for choice in said.choices] == pytest.approx(sorted(p.tolist(), reverse=True))
    assert said.choices[0].name == classifier.class_names_[int(p.argmax())]
    assert all(0 <= c.low <= c.probability <= c.high <= 1 for c in said.choices)
    entropy = -sum(c.probability * np.log(c.probability) for c in said.choices)
    assert (said.picture + said.training) * np.log(3) == pytest.approx(entropy, rel=1e-4)


@pytest.mark.parametrize(("gap", "std"), [(0.0, 0.5), (1.5, 1.0), (-2.0, 0.2)])
def test_the_range_of_two_classes_has_a_closed_form(gap, std):
    """The logit of two classes is Gaussian: its quantiles are those of the probability."""
    mean = torch.tensor([[gap, 0.0]], dtype=torch.float64)
    average = Averaged(mean.softmax(dim=1), torch.zeros(1, dtype=torch.float64))
    said = _choices(Prediction.of(("a", "b"), average, mean, torch.full_like(mean, std)))
    a = next(choice for choice in said if choice.name == "a")
    quantile = torch.distributions.Normal(gap, std * 2**0.5).icdf(torch.tensor([(1 - RANGE) / 2, (1 + RANGE) / 2]))
    assert [a.low, a.high] == pytest.approx(quantile.sigmoid().tolist(), abs=0.04)


def test_only_the_first_of_many_classes_are_said():
    mean = torch.arange(30.0).unsqueeze(0)
    average = Averaged(mean.softmax(dim=1), torch.zeros(1))
    said = _choices(Prediction.of([str(c) for c in range(30)], average, mean, torch.zeros_like(mean)))
    assert [choice.name for choice in said] == [str(c) for c in range(29, 29 - CHOICES, -1)]
    assert all(choice.low == choice.probability == choice.high for choice in said)  # nothing is open


def test_unknown_pictures_are_called_so(classifier):
    images = [stripes(seed) for seed in range(6)] + [shape(name, 70) for name in classifier.class_names_]
    said = [answer(classifier, image, Gallery()).unknown for image in images]
    assert said == classifier.is_ood(images).tolist()
    assert all(said[:6])
    assert not any(said[6:])


def test_a_list_of_classes_where_it_was_calibrated(classifier, tiny, shapes):
    image = shape("triangle")
    assert list(answer(classifier, image, Gallery()).among) == classifier.predict_sets([image], 0.9)[0]
    turns = KalmanCLIP(tiny, prior_std=0.15, options={"crops": 0}).fit(shapes)  # each picture held out once
    assert list(answer(turns, image, Gallery()).among) == turns.predict_sets([image], 0.9)[0]
    bare = KalmanCLIP(tiny, prior_std=0.15, options={"crops": 0}).fit(shapes, shots=1)
    assert answer(bare, image, Gallery()).among is None
    few = KalmanCLIP(tiny, prior_std=0.15, options={"crops": 0}).fit(shapes, calibrate=1)
    assert answer(few, image, Gallery()).among is None  # three pictures cannot promise 90 %


def test_without_what_tells_unknown_pictures_nothing_is_said_about_them(tiny, shapes):
    towers = KalmanCLIP(tiny, preset="head", epochs=1).fit(shapes)
    towers.method_.ood = None  # as in an adapter of an older version
    said = answer(towers, shape("circle"), Gallery())
    assert (said.unknown, said.neighbours) == (None, ())
    assert "nothing I know" not in render.answer_html(said, shape("circle"))


def test_the_nearest_training_picture_of_itself_is_itself(classifier, learned):
    names = classifier.training_images_[0]
    path = learned / names[5]
    said = answer(classifier, read_upload(path), Gallery(learned))
    assert said.neighbours[0].name == names[5]
    assert said.neighbours[0].class_name == path.parent.name
    assert said.neighbours[0].similarity == pytest.approx(1, abs=1e-3)
    assert all(n.preview.startswith("data:image/jpeg;base64,") for n in said.neighbours)
    assert all(n.preview is None for n in answer(classifier, read_upload(path), Gallery()).neighbours)


def test_of_two_pictures_with_one_name_neither_is_shown(tmp_path):
    for part in ("monday", "tuesday"):
        (tmp_path / part / "circle").mkdir(parents=True)
        shape_picture("circle", 1).save(tmp_path / part / "circle" / "0.png")
    shape_picture("circle", 1).save(tmp_path / "monday" / "circle" / "1.png")
    gallery = Gallery(tmp_path)
    assert gallery.show(0, "circle/0.png") is None
    assert gallery.show(1, "circle/1.png") is not None


# Limits.


def truncated():
    stream = io.BytesIO()
    shape_picture("circle", 0).save(stream, "PNG")
    return stream.getvalue()[:2000]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"hello", "not an image"),
        (b"", "empty"),
        (truncated(), "damaged"),
        (png_header(8000, 8000), "8000 x 8000 pixels, more than the limit of 50000000; make it smaller"),
        (b"\0" * (page_images.MAX_BYTES + 1), "larger than 20 MB"),
    ],
    ids=["text", "empty", "truncated", "bomb", "large"],
)
def test_what_is_no_picture_is_refused_by_name(tmp_path, content, message):
    path = tmp_path / "cat.png"
    path.write_bytes(content)
    with pytest.raises(ImageError, match=re.escape(message)) as caught:
        read_upload(path)
    assert str(caught.value).startswith("cat.png ")
    assert str(tmp_path) not in str(caught.value)
    assert "load_image" not in str(caught.value)


def test_thin_pictures_are_refused(tmp_path):
    """A model enlarges the short side: one row of a million pixels would become hundreds of gigabytes."""
    Image.new("RGB", (5000, 2)).save(tmp_path / "thin.png")
    with pytest.raises(ImageError, match="long and thin"):
        read_upload(tmp_path / "thin.png")


def test_large_pictures_become_smaller_at_once(tmp_path):
    Image.new("RGB", (3000, 2000)).save(tmp_path / "large.jpg")
    assert read_upload(tmp_path / "large.jpg").image.size == (1536, 1024)


def test_a_preview_is_small_and_says_nothing_of_place_and_time(tmp_path):
    image = shape_picture("circle", 0, 400)
    exif = Image.Exif()
    exif[0x010E] = "secret place"
    image.save(tmp_path / "a.jpg", exif=exif, comment=b"secret comment")
    shown = preview(read_upload(tmp_path / "a.jpg").image, 100)
    content = io.BytesIO(base64.b64decode(shown.partition(",")[2]))
    assert b"secret" not in content.getvalue()
    assert Image.open(content).size == (100, 100)
    assert not Image.open(content).getexif()


def test_nothing_made_of_an_upload_may_be_cached():
    assert shape("circle").content() is None


# Uploads.


@pytest.fixture
def uploads(tmp_path):
    folder = tmp_path / "uploads"
    folder.mkdir()
    return folder


def upload(folder, content, name="a.png"):
    place = folder / f"hash{len(list(folder.iterdir()))}"
    place.mkdir()
    (place / name).write_bytes(content)
    return {"path": str(place / name), "meta": {"_type": "gradio.FileData"}}


def png(name="circle"):
    stream = io.BytesIO()
    shape_picture(name, 3).save(stream, "PNG")
    return stream.getvalue()


def test_uploads_are_gone_once_read(uploads):
    payload = [upload(uploads, png()), upload(uploads, png("square"), "b.png")]
    assert [image.name for image in take_uploads(payload, uploads)] == ["a.png", "b.png"]
    assert list(uploads.iterdir()) == []
    assert len(take_uploads(upload(uploads, png()), uploads)) == 1
    assert take_uploads(None, uploads) == take_uploads([], uploads) == []
    with pytest.raises(ImageError):
        take_uploads([upload(uploads, png()), upload(uploads, b"hello")], uploads)
    assert list(uploads.iterdir()) == []


def test_a_request_cannot_name_other_files(uploads, tmp_path):
    other = tmp_path / "photos"
    other.mkdir()
    (other / "mine.png").write_bytes(png())
    (uploads / "place").mkdir()
    (uploads / "place" / "link.png").symlink_to(other / "mine.png")
    (uploads / "direct.png").write_bytes(png())
    for path in (
        str(other / "mine.png"),
        str(uploads / ".." / "photos" / "mine.png"),
        str(uploads / "place" / "link.png"),
        str(uploads / "direct.png"),
        "http://example.org/a.png",
        "a\0b",
        7,
        None,
    ):
        with pytest.raises(DataError, match="not an upload"):
            take_uploads({"path": path}, uploads)
    with pytest.raises(DataError, match="not an upload"):
        take_uploads("text", uploads)
    assert (other / "mine.png").exists()
    with pytest.raises(ImageError, match="choose it again"):
        take_uploads({"path": str(uploads / "gone" / "a.png")}, uploads)


# Learning.


def test_a_new_class_is_known_at_once_and_on_disk_when_saved(page, adapter, tiny):
    before = (adapter / "adapter.json").read_bytes()
    lesson = page.learn([stripes(seed) for seed in range(3)], "  zebra_skin ")
    assert (lesson.class_name, lesson.pictures, lesson.before, lesson.new) == ("zebra skin", 3, 0, True)
    assert lesson.after == 3
    said = page.look(stripes(50))
    assert said.choices[0].name == "zebra skin"
    assert said.neighbours[0].class_name == "zebra skin"
    assert said.neighbours[0].preview is not None
    assert said.among is None  # the calibration was about another belief
    assert page.about().counts == {"circle": 4, "square": 4, "triangle": 4, "zebra skin": 3}
    assert page.about().unsaved == 3
    assert (adapter / "adapter.json").read_bytes() == before

    page.save()
    assert page.about().unsaved == 0
    assert KalmanCLIP.load(adapter, tiny).predict([stripes(50)]) == ["zebra skin"]
    page.save()  # its own state is no surprise


def test_undo_goes_back_to_the_disk(page):
    measured, said = page.about().measured, page.look(shape("circle", 40))
    page.learn([stripes(1)], "zebra")
    page.learn([shape("circle", 77)], "SQUARE")
    assert list(page.about().counts) == ["circle", "square", "triangle", "zebra"]
    page.go_back()
    assert page.look(shape("circle", 40)) == said
    assert (page.about().unsaved, page.about().measured) == (0, measured)


def test_it_is_measured_before_and_after(page, unseen, tiny, adapter):
    measured = page.about().measured
    assert measured.images == 6
    assert measured.accuracy == pytest.approx(KalmanCLIP.load(adapter, tiny).score(unseen))
    assert sum(row.images for row in measured.rows) == 6
    lesson = page.learn([stripes(1)], "zebra")
    assert lesson.measured == (measured, page.about().measured)


def test_what_cannot_be_learned_is_refused_and_changes_nothing(page):
    state = page.about()
    for images, name, message in (
        ([], "circle", "at least one picture"),
        ([shape("circle")], " _ ", "which class"),
        ([shape("circle")], "a" * 81, "81 characters"),
        ([shape("circle")] * 101, "circle", "at most 100"),
    ):
        with pytest.raises(DataError, match=message):
            page.learn(images, name)
    assert page.about() == state


def test_a_full_disk_is_told_and_nothing_is_lost(page, adapter, tiny):
    before = {file.name: file.read_bytes() for file in adapter.iterdir()}
    page.learn([Upload(shape_picture("circle", 77), "new.png")], "disc")
    with full_disk(), pytest.raises(AdapterError, match=r"cannot write to .*choose another place"):
        page.save()
    assert before.items() <= {file.name: file.read_bytes() for file in adapter.iterdir()}.items()
    page.save()
    assert "disc" in KalmanCLIP.load(adapter, tiny).class_names_


def test_saving_can_be_forbidden_and_never_undoes_what_others_saved(adapter, tiny):
    watched = AdapterService(KalmanCLIP.load(adapter, tiny), adapter, read_only=True)
    page = AdapterService(KalmanCLIP.load(adapter, tiny), adapter)
    with pytest.raises(ConfigError, match="read-only"):
        watched.save()
    KalmanCLIP.load(adapter, tiny).partial_fit([stripes(0)], ["zebra"]).save(adapter)
    page.learn([stripes(1)], "tiger")
    with pytest.raises(AdapterError, match="somebody else"):
        page.save()
    page.go_back()
    assert "zebra" in page.about().counts
    page.save()


def test_many_people_at_once(adapter, tiny):
    """Lessons do not overwrite one another, and nobody sees half a lesson."""
    page = AdapterService(KalmanCLIP.load(adapter, tiny), adapter)
    with ThreadPoolExecutor(6) as pool:
        lessons = [pool.submit(page.learn, [stripes(n)], f"class {n}") for n in range(3)]
        answers = [pool.submit(page.look, shape("circle", n)) for n in range(3)]
        assert {future.result().new for future in lessons} == {True}
        assert all(len(future.result().choices) >= 3 for future in answers)
    assert sorted(page.about().counts) == ["circle", "class 0", "class 1", "class 2", "square", "triangle"]


# HTML.


def test_names_cannot_become_markup(page):
    nasty = "<img src=x onerror=alert(1)>\"'&"
    image = Upload(stripes(1).image, f"{nasty}.png")
    html = render.update_html(page.learn([image], nasty))
    html += render.about_html(page.about()) + render.answer_html(page.look(image), image) + render.problem(nasty)
    assert "<img src=x" not in html
    assert html.count("&lt;img src=x onerror=alert(1)&gt;&quot;&#x27;&amp;") >= 5


def test_the_answer_says_what_it_should(classifier):
    known, unknown = (render.answer_html(answer(classifier, i, Gallery()), i) for i in (shape("circle"), stripes(0)))
    assert "nothing I know" not in known
    assert "Such a list holds the right class for\n90 %" in known
    assert "This looks like nothing I know." in unknown
    assert "about 5 in 100" in unknown
    assert "<strong>none of these</strong> <span></span>" in unknown
    assert "Such a list" not in unknown  # that promise is about pictures of the classes


def test_the_diagram_or_how_to_get_one(page):
    assert 'src="data:image/svg+xml;base64,' in render.measured_html(page.about().measured)
    assert "--test FOLDER" in render.measured_html(None)


@pytest.mark.parametrize(
    ("share", "text"), [(0, "0.0"), (1e-9, "&lt;&nbsp;0.1"), (0.5, "50.0"), (0.9999, "&gt;&nbsp;99.9"), (1, "100.0")]
)
def test_nothing_uncertain_is_called_certain(share, text):
    assert render._percent(share) == f"{text}&nbsp;%"


# Middleware.


def visit(path, headers=(), host="127.0.0.1", body=b"{}", uploads=Path("/uploads")):
    """Status and headers that a request gets; 200 if it is let through, with its body unharmed."""
    middleware = pytest.importorskip("kalmanclip.app.middleware", reason="gradio is not installed")
    sent = []

    async def inside(scope, receive, send):
        assert (await receive())["body"] == body
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message):
        sent.append(message)

    parts = [body[: len(body) // 2], body[len(body) // 2 :]] if path.endswith("join") else [body]

    async def receive():
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    scope = {"type": "http", "method": "GET", "path": path, "headers": [(k.encode(), v.encode()) for k, v in headers]}
    asyncio.run(middleware.RequestFilter(inside, uploads, host)(scope, receive, send))
    return sent[0]["status"], dict(sent[0]["headers"])


HERE = ("host", "127.0.0.1:7860")


def test_the_page_and_its_parts_can_be_reached():
    for path in ("/", "/assets/index.js", "/gradio_api/queue/join", "/gradio_api/upload_progress"):
        status, headers = visit(path, [HERE])
        assert status == 200
        assert b"default-src 'self'" in headers[b"content-security-policy"]
    for host in ("localhost:7860", "127.0.0.1", "[::1]:7860"):
        assert visit("/", [("host", host)])[0] == 200
    assert visit("/", [HERE, ("origin", "http://127.0.0.1:7860")])[0] == 200


def test_uploads_have_room_or_are_refused(uploads, monkeypatch):
    def give(length, *headers):
        return visit("/gradio_api/upload", [HERE, ("content-length", length), *headers], uploads=uploads)[0]

    assert visit("/gradio_api/upload", [HERE], uploads=uploads)[0] == 411
    assert give(str(MAX_WAITING)) == 200
    upload(uploads, b"123")
    assert give(str(MAX_WAITING - 3)) == 200
    assert give(str(MAX_WAITING - 2)) == 507
    later = time.time() + STALE + 60
    monkeypatch.setattr("kalmanclip.app.images.time.time", lambda: later)
    assert give(str(MAX_WAITING)) == 200
    assert list(uploads.iterdir()) == []


def test_other_routes_are_closed():
    for path in (
        *("/gradio_api/file=/etc/passwd", "/gradio_api/file/etc/passwd", "/gradio_api/proxy=http://example.org"),
        *("/gradio_api/info", "/gradio_api/vibe-edit", "/gradio_api/run/predict", "/docs", "/monitoring"),
        *("/assets/../../etc/passwd", "/static/../gradio_api/file=/etc/passwd", ""),
    ):
        assert visit(path, [HERE])[0] == 404, path


def test_other_websites_and_other_names_for_this_computer_are_refused():
    assert visit("/", [("host", "attacker.example:7860")])[0] == 403
    assert visit("/", [])[0] == 403
    for host in ("my-computer:7860", "192.168.0.7:7860", f"{socket.gethostname()}:7860", "localhost"):
        assert visit("/", [("host", host)], "my-computer")[0] == 200  # it was opened to others on purpose
    for host in ("attacker.example", "my-computer.attacker.example", ""):
        assert visit("/", [("host", host)], "0.0.0.0")[0] == 403
    for origin in ("http://attacker.example", "null", "http://127.0.0.1:9999"):
        assert visit("/gradio_api/upload", [HERE, ("origin", origin)])[0] == 403
        assert visit("/gradio_api/upload", [HERE, ("origin", origin)], "0.0.0.0")[0] == 403


def test_an_event_can_name_nothing_but_uploads(tmp_path):
    """Gradio would copy any file, and fetch any address, that stands where an upload should."""

    def event(path):
        return json.dumps({"data": [None, [{"path": path, "meta": {"_type": "gradio.FileData"}}]]}).encode()

    def status(body):
        return visit("/gradio_api/queue/join", [HERE], body=body, uploads=tmp_path)[0]

    assert status(b'{"data": ["text", null, 7]}') == 200
    assert status(event(str(tmp_path / "hash" / "a.png"))) == 200
    for path in (
        "/etc/passwd",
        "http://example.org/a.png",
        f"{tmp_path}/hash/../../a.png",
        f"{tmp_path}/a.png",
        None,
        "",
    ):
        assert status(event(path)) == 403, path
    assert status(b"no json") == 403
    assert status(b'{"data": "' + b"a" * (1 << 20) + b'"}') == 403


# The command.


def call(*words, code):
    result = CliRunner().invoke(program, ["app", *map(str, words)])
    assert result.exit_code == code, result.output
    return result.output


def test_mistakes_are_told_before_anything_is_loaded(adapter, tmp_path, monkeypatch):
    pytest.importorskip("gradio")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"port {port}" in call(adapter, "--port", port, code=2)
    assert "not an adapter folder" in call(tmp_path, "--port", 0, code=5)
    assert "Cannot listen at 203.0.113.7" in call(adapter, "--host", "203.0.113.7", code=2)
    monkeypatch.setattr("kalmanclip.cli.page.find_spec", lambda name: None)
    assert "needs the package gradio" in " ".join(call(adapter, "--port", 0, code=2).split())


def test_another_host_is_warned_about(adapter, monkeypatch):
    pytest.importorskip("gradio")
    served = []
    monkeypatch.setattr("kalmanclip.app.server.serve", lambda *parts: served.append(parts[0]))
    assert "without a password" in call(adapter, "--host", "0.0.0.0", "--port", 0, code=0)
    assert "without a password" not in call(adapter, "--port", 0, "--read-only", code=0)
    assert [json.dumps(live.about().read_only) for live in served] == ["false", "true"]
    assert isinstance(served[0], service.AdapterService)
