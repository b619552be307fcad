"""The page in a real browser, served as people start it."""

import http.client
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.conftest import shape_picture
from tests.processes import PATIENCE, interruptible

from kalmanclip.app.images import MAX_BYTES

pytest.importorskip("gradio", reason="gradio is not installed")

WAIT = 120_000  # milliseconds: a busy machine is no failure


@pytest.fixture(scope="module")
def served(fitted, learned, unseen, pool, tmp_path_factory):
    """A running page: its address, the adapter's folder, and where its temporary files are."""
    place = tmp_path_factory.mktemp("served")
    adapter, temporary = place / "shapes.adapter", place / "tmp"
    temporary.mkdir()
    adapter.mkdir()
    for file in fitted.iterdir():
        (adapter / file.name).write_bytes(file.read_bytes())
    words = ["app", adapter, "--images", learned, "--test", unseen, "--pool", pool, "--port", "0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "kalmanclip", *map(str, words)],
        env=os.environ | {"TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=interruptible,
    )
    try:
        line = process.stdout.readline()
        assert line.startswith("The page is at http://127.0.0.1:"), line + process.stderr.read()
        yield line.split()[-1], adapter, temporary
        with still_open(line.split()[-1]):
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE) == 0
        assert process.stderr.read().splitlines() == ["Ctrl-C ends it."]
        assert list(temporary.iterdir()) == []  # nothing is left
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


@contextmanager
def still_open(address):
    """A browser that has the page open, as far as the server can tell."""
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=PATIENCE)
    connection.request("GET", "/gradio_api/heartbeat/somebody")
    assert connection.getresponse().read(1)
    yield
    connection.close()


@contextmanager
def opened(browser, address, width=1280, scheme="light", errors=False):
    """The page; at the end it has caused no error, unless it should, and fetched nothing from elsewhere."""
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    context.set_default_timeout(WAIT)
    page = context.new_page()
    problems, fetched = [], []
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: fetched.append(request.url))
    page.goto(address)
    page.get_by_role("heading", level=1).wait_for()
    yield page
    context.close()
    assert errors or problems == []
    assert [url for url in fetched if not url.startswith((f"{address}/", "data:", "blob:"))] == []


@pytest.fixture
def page(browser, served):
    with opened(browser, served[0]) as page:
        yield page


@pytest.fixture
def pictures(tmp_path):
    """By name: a shape, something else, and what is no picture."""
    rows = np.random.default_rng(3).integers(0, 255, (64, 1, 3), dtype=np.uint8)
    shape_picture("circle", 900).save(tmp_path / "circle.png")
    for n in range(9):
        Image.fromarray(np.roll(np.repeat(rows, 64, axis=1), 5 * n, axis=0)).save(tmp_path / f"stripes{n}.png")
    (tmp_path / "text.png").write_text("hello")
    return tmp_path


def give(page, path):
    page.locator("#kc-picture input[type=file]").set_input_files(path)


def answer(page, name):
    """The answer about a picture, once it is there."""
    said = page.locator(".kc-answer", has=page.get_by_alt_text(f"Your picture: {name}"))
    said.wait_for()
    return said


def uploads(temporary):
    """Files that were uploaded and are still there."""
    (folder,) = temporary.glob("kalmanclip-app-*")
    return [path for path in folder.rglob("*") if path.is_file()]


def test_a_picture_is_looked_at(page, pictures, served):
    give(page, pictures / "circle.png")
    said = answer(page, "circle.png")
    assert "circle" in said.locator(".kc-verdict").inner_text()
    assert said.locator(".kc-choices li").count() == 3
    assert "uncertain between" in said.get_by_role("img", name="%, uncertain").first.get_attribute("aria-label")
    assert said.locator(".kc-near img").count() == 6
    widths = said.locator(".kc-near img").evaluate_all("all => all.map(e => e.naturalWidth)")
    assert min(widths) > 0
    assert uploads(served[2]) == []

    give(page, pictures / "stripes0.png")
    assert "This looks like nothing I know." in answer(page, "stripes0.png").inner_text()


def test_what_is_no_picture_is_told_and_the_page_goes_on(page, pictures, served):
    give(page, pictures / "text.png")
    alert = page.get_by_role("alert")
    alert.wait_for()
    assert "text.png is not an image that can be read" in alert.inner_text()
    assert uploads(served[2]) == []
    give(page, pictures / "circle.png")
    answer(page, "circle.png")
    assert page.get_by_role("alert").count() == 0


def test_files_that_are_too_large_are_refused(browser, served, pictures):
    (pictures / "large.png").write_bytes(b"\0" * (MAX_BYTES + 1))
    with opened(browser, served[0], errors=True) as page:
        give(page, pictures / "large.png")
        page.get_by_text("exceed the maximum allowed size of 20").wait_for()
        give(page, pictures / "circle.png")
        answer(page, "circle.png")
    assert uploads(served[2]) == []


def test_with_the_keyboard_alone(page, pictures):
    page.on("filechooser", lambda chooser: None)  # from now on: told only when it opens, the browser may be too late
    page.locator("#kc-picture button").first.wait_for()
    for _ in range(10):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.closest('#kc-picture') !== null"):
            break
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none"  # one sees where one is
    with page.expect_file_chooser() as chooser:
        page.keyboard.press("Enter")
    chooser.value.set_files(pictures / "circle.png")
    answer(page, "circle.png")
    page.get_by_role("tab", name="Look").focus()
    for name in ("Label", "Adapter"):
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent").strip() == name
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Teach it").wait_for()
    page.get_by_role("heading", name="What it holds").wait_for()


def test_a_picture_from_the_clipboard(page, pictures):
    page.locator("#kc-picture input[type=file]").wait_for(state="attached")
    page.evaluate(
        """bytes => {
            const transfer = new DataTransfer();
            transfer.items.add(new File([new Uint8Array(bytes)], "pasted.png", { type: "image/png" }));
            document.body.dispatchEvent(new ClipboardEvent("paste", { clipboardData: transfer, bubbles: true }));
        }""",
        list((pictures / "circle.png").read_bytes()),
    )
    answer(page, "pasted.png")


def test_a_new_class_is_taught_known_saved_and_undone(page, pictures, served):
    _, adapter, temporary = served
    before = (adapter / "adapter.json").read_bytes()
    page.get_by_role("tab", name="Adapter").click()
    about, lesson = page.locator("#kc-about"), page.locator("#kc-lesson")
    page.get_by_alt_text("Reliability diagram of 6 test pictures").wait_for()

    page.locator("#kc-learn").click()
    lesson.get_by_text("Choose at least one picture").wait_for()
    taught = [pictures / f"stripes{n}.png" for n in range(9) if n != 4]
    page.locator("#kc-pictures input[type=file]").set_input_files(taught)
    page.get_by_text("stripes7").wait_for()
    page.get_by_label("Class").fill("zebra ${1 + 1} <i>skin</i>")
    page.keyboard.press("Enter")
    page.locator("#kc-learn").click()
    lesson.get_by_text("Learned 8 pictures of zebra ${1 + 1} <i>skin</i>.").wait_for()  # as it was typed
    about.get_by_text("zebra ${1 + 1} <i>skin</i>").wait_for()
    assert "8 pictures" in about.inner_text()
    assert (adapter / "adapter.json").read_bytes() == before
    assert uploads(temporary) == []

    page.get_by_role("tab", name="Look").click()
    give(page, pictures / "stripes4.png")
    assert "zebra" in answer(page, "stripes4.png").locator(".kc-verdict").inner_text()

    page.get_by_role("tab", name="Adapter").click()
    page.locator("#kc-back").click()
    lesson.get_by_text("Undone").wait_for()
    about.get_by_text("zebra").wait_for(state="detached")
    page.locator("#kc-save").click()
    lesson.get_by_text("Saved.").wait_for()
    assert json.loads((adapter / "adapter.json").read_text())["class_names"] == ["circle", "square", "triangle"]


def test_a_click_labels_a_picture(page):
    page.get_by_role("tab", name="Label").click()
    expected = page.locator("#kc-expected")
    expected.get_by_text("Of 6 pictures without a label").wait_for()
    picture = page.get_by_alt_text("Picture to label")
    first = picture.get_attribute("alt")
    page.locator("#kc-likely").get_by_label("circle").check()
    page.locator("#kc-labelled").get_by_text("Learned 1 picture of circle.").wait_for()
    expected.get_by_text("Of 5 pictures without a label").wait_for()
    assert picture.get_attribute("alt") != first
    page.get_by_role("tab", name="Adapter").click()
    page.locator("#kc-back").click()
    page.locator("#kc-lesson").get_by_text("Undone").wait_for()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_nothing_is_wider_than_the_screen(browser, served, pictures, scheme):
    fits = "document.documentElement.scrollWidth <= window.innerWidth"
    with opened(browser, served[0], 380, scheme) as page:
        give(page, pictures / "circle.png")
        said = answer(page, "circle.png")
        assert page.evaluate(fits)
        ink = said.locator(".kc-verdict strong").evaluate("e => getComputedStyle(e).color")
        assert (sum(map(int, ink[4:-1].split(","))) > 384) == (scheme == "dark")
        page.get_by_role("tab", name="Adapter").click()
        page.get_by_role("heading", name="What it holds").wait_for()
        page.get_by_text("Options it was fitted with").click()
        assert page.evaluate(fits)


# Without a browser.


def ask(address, path, method="GET", body=None, **headers):
    """Status and text of an answer; the path goes out as it is."""
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=PATIENCE)
    try:
        connection.putrequest(method, path, skip_host="Host" in headers)
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        if "Content_Type" not in headers:
            connection.putheader("Content-Type", "application/json")
        connection.putheader("Content-Length", str(len(content)))
        connection.endheaders(content)
        response = connection.getresponse()
        return response.status, response.read().decode(errors="replace")
    finally:
        connection.close()


def test_no_file_is_served(served):
    address, adapter, _ = served
    secret = adapter / "adapter.json"
    for path in (
        "/gradio_api/file=/etc/passwd",
        f"/gradio_api/file={secret}",
        f"/gradio_api/file={os.path.relpath(secret)}",
        f"/file={secret}",
        "/assets/../../../../../../../../etc/passwd",
        "/assets/%2e%2e/%2e%2e/%2e%2e/%2e%2e/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
        "/static/..%2f..%2f..%2f..%2f..%2f..%2f..%2fetc/passwd",
        "/assets//etc/passwd",
        "/gradio_api/proxy=http://example.org/",
        "/gradio_api/info",
        "/docs",
    ):
        status, text = ask(address, path)
        assert status in (403, 404), path
        assert "root:" not in text
        assert "kalmanclip-adapter" not in text


def test_requests_from_elsewhere_are_refused(served):
    address = served[0]
    assert ask(address, "/")[0] == 200
    assert ask(address, "/", Host="attacker.example")[0] == 403
    assert ask(address, "/gradio_api/queue/join", "POST", {}, Origin="http://attacker.example")[0] == 403


def test_the_server_itself_refuses_large_files(served):
    """A browser that asks first is a courtesy, not a limit."""
    head = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\n'
    body = head + b"\0" * (MAX_BYTES + 1) + b"\r\n--x--\r\n"
    assert ask(served[0], "/gradio_api/upload", "POST", body, Content_Type="multipart/form-data; boundary=x")[0] == 413
    assert uploads(served[2]) == []


def test_a_request_that_names_a_file_does_not_get_it_read(served, learned):
    """What the browser sends when it has uploaded a file, but with the path of another."""
    address, _, temporary = served
    victim = learned / "circle" / "circle0.png"
    config = json.loads(ask(address, "/config")[1])
    look = next(f["id"] for f in config["dependencies"] if any("upload" in target for target in f["targets"]))
    for n, path in enumerate((str(victim), "http://127.0.0.1:9/a.png")):
        entry = {"path": path, "orig_name": "a.png", "meta": {"_type": "gradio.FileData"}}
        body = {"data": [entry], "fn_index": look, "session_hash": f"session{n}"}
        assert ask(address, "/gradio_api/queue/join", "POST", body) == (403, "That is not an upload.")
    assert victim.exists()
    assert uploads(temporary) == []


def send(address, content, name="a.png"):
    """Upload a file; return its entry in an event."""
    head = f'--x\r\nContent-Disposition: form-data; name="files"; filename="{name}"\r\n\r\n'.encode()
    form = "multipart/form-data; boundary=x"
    status, text = ask(address, "/gradio_api/upload", "POST", head + content + b"\r\n--x--\r\n", Content_Type=form)
    assert status == 200, text
    return {"path": json.loads(text)[0], "orig_name": name, "meta": {"_type": "gradio.FileData"}}


def look_at(address, entry, session):
    """The answer about an upload, or about nothing."""
    config = json.loads(ask(address, "/config")[1])
    look = next(f["id"] for f in config["dependencies"] if any("upload" in target for target in f["targets"]))
    body = {"data": [entry], "fn_index": look, "session_hash": session}
    assert ask(address, "/gradio_api/queue/join", "POST", body)[0] == 200
    events = ask(address, f"/gradio_api/queue/data?session_hash={session}")[1]
    last = [json.loads(line[6:]) for line in events.splitlines() if '"process_completed"' in line][-1]
    assert last["success"], last
    return last["output"]["data"][0]


def test_clients_with_the_same_picture_do_not_disturb_each_other(served, pictures):
    address, _, temporary = served
    content = (pictures / "circle.png").read_bytes()
    entries = [send(address, content) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        said = list(pool.map(look_at, [address] * 8, entries, [f"same{n}" for n in range(8)]))
    assert all("kc-answer" in text for text in said)
    assert uploads(temporary) == []


def test_an_event_without_a_picture_is_no_error(served):
    assert look_at(served[0], None, "nothing") == ""


START = """import sys, time
from kalmanclip.app import server
with server._ending_in_order(), server._private_folder() as folder:
    (folder / "upload.png").write_text("private")
    print(folder, flush=True)
    time.sleep(600)
"""


def test_uploads_do_not_outlive_the_page(tmp_path):
    """Not with SIGHUP; after kill -9, they are gone when the next page starts; one that runs keeps its own."""
    started = []

    def start():
        environment = os.environ | {"TMPDIR": str(tmp_path)}
        process = subprocess.Popen(
            [sys.executable, "-c", START], env=environment, stdout=subprocess.PIPE, text=True, preexec_fn=interruptible
        )
        started.append(process)
        return process, Path(process.stdout.readline().strip())

    def end(process, number):
        process.send_signal(number)
        process.wait(PATIENCE)

    try:
        (one, kept), (two, killed) = start(), start()
        assert kept.stat().st_mode & 0o77 == 0
        end(two, signal.SIGKILL)
        assert (killed / "upload.png").exists()
        three, _ = start()
        assert not killed.exists()
        assert (kept / "upload.png").exists()
        end(one, signal.SIGHUP)
        end(three, signal.SIGTERM)
        assert list(tmp_path.iterdir()) == []
    finally:
        for process in started:
            process.kill()
            process.wait()
            process.stdout.close()
