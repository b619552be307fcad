"""A stand-in for the Hugging Face Hub: as much of its protocol as it takes to push and to pull a model."""

import base64
import hashlib
import json
import re
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import yaml


class Hub:
    """What is stored: the files of each repository by commit, and objects of git-lfs by their hash.

    Attributes:
        repositories: name to a list of commits, each a dictionary of paths to contents; the last is ``main``.
        requests: all that were asked, as "METHOD path", and the token that each came with.
        closed: whether it refuses everybody.
    """

    def __init__(self):
        self.repositories, self.objects, self.requests = {}, {}, []
        self.url, self.closed = "", False

    def files(self, name):
        return self.repositories[name][-1]

    def commit(self, name, files):
        self.repositories.setdefault(name, []).append(files)

    def shas(self, name):
        return [hashlib.sha1(f"{name}{i}".encode()).hexdigest() for i in range(len(self.repositories[name]))]

    def sha(self, name, revision="main"):
        shas = self.shas(name)
        return shas[-1] if revision == "main" else revision if revision in shas else None

    def at(self, name, sha):
        return self.repositories[name][self.shas(name).index(sha)]


def handler(hub):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args):
            pass

        def answer(self, value=None, status=200, headers=None, body=None):
            content = json.dumps(value).encode() if body is None else body
            self.send_response(status)
            for key, text in {"Content-Length": len(content), **(headers or {})}.items():
                self.send_header(key, str(text))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def missing(self, code="RepoNotFound", status=404):
            self.answer({"error": code}, status, {"X-Error-Code": code})

        def ask(self):
            """Note the request, read its body, and find out what is asked for."""
            path = self.path.partition("?")[0]
            token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
            hub.requests.append((f"{self.command} {path}", token))
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            return path, body

        def do_POST(self):
            path, body = self.ask()
            if hub.closed:
                return self.answer({"error": "Unauthorized"}, 401)
            if path == "/api/repos/create":
                asked = json.loads(body)
                name = f"{asked.get('organization') or 'me'}/{asked['name']}"
                if name in hub.repositories:
                    return self.answer({"url": f"{hub.url}/{name}", "error": "exists"}, 409)
                hub.commit(name, {})
                return self.answer({"url": f"{hub.url}/{name}", "name": name})
            if path == "/api/validate-yaml":
                return self.answer({"errors": [], "warnings": []})
            if re.fullmatch(r"/api/models/(.+)/preupload/main", path):
                files = [file["path"] for file in json.loads(body)["files"]]
                modes = {p: "lfs" if p.endswith(".safetensors") else "regular" for p in files}
                return self.answer(
                    {"files": [{"path": p, "uploadMode": m, "shouldIgnore": False} for p, m in modes.items()]}
                )
            if path.endswith("/info/lfs/objects/batch"):
                objects = [
                    {**wanted, "actions": {"upload": {"href": f"{hub.url}/objects/{wanted['oid']}"}}}
                    for wanted in json.loads(body)["objects"]
                ]
                return self.answer({"transfer": "basic", "objects": objects})
            found = re.fullmatch(r"/api/models/(.+)/commit/main", path)
            if found:
                return self.commit(found[1], [json.loads(line) for line in body.splitlines()])
            return self.answer({"error": path}, 501)

        def commit(self, name, lines):
            files = dict(hub.files(name))
            for line in lines:
                value = line["value"]
                if line["key"] == "deletedFile":
                    del files[value["path"]]
                elif line["key"] == "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "lfsFile":
                    files[value["path"]] = hub.objects[value["oid"]]
            hub.commit(name, files)
            sha = hub.sha(name)
            self.answer({"commitUrl": f"{hub.url}/{name}/commit/{sha}", "commitOid": sha, "hookOutput": ""})

        def do_PUT(self):
            path, body = self.ask()
            hub.objects[path.rpartition("/")[2]] = body
            self.answer({})

        def do_HEAD(self):
            self.do_GET()

        def do_GET(self):
            path, _ = self.ask()
            if hub.closed:
                return self.answer({"error": "Unauthorized"}, 401)
            found = re.fullmatch(r"/(.+)/resolve/([^/]+)/(.+)", path)
            if found and found[1] in hub.repositories:
                return self.file(*found.groups())
            found = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+))?(?:/.*)?", path)
            if found is None or found[1] not in hub.repositories:
                return self.missing()
            name, kind, revision = found.groups()
            sha = hub.sha(name, revision or "main")
            if sha is None:
                return self.missing("RevisionNotFound")
            files = hub.at(name, sha)
            if kind == "tree":
                return self.answer([self.entry(p, content) for p, content in sorted(files.items())])
            card = yaml.safe_load(files["README.md"].decode().split("---")[1]) if "README.md" in files else {}
            siblings = [{"rfilename": p} for p in files]
            return self.answer({"id": name, "sha": sha, "siblings": siblings, "cardData": card, "private": False})

        def entry(self, path, content):
            oid = hashlib.sha1(content).hexdigest()
            found = {"type": "file", "oid": oid, "size": len(content), "path": path}
            if path.endswith(".safetensors"):
                sha256 = hashlib.sha256(content).hexdigest()
                found["lfs"] = {"oid": sha256, "size": len(content), "pointerSize": 100}
            return found

        def file(self, name, revision, path):
            sha = hub.sha(name, revision)
            if sha is None:
                return self.missing("RevisionNotFound")
            content = hub.at(name, sha).get(path)
            if content is None:
                return self.missing("EntryNotFound")
            etag = hashlib.sha256(content).hexdigest()
            return self.answer(headers={"X-Repo-Commit": sha, "ETag": f'"{etag}"'}, body=content)

    return Handler


@contextmanager
def running():
    """Run a stand-in while the block does."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(hub))
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
