"""Attacks, at random: what must not happen is a traceback, an "unexpected", a damaged adapter or a file that is served.

python -m benchmarks.robustness [--only arguments ...] [--count 200] [--seed 0]

| part | what is attacked | what must hold |
| --- | --- | --- |
| arguments | every option of the commands, by odd values | an exit code of the documentation, a message of its own |
| adapters | every value of adapter.json; bytes of both files | `AdapterError`, or it loads as it was |
| kills | a process that saves, by SIGKILL at any moment | the adapter is whole: the old one or the new one |
| savers | two processes that save one adapter, and a reader | what is read is one of the two, never a mixture |
| requests | the page, by requests that no browser makes | refused, nothing is served from the disk, the page lives on |

The tests have the same attacks one by one, with their messages (tests/test_odd_arguments.py, test_damaged_adapters.py,
test_concurrent_saves.py, app/test_page.py); here they come in numbers. An adapter whose values were changed within
their ranges cannot be told from another adapter, so a change that loads is counted as held.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import http.client
import importlib.util
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from rich.console import Console
from rich.table import Table

PATIENCE = 300.0
CODES = {0, *range(1, 8)}
LONG = "x" * 5000
ODD = ["", " ", LONG, "-1", "0", "1.5", "1e-300", "nan", "inf", str(10**30), "meta", "a\0b", "\x1b[2J", "日本"]
"""Values that nobody meant."""


class Place(NamedTuple):
    """What attacks work on: images, and two adapters that differ in their tensors and a note."""

    root: Path
    photos: Path
    adapters: tuple[Path, Path]
    random: random.Random
    count: int


Outcome = tuple[str, str]
"""An attack, and what went wrong: nothing, if it is empty."""


def prepare(root: Path, seed: int, count: int) -> Place:
    from kalmanclip import KalmanCLIP

    photos, noise = root / "photos", np.random.default_rng(0)
    for c, name in enumerate(("dark", "light")):
        (photos / name).mkdir(parents=True)
        for i in range(3):
            pixels = noise.integers(128 * c, 128 * c + 128, (40, 40, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(photos / name / f"{i}.png")
    adapters = []
    for name, std in (("a", 0.1), ("b", 0.2)):
        clf = KalmanCLIP("tiny", prior_std=std, options={"crops": 0}).fit(photos)
        adapters.append(clf.save(root / name, {"who": name}))
    return Place(root, photos, (adapters[0], adapters[1]), random.Random(seed), count)


# --- arguments


def arguments(place: Place) -> Iterator[Outcome]:
    """One option at a time, or one argument, has an odd value."""
    from typer.testing import CliRunner

    from kalmanclip.cli import app

    new, adapter, photos = str(place.root / "new"), str(place.adapters[0]), str(place.photos)
    usual = {
        "fit": ["fit", photos, "-o", new, "--force", "--crops", "0", "--prior-std", "0.1"],
        "predict": ["predict", adapter, photos],
        "evaluate": ["evaluate", adapter, photos],
        "info": ["info", adapter],
        "export": ["export", adapter, "-o", new],
        "fuse": ["fuse", adapter, str(place.adapters[1]), "-o", new, "--force"],
        "retrieve": ["retrieve", photos],
        "data": ["data", "check", "eurosat"],
    }
    odd = []
    for command, words in usual.items():
        text = (
            CliRunner().invoke(app, [*words[: 2 if command == "data" else 1], "--help"], env={"COLUMNS": "200"}).stdout
        )
        # not --pictures, --root and such of nothing else than the help says
        options = re.findall(r"^[│|]\s+(?:\*\s+)?(--[a-z-]+)\s.*?\b(?:TEXT|INTEGER|FLOAT|PATH)\b", text, re.MULTILINE)
        odd += [[*words, option, value] for option in options if option != "--epochs" for value in ODD]
        places = [i for i in range(1, len(words)) if not words[i].startswith("-") and words[i] != "check"]
        odd += [[*words[:i], value, *words[i + 1 :]] for i in places for value in ODD]
    place.random.shuffle(odd)
    with contextlib.chdir(place.root) if hasattr(contextlib, "chdir") else contextlib.nullcontext():
        for words in odd[: place.count]:
            result = CliRunner().invoke(app, words)
            shutil.rmtree(new, ignore_errors=True)
            said, problem = result.stderr.replace("Got unexpected extra argument", ""), ""
            if result.exit_code not in CODES:
                problem = f"exit code {result.exit_code}"
            elif result.exception is not None and not isinstance(result.exception, SystemExit):
                problem = f"{type(result.exception).__name__}: {result.exception}"
            elif "unexpected" in said or "Traceback" in said:
                problem = said.strip()
            elif "\x1b" in said + result.stdout:
                problem = "a control character was printed"
            yield " ".join(word[:30] for word in words), problem


# --- adapters


def adapters(place: Place) -> Iterator[Outcome]:
    """One value of the description is another, or some bytes of a file are."""
    from kalmanclip import KalmanCLIP
    from kalmanclip.encoders import load_backbone
    from kalmanclip.errors import AdapterError

    tiny, victim = load_backbone("tiny"), place.root / "victim"
    values: list[Any] = [None, True, -1, 0, 2.5, 10**30, "", "\0", "../../etc/passwd", [], [[]], {}, {"a": {}}, 1e308]
    for _ in range(place.count):
        shutil.rmtree(victim, ignore_errors=True)
        shutil.copytree(place.adapters[0], victim)
        if place.random.random() < 0.7:
            content = json.loads((victim / "adapter.json").read_text())
            path = place.random.choice(list(paths_of(content)))
            value = copy.deepcopy(place.random.choice(values))
            put(content, path, value)
            (victim / "adapter.json").write_text(json.dumps(content))
            attack = f"{'.'.join(map(str, path))} = {value!r}"
        else:
            file = place.random.choice([file for file in sorted(victim.iterdir()) if not file.name.startswith(".")])
            data, at = bytearray(file.read_bytes()), 0
            at = place.random.randrange(len(data))
            if place.random.random() < 0.5:
                data = data[:at]
            else:
                data[at] ^= 1 << place.random.randrange(8)
            file.write_bytes(data)
            attack = f"{file.name.partition('-')[0]} at byte {at}"
        try:
            KalmanCLIP.load(victim, tiny).predict(place.photos)
            yield attack, ""
        except AdapterError as error:
            yield attack, "" if len(str(error)) > 20 else f"says only {error}"
        except Exception as error:
            yield attack, f"{type(error).__name__}: {error}"


def paths_of(content: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for name, value in inner:
        yield (*before, name)
        yield from paths_of(value, (*before, name))


def put(content: Any, path: tuple[Any, ...], value: Any) -> None:
    for name in path[:-1]:
        content = content[name]
    content[path[-1]] = value


# --- processes


SAVER = """
import sys
from kalmanclip import KalmanCLIP
from kalmanclip.encoders import load_backbone
tiny = load_backbone("tiny")
own = [KalmanCLIP.load(folder, tiny) for folder in sys.argv[2:]]
print("ready", flush=True)
while True:
    for clf in own:
        clf.save(sys.argv[1])
"""


@contextlib.contextmanager
def saver(shared: Path, *own: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that saves its adapters, one after the other, until it is killed."""
    words = [sys.executable, "-c", SAVER, *map(str, (shared, *own))]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def whole(place: Place, shared: Path) -> str:
    """Return what is wrong with an adapter that should be one of the two."""
    from kalmanclip.adapter import read_adapter

    try:
        found = read_adapter(shared)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    own = [read_adapter(folder) for folder in place.adapters]
    same = [o for o in own if o.description["tensors"]["sha256"] == found.description["tensors"]["sha256"]]
    return "" if same and same[0].description["notes"] == found.description["notes"] else "a mixture of two adapters"


def kills(place: Place) -> Iterator[Outcome]:
    """SIGKILL at any moment of a save."""
    shared = place.root / "killed"
    shutil.copytree(place.adapters[0], shared)
    for number in range(max(3, place.count // 20)):
        with saver(shared, *place.adapters) as process:
            time.sleep(place.random.uniform(0, 0.3))
            process.kill()
            process.wait()
        yield f"kill {number}", whole(place, shared)


def savers(place: Place) -> Iterator[Outcome]:
    """Two that save, one that reads."""
    shared = place.root / "shared"
    shutil.copytree(place.adapters[0], shared)
    with saver(shared, place.adapters[0]), saver(shared, place.adapters[1]):
        for number in range(place.count):
            yield f"read {number}", whole(place, shared)


# --- the page


def requests(place: Place) -> Iterator[Outcome]:
    """What no browser asks for."""
    secret = place.adapters[0] / "adapter.json"
    join, upload = "/gradio_api/queue/join", "/gradio_api/upload"
    event = {"data": [{"path": str(secret), "meta": {"_type": "gradio.FileData"}}], "fn_index": 0, "session_hash": "s"}
    files = [
        str(secret),
        "/etc/passwd",
        "http://127.0.0.1:9/",
        "..%2f" * 8 + "etc/passwd",
        "%2e%2e/" * 8 + "etc/passwd",
    ]
    roots = ["/gradio_api/file=", "/file=", "/assets/", "/static/", "/gradio_api/proxy=", "/theme.css/", "/"]
    attacks: list[tuple[str, str, bytes, dict[str, str]]] = [
        *(("GET", root + file, b"", {}) for root in roots for file in files),
        *(("GET", path, b"", {}) for path in ("/docs", "/openapi.json", "/gradio_api/info", f"/{LONG}", "/login")),
        *((method, "/", b"", {}) for method in ("PUT", "DELETE", "TRACE", "CONNECT", "OPTIONS", "BREW")),
        ("GET", "/", b"", {"Host": "attacker.example"}),
        ("POST", join, b"{}", {"Origin": "http://attacker.example"}),
        ("POST", join, json.dumps(event).encode(), {}),
        *(("POST", join, body, {}) for body in (b"", b"\xff\xfe", b"[" * 100_000, b"1" * 10_000, b"x" * (2 << 20))),
        ("POST", upload, b"no form", {"Content-Type": "multipart/form-data; boundary=x"}),
        ("POST", upload, b"\0" * (21 << 20), {"Content-Type": "multipart/form-data; boundary=x"}),
    ]
    words = [sys.executable, "-m", "kalmanclip", "app", str(place.adapters[0]), "--port", "0"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().split()[-1]
        for method, path, body, headers in attacks:
            attack = f"{method} {path[:50]} {body[:20]!r} {headers or ''}"
            try:
                status, text = ask(address, method, path, body, headers)
            except (OSError, http.client.HTTPException):  # it may hang up
                status, text = 400, ""
            problem = "" if 400 <= status < 500 else f"was answered, with {status}"
            if "root:" in text or "kalmanclip-adapter" in text or "Traceback" in text:
                problem = f"was given {text[:60]!r}"
            yield attack, problem
            if ask(address, "GET", "/", b"", {})[0] != 200:
                yield attack, "the page does not answer any more"
                return
    finally:
        process.terminate()
        process.communicate()


def ask(address: str, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, str]:
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=PATIENCE)
    with contextlib.closing(connection):
        connection.putrequest(method, path, skip_host="Host" in headers)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers}.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        response = connection.getresponse()
        return response.status, response.read().decode(errors="replace")


PARTS: dict[str, Callable[[Place], Iterator[Outcome]]] = {
    "arguments": arguments,
    "adapters": adapters,
    "kills": kills,
    "savers": savers,
    "requests": requests,
}


def main(given: list[str] | None = None) -> int:
    """Attack, print a table, and return 1 if anything did not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART")
    parser.add_argument("--count", type=int, default=200, help="attacks of each part, at most")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(given)
    os.environ.update(KALMANCLIP_CACHE="off", HF_HUB_OFFLINE="1")
    table, console = Table("part", "attacks", "held", "failed", "seconds"), Console(markup=False, highlight=False)
    failed: list[tuple[str, str, str]] = []
    with tempfile.TemporaryDirectory() as root:
        place = prepare(Path(root), options.seed, options.count)
        for name in options.only:
            if name == "requests" and importlib.util.find_spec("gradio") is None:
                table.add_row(name, "", "", "", "not measured: gradio is not installed")
                continue
            begin, held = time.perf_counter(), Counter[bool]()
            for attack, problem in PARTS[name](place):
                held[not problem] += 1
                failed += [(name, attack, problem)] * bool(problem)
            numbers = (held.total(), held[True], held[False])
            table.add_row(name, *map(str, numbers), f"{time.perf_counter() - begin:.0f}")
    console.print(table)
    for name, attack, problem in failed:
        console.print(f"{name}: {attack!a}: {ascii(problem)[:300]}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
