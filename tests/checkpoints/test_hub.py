"""OWNER/NAME, from the cache and from a hub that answers on this machine.

pytest tests/checkpoints/test_hub.py
"""

import hashlib
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

pytest.importorskip("huggingface_hub")

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
COMMIT, OLDER = "a" * 40, "b" * 40
# Of each name its config's width and the file of its vocabulary, or what stops it.
PROGRAM = """
import sys
from specdec import checkpoints
for name in sys.argv[1:]:
    try:
        vocabulary = checkpoints.vocabulary_from(name)
        file = vocabulary and vocabulary.path and vocabulary.path.name
        ends = checkpoints.text_model_from(name).stop_ids
        print("found", checkpoints.config_from(name).emb_dim, file, *ends)
    except checkpoints.CheckpointError as error:
        print(error)
"""


class Hub(http.server.BaseHTTPRequestHandler):
    """What huggingface_hub asks of the real one. `repositories`: name -> its files, or an error."""

    repositories: dict = {}
    asked: list = []

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        self.asked.append(f"{self.command} {self.path}")
        parts = self.path.partition("?")[0].strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            name, rest = "/".join(parts[2:4]), parts[4:]
        else:
            name, rest = "/".join(parts[:2]), parts[2:]
        found = self.repositories.get(name, (404, "RepoNotFound"))
        if isinstance(found, tuple):
            return self._answer(found[0], b"{}", ("X-Error-Code", found[1]))
        revision = rest[1] if len(rest) > 1 else "main"
        if revision not in ("main", "old", COMMIT, OLDER):
            return self._answer(404, b"{}", ("X-Error-Code", "RevisionNotFound"))
        commit = OLDER if revision in ("old", OLDER) else COMMIT
        if rest[:1] == ["resolve"]:
            content = found.get("/".join(rest[2:]))
            if content is None:
                missing = ("X-Error-Code", "EntryNotFound"), ("X-Repo-Commit", commit)
                return self._answer(404, b"{}", *missing)
            etag = f'"{hashlib.sha1(content).hexdigest()}"'
            return self._answer(200, content, ("ETag", etag), ("X-Repo-Commit", commit))
        if rest[:1] == ["tree"]:
            files = [
                {"type": "file", "path": file, "size": len(content), "oid": commit}
                for file, content in found.items()
            ]
            return self._answer(200, json.dumps(files).encode())
        siblings = [{"rfilename": file} for file in found]
        info = {"id": name, "modelId": name, "sha": commit, "siblings": siblings}
        self._answer(200, json.dumps(info).encode())

    def _answer(self, status, content, *headers):
        self.send_response(status)
        for key, value in {"Content-Length": str(len(content)), **dict(headers)}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(monkeypatch):
    """The address of a hub, which has what a test puts into `Hub.repositories`."""
    monkeypatch.setattr(Hub, "repositories", {})
    monkeypatch.setattr(Hub, "asked", [])
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def found(tmp_path):
    """Runs PROGRAM with a cache of its own, and gives its lines and its stderr."""

    def run(*names, **environment):
        env = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
        env |= {"HF_HOME": str(tmp_path / "hf"), "PYTHONPATH": str(ROOT), **environment}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *names],
            capture_output=True,
            text=True,
            env=env,
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines(), done.stderr

    return run


def files_of(model: str, *more: Path) -> dict[str, bytes]:
    files = [*(GOLDEN / model).iterdir(), *more]
    return {file.name: file.read_bytes() for file in files if file.name != "golden.npz"}


def cached(folder: Path, name: str, model: str, *more: Path) -> None:
    """A repository as huggingface_hub keeps it."""
    store = folder / "hf" / "hub" / f"models--{name.replace('/', '--')}"
    snapshot = store / "snapshots" / COMMIT
    for directory in (store / "refs", store / "blobs", snapshot):
        directory.mkdir(parents=True)
    (store / "refs" / "main").write_text(COMMIT)
    for file, content in files_of(model, *more).items():
        (store / "blobs" / file).write_bytes(content)
        (snapshot / file).symlink_to(store / "blobs" / file)


@pytest.mark.ci
def test_only_what_is_read_is_downloaded_and_kept(hub, found, tmp_path):
    tokenizer = GOLDEN / "tokenizer" / "tokenizer.json"
    unread = {"pytorch_model.bin": b"p", "tf_model.h5": b"t", "README.md": b"r", "a/b.bin": b"b"}
    settings = {"generation_config.json": b'{"eos_token_id": [1, 7]}'}
    sentencepiece = {"spiece.model": (ROOT / "demo" / "vocabulary.model").read_bytes()}
    Hub.repositories = {
        "google/small": files_of("hf_v1_1", tokenizer) | unread | settings,
        "google/shards": files_of("hf_byt5") | unread,
        "google/both": files_of("hf_v1_0", tokenizer) | sentencepiece,
        "google/none": {"README.md": b"r"},
        "google/gated": (403, "GatedRepo"),
        "google/broken": (500, ""),
    }
    names = [
        "google/small",
        "google/shards",
        "google/both@old",
        "google/none",
        "google/gated",
        "google/absent",
        "google/small@nowhere",
        "google/broken",
        "google/bad--name",
    ]
    lines, err = found(*names, HF_ENDPOINT=hub)
    width = "found 16"
    small, shards, both = lines[:3]
    assert small == f"{width} tokenizer.json 1 7"
    assert (shards, both) == (f"{width} None 1", f"{width} spiece.model 1")
    assert "google/none has no config.json with model.safetensors" in lines[3]
    assert "but README.md; name another" in lines[3]
    assert "google/gated is gated" in lines[4] and "hf auth login" in lines[4]
    assert f"google/absent does not exist here, and {hub} has no such repository" in lines[5]
    assert f"google/small has no revision nowhere on {hub}" in lines[6]
    assert "google/broken does not exist here" in lines[7] and "500" in lines[7]
    assert "google/bad--name does not exist here" in lines[8]
    assert len(lines) == len(names) and err == ""
    got = {
        line.split("/")[-1] for line in Hub.asked if line.startswith("GET") and "resolve" in line
    }
    shards = {f"model-0000{i}-of-00004.safetensors" for i in range(1, 5)}
    assert got == shards | {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "model.safetensors.index.json",
        "spiece.model",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    # The next time nobody is asked.
    Hub.asked.clear()
    assert found(*names[:3], HF_ENDPOINT=hub)[0] == lines[:3] and not Hub.asked


@pytest.mark.slow
def test_without_a_network_the_cache_has_to_have_it(found, tmp_path):
    cached(tmp_path, "google/small", "hf_v1_1", GOLDEN / "tokenizer" / "tokenizer.json")
    cached(tmp_path, "google/mute", "hf_v1_0")  # nothing says whether it has a tokenizer
    cached(tmp_path, "google/torn", "hf_byt5")
    next(tmp_path.glob("**/snapshots/*/model-00002*")).unlink()
    here = tmp_path / "google" / "here"
    shutil.copytree(GOLDEN / "hf_byt5", here)
    names = ["google/small", "google/mute", "google/torn", "google/here", "google/away"]
    lines, _ = found(*names, HF_HUB_OFFLINE="1")
    assert (
        lines[:2] == ["found 16 tokenizer.json 1", "found 16 None 1"]
        and lines[3] == "found 16 None 1"
    )
    for name, line in ((names[2], lines[2]), (names[4], lines[4])):
        assert line.startswith(f"checkpoint {name} does not exist here, is not in {tmp_path}")
        assert "offline mode is enabled" in line
    assert len(lines) == len(names)
    lines, _ = found("google/away", "google/mute", HF_ENDPOINT="http://127.0.0.1:9")
    assert "cannot be read from http://127.0.0.1:9" in lines[0] and lines[1] == "found 16 None 1"


def test_the_package_is_named_where_it_is_missing(monkeypatch):
    from specdec import checkpoints

    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(checkpoints.CheckpointError, match="pip install huggingface_hub"):
        checkpoints.config_from("google/missing-package")
    with pytest.raises(checkpoints.CheckpointError, match="does not exist; .* holds"):
        checkpoints.config_from(Path("google/missing-package"))
