"""A stand-in for a model hub: as much of its HTTP protocol as the client of huggingface-hub needs to push and pull."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN, READ_ONLY = "hf_writer", "hf_reader"


class Hub(ThreadingHTTPServer):
    """Repositories in memory, each a list of commits; one user, `me`, may write."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repos: dict[str, list[dict[str, bytes]]] = {}  # name → commits, each path → content
        self.large: dict[str, bytes] = {}  # sha256 → content that was put
        self.asked: list[str] = []  # method and path of every request
        self.cards: list[str] = []  # that were given to be validated

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def commit_of(self, repo: str, revision: str) -> str | None:
        """The id of a revision: main, or a commit's own."""
        ids = [commit_id(repo, number) for number in range(len(self.repos[repo]))]
        return ids[-1] if revision == "main" and ids else revision if revision in ids else None


def commit_id(repo: str, number: int) -> str:
    return hashlib.sha1(f"{repo} {number}".encode()).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None:
        """Says nothing."""

    def do_POST(self) -> None:
        body = self._body()
        hub, path = self.server, self.path.partition("?")[0]
        if path == "/api/validate-yaml":
            hub.cards.append(json.loads(body)["content"])
            return self._json({"errors": [], "warnings": []})
        if self.headers.get("Authorization") == f"Bearer {READ_ONLY}":
            return self._error(403, None, "You don't have the rights to create a model under this namespace")
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._error(401, None, "Invalid username or password.")
        if path == "/api/repos/create":
            wanted = json.loads(body)
            name = f"{wanted['organization'] or 'me'}/{wanted['name']}"
            if name in hub.repos:
                return self._json({"error": "You already created this model repo", "url": f"{hub.address}/{name}"}, 409)
            hub.repos[name] = []
            return self._json({"url": f"{hub.address}/{name}", "name": name})
        if found := re.fullmatch(r"/api/models/(.+)/preupload/main", path):
            large = (".safetensors", ".mp4")
            answers = [
                {"path": path, "uploadMode": "lfs" if path.endswith(large) else "regular", "shouldIgnore": False}
                for path in (file["path"] for file in json.loads(body)["files"])
            ]
            return self._json({"files": answers})
        if found := re.fullmatch(r"/(.+)\.git/info/lfs/objects/batch", path):
            objects = [
                {**each, "actions": {"upload": {"href": f"{hub.address}/large/{each['oid']}"}}}
                for each in json.loads(body)["objects"]
            ]
            return self._json({"transfer": "basic", "objects": objects})
        if found := re.fullmatch(r"/api/models/(.+)/commit/main", path):
            return self._commit(found[1], [json.loads(line) for line in body.splitlines()])
        return self._error(404, None, f"no such endpoint: {path}")

    def _commit(self, repo: str, lines: list[dict[str, Any]]) -> None:
        hub = self.server
        files = dict(hub.repos[repo][-1]) if hub.repos[repo] else {}
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = hub.large[value["oid"]]
        hub.repos[repo].append(files)
        identity = commit_id(repo, len(hub.repos[repo]) - 1)
        self._json({"commitUrl": f"{hub.address}/{repo}/commit/{identity}", "commitOid": identity})

    def do_PUT(self) -> None:
        content = self._body()
        digest = self.path.removeprefix("/large/")
        assert hashlib.sha256(content).hexdigest() == digest
        self.server.large[digest] = content
        self._answer(200, {}, b"")

    def do_HEAD(self) -> None:
        self._resolve()

    def do_GET(self) -> None:
        self._resolve()

    def _resolve(self) -> None:
        """A file of a repository, with its commit and its checksum in the header."""
        self.server.asked.append(f"{self.command} {self.path}")
        found = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", self.path.partition("?")[0])
        if found is None or found[1] not in self.server.repos:
            return self._error(404, "RepoNotFound", "Repository not found")
        repo, revision, name = found.groups()
        commit = self.server.commit_of(repo, revision)
        if commit is None:
            return self._error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        commits = self.server.repos[repo]
        files = commits[[commit_id(repo, number) for number in range(len(commits))].index(commit)]
        if name not in files:
            return self._error(404, "EntryNotFound", "Entry not found")
        digest = hashlib.sha256(files[name]).hexdigest()
        self._answer(200, {"ETag": f'"{digest}"', "X-Repo-Commit": commit}, files[name])

    def _body(self) -> bytes:
        self.server.asked.append(f"{self.command} {self.path}")
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _json(self, answer: Any, status: int = 200) -> None:
        self._answer(status, {"Content-Type": "application/json"}, json.dumps(answer).encode())

    def _error(self, status: int, code: str | None, message: str) -> None:
        headers = {"X-Error-Message": message, **({} if code is None else {"X-Error-Code": code})}
        self._answer(status, headers, json.dumps({"error": message}).encode())

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@contextmanager
def running_hub() -> Iterator[Hub]:
    """A hub that serves as long as the block runs."""
    hub = Hub()
    thread = threading.Thread(target=hub.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()
