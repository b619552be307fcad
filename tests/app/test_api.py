"""The service over HTTP: answers, limits, lessons, many clients."""

import http.client
import io
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from PIL import Image
from tests.app.conftest import SHAPES, png_header
from tests.cli.invoke import call
from tests.conftest import full_disk, shape_picture

pytest.importorskip("fastapi", reason="fastapi is not installed")
pytest.importorskip("python_multipart", reason="python-multipart is not installed")
pytest.importorskip("httpx", reason="httpx is not installed")

from fastapi.testclient import TestClient

from kalmanclip.app import api, images
from kalmanclip.app.service import AdapterService
from kalmanclip.estimator import KalmanCLIP
from kalmanclip.prediction import records


def png(image):
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


def stripes(seed):
    return Image.linear_gradient("L").rotate(90 * (seed % 4)).resize((64 + seed, 64)).convert("RGB")


def shape(name="circle", seed=5000):
    return png(shape_picture(name, seed))


def form(*contents, names=None):
    names = names or [f"{i}.png" for i in range(len(contents))]
    return [("images", (name, content)) for name, content in zip(names, contents, strict=True)]


@pytest.fixture
def service(adapter, tiny):
    return AdapterService(KalmanCLIP.load(adapter, tiny), adapter)


@contextmanager
def asking(service, **options):
    app = api.build(service, options.pop("host", "127.0.0.1"), **options)
    with TestClient(app, base_url="http://localhost", raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def client(service):
    with asking(service) as client:
        yield client


@pytest.fixture
def teaching(service):
    with asking(service, learn=True) as client:
        yield client


def test_answers_are_those_of_the_estimator(client, adapter, tiny):
    pictures = [shape(name) for name in SHAPES] + [png(stripes(0))]
    names = ["circle.png", "folder/square.png", "C:\\photos\\triangle.png", "stripes.png"]
    plain = client.post("/predict", files=form(*pictures, names=names), params={"top": 3})
    known = KalmanCLIP.load(adapter, tiny)
    sources = [Image.open(io.BytesIO(content)) for content in pictures]
    bare = ["circle.png", "square.png", "triangle.png", "stripes.png"]
    assert plain.json() == records(bare, known.predict_full(sources, how="mean"), top=3)
    averaged = client.post("/predict", files=form(*pictures, names=bare), params={"uncertainty": True})
    assert averaged.json() == records(bare, known.predict_full(sources), uncertainty=True)
    assert [row["class"] for row in plain.json()] == [*SHAPES, "none of these"]


def test_health_waits_for_no_lesson(client, service):
    busy, done = threading.Event(), threading.Event()

    def lesson():
        with service._lock:
            busy.set()
            done.wait(30)

    teacher = threading.Thread(target=lesson)
    teacher.start()
    busy.wait(30)
    health = client.get("/health").json()
    done.set()
    teacher.join()
    assert (health["status"], health["classes"], health["learn"]) == ("ok", list(SHAPES), False)


@pytest.mark.parametrize(
    ("contents", "status", "says"),
    [
        ([], 422, "images: Field required"),
        ([shape(), b"no picture"], 400, "1.png is not an image"),
        ([shape()[:300]], 400, "0.png"),
        ([b""], 400, "0.png"),
        ([png_header(60_000, 60_000)], 400, "limit of 50000000"),
        ([png(Image.new("RGB", (900, 3)))], 400, "too long and thin"),
        ([b"x" * (images.MAX_BYTES + 1)], 413, "0.png is larger than 20 MB"),
        ([b"x"] * (images.MAX_PICTURES + 1), 413, "101 pictures are too many"),
    ],
)
def test_what_cannot_be_predicted_is_refused_in_json(client, contents, status, says):
    answer = client.post("/predict", files=form(*contents))
    assert answer.status_code == status
    assert list(answer.json()) == ["error"]
    assert says in answer.json()["error"]
    assert "trust" not in answer.json()["error"]  # no advice about Python


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/health", {"host": "evil.example"}, 403),
        (
            "GET",
            "/health",
            {
                "host": "[",
            },
            400,
        ),
        ("GET", "/health", {"host": "10.0.0.1"}, 403),  # it listens to this computer alone
        ("GET", "/health", {"origin": "http://evil.example"}, 403),
        ("GET", "/health", {"origin": "http://localhost"}, 200),
        ("GET", "/health", {"host": "127.0.0.1:8000"}, 200),
        ("GET", "/predict", {}, 405),
        ("GET", "/docs", {}, 404),
        ("POST", "/learn", {}, 403),
        ("POST", "/predict?top=0", {}, 422),
    ],
)
def test_requests_that_are_not_answered(client, method, path, headers, status):
    answer = client.request(method, path, headers=headers, files=form(shape()) if method == "POST" else None)
    assert answer.status_code == status
    assert (list(answer.json()) == ["error"]) == (status != 200)


def test_names_can_be_allowed(service):
    with asking(service, host="0.0.0.0", names=["Pets.example"]) as client:
        codes = [client.get("/health", headers={"host": h}).status_code for h in ("pets.example", "10.0.0.1", "evil")]
    assert codes == [200, 200, 403]


def test_there_is_room_for_so_much_and_it_is_given_back(client, monkeypatch):
    body = form(shape())
    size = len(shape())
    monkeypatch.setattr(api, "MAX_WAITING", 2 * size)
    for _ in range(3):  # each leaves its room to the next, however it ends
        assert client.post("/predict", files=body).status_code == 200
        assert client.post("/predict", files=form(b"x" * size)).status_code == 400
    assert client.post("/predict", files=form(b"x" * (2 * size))).status_code == 413
    assert client.post("/predict", content=iter([b"x"])).status_code == 411


def test_a_lesson_is_known_at_once_and_on_disk(teaching, adapter, tiny):
    assert teaching.get("/health").json()["learn"] is True
    pictures = form(*(png(stripes(seed)) for seed in range(3)))
    said = teaching.post("/learn", files=pictures, data={"class_name": "gradient"})
    told = {"class": "gradient", "new": True, "images": 3, "recognised_before": 0, "recognised_after": 3}
    assert said.json() == told
    assert teaching.post("/predict", files=pictures[:1]).json()[0]["class"] == "gradient"
    assert teaching.get("/health").json()["classes"][-1] == "gradient"
    assert KalmanCLIP.load(adapter, tiny).class_names_ == [*SHAPES, "gradient"]


@pytest.mark.parametrize(
    ("contents", "data", "says"),
    [
        ([shape(), b"no picture"], {"class_name": "new"}, "1.png is not an image"),
        ([shape()], {"class_name": " "}, "Say which class"),
        ([shape()], {"class_name": "x" * 99}, "at most 80"),
        ([shape()], {}, "class_name: Field required"),
        ([b"x"] * 101, {"class_name": "new"}, "too many"),
    ],
)
def test_what_cannot_be_learned_changes_nothing(teaching, service, contents, data, says):
    answer = teaching.post("/learn", files=form(*contents), data=data)
    assert answer.status_code in (400, 413, 422)
    assert says in answer.json()["error"]
    assert service.class_names == list(SHAPES)
    assert service.about().unsaved == 0


def test_what_cannot_be_saved_is_not_learned(teaching, service, adapter, tiny):
    with full_disk():
        answer = teaching.post("/learn", files=form(png(stripes(0))), data={"class_name": "gradient"})
    assert (answer.status_code, service.class_names) == (500, list(SHAPES))
    assert "space" in answer.json()["error"] or "large" in answer.json()["error"]
    KalmanCLIP.load(adapter, tiny).partial_fit([stripes(1)], ["somebody else's"]).save(adapter)
    lesson = {"files": form(png(stripes(0))), "data": {"class_name": "gradient"}}
    answer = teaching.post("/learn", **lesson)
    assert answer.status_code == 409
    assert "send the pictures again" in answer.json()["error"]
    assert teaching.post("/learn", **lesson).status_code == 200
    assert KalmanCLIP.load(adapter, tiny).class_names_ == [*SHAPES, "somebody else's", "gradient"]


def test_what_should_not_happen_is_told_without_its_details(client, service, monkeypatch):
    monkeypatch.setattr(service, "predict", lambda *_: 1 / 0)
    answer = client.post("/predict", files=form(shape()))
    assert answer.status_code == 500
    assert answer.json()["error"].startswith("Unexpected ZeroDivisionError")


# a real server


@pytest.fixture
def port(service):
    uvicorn = pytest.importorskip("uvicorn")
    from kalmanclip.app.server import open_socket

    with open_socket("127.0.0.1", 0) as listening:
        config = uvicorn.Config(api.build(service, "127.0.0.1", learn=True), log_level="critical", lifespan="off")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        yield listening.getsockname()[1]
        server.should_exit = True
        thread.join()


def send(port, path, content, name, **fields):
    edge = "edge-of-a-part"
    parts = [
        f'--{edge}\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{value}\r\n' for key, value in fields.items()
    ]
    head = f'--{edge}\r\nContent-Disposition: form-data; name="images"; filename="{name}"\r\n\r\n'
    body = "".join(parts).encode() + head.encode() + content + f"\r\n--{edge}--\r\n".encode()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", path, body, {"Content-Type": f"multipart/form-data; boundary={edge}"})
    answer = connection.getresponse()
    status, said = answer.status, json.loads(answer.read())
    connection.close()
    return status, said


def test_fifty_clients_at_once(port, service, adapter, tiny):
    """Everybody gets the answer about the own picture; lessons are all learned, and all saved."""
    pictures = [shape(SHAPES[n % 3], 6000 + n) for n in range(50)]
    sources = [Image.open(io.BytesIO(content)) for content in pictures]
    expected = KalmanCLIP.load(adapter, tiny).predict_proba(sources)
    together = threading.Barrier(50)

    def ask(n):
        together.wait()
        return send(port, "/predict?top=3", pictures[n], f"{n}.png")

    def ask_or_teach(n):
        if n % 4:
            return send(port, "/predict", pictures[n], f"{n}.png")
        return send(port, "/learn", png(stripes(n)), f"{n}.png", class_name=f"class {n}")

    with ThreadPoolExecutor(50) as pool:
        for n, (status, (row,)) in enumerate(pool.map(ask, range(50))):
            assert (status, row["image"]) == (200, f"{n}.png")
            found = {choice["class"]: choice["probability"] for choice in row["top"]}
            assert found == pytest.approx(dict(zip(SHAPES, expected[n].tolist(), strict=True)), abs=1e-4)
        assert {status for status, _ in pool.map(ask_or_teach, range(8))} == {200}
    assert (
        set(KalmanCLIP.load(adapter, tiny).class_names_) == {*SHAPES, "class 0", "class 4"} == set(service.class_names)
    )


# the command


def test_the_command_tells_who_can_reach_it(adapter, monkeypatch, tmp_path):
    served = []
    monkeypatch.setattr("kalmanclip.app.server.run", lambda app, *_, **__: served.append(TestClient(app)))
    assert "also to teach" in call("serve", adapter, "--host", "0.0.0.0", "--port", 0, "--learn").stderr
    assert "without a password" not in call("serve", adapter, "--port", 0, "--allow-host", "testserver").stderr
    assert served[1].get("/health").json()["learn"] is False
    assert "not an adapter folder" in call("serve", tmp_path, "--port", 0, code=5).stderr
    monkeypatch.setattr("kalmanclip.cli.serve.find_spec", lambda name: None)
    assert "kalmanclip[serve]" in call("serve", adapter, code=2).stderr
