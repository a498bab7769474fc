"""Small parts of several modules, each with values by hand: pytest tests/test_small_parts.py"""

from __future__ import annotations

import importlib
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specdec
from specdec import checkpoints, tasks
from specdec.checkpoints import checksums, hub, orbax
from specdec.cli import data
from specdec.common import published
from specdec.drafters import Blockwise, EarlyExit, blockwise, early_exit
from specdec.drafters.autoregressive import Memory
from specdec.models.heads import Heads, HeadsConfig
from specdec.sampling import Greedy
from specdec.tasks import t5, task
from specdec.training import TeacherForced, training_loop
from specdec.types import ModelOutput


def test_a_package_inside_is_imported_when_it_is_asked_for():
    assert specdec.__getattr__("schedules") is importlib.import_module("specdec.schedules")
    with pytest.raises(AttributeError, match="^module 'specdec' has no attribute 'nothing'$"):
        specdec.__getattr__("nothing")


def test_the_first_and_the_last_published_row():
    rows = published.rows.__wrapped__()
    assert rows == published.rows() and len(rows) == 12
    first = next(iter(rows.values()))
    assert (first.task, first.draft, first.temperature, first.gamma) == ("EnDe", "small", 0, 7)
    assert (first.alpha, first.measured) == (0.75, 3.4)


def test_labels_cannot_be_smoothed_away():
    assert TeacherForced(label_smoothing=0.99).label_smoothing == 0.99
    with pytest.raises(ValueError, match="label_smoothing is 1; give a number from 0 on, below 1"):
        TeacherForced(label_smoothing=1)


def test_a_pair_of_features_and_all_answers():
    made = t5._pair("translate: ", "en", "de")({"en": "a", "de": "b", "id": 1})
    assert made == {"inputs": "translate: a", "targets": "b"}
    example = {"answers": np.array([b"x", b"y"])}
    assert t5._all_answers("text", example) == t5._all_answers("text", None, True) == "text"
    assert t5._all_answers("text", example, is_target=True) == ["x", "y"]


def test_ids_of_a_setting_are_of_the_given_vocabulary_or_the_checkpoints(monkeypatch):
    monkeypatch.setattr(data, "saved_vocabulary", lambda path: tasks.Bytes(int(path)))
    assert data.token_ids("a ", tasks.Bytes(), "100") == (ord("a") + 3,)
    assert data.token_ids("b\n", None, "100") == (ord("b") + 3,)
    assert data.token_ids("", None, "nowhere") == ()


def test_a_drafters_cache_is_kept_up_to_the_first_token_that_differs():
    """Of a draft from position 2: rejected at once, after one token, never, and not committed."""
    tokens = [[0, 9, 5, 6, 7], [0, 9, 5, 6, 7], [0, 9, 5, 6, 7], [0, 9, 5, 6, 7]]
    drafts = [[4, 6, 7], [5, 4, 7], [5, 6, 7], [5, 6, 7]]
    cache = SimpleNamespace(length=jnp.full(4, 5), rewind=lambda length: length)
    memory = Memory(cache, jnp.array(drafts), jnp.full(4, 2))
    context = SimpleNamespace(tokens=jnp.array(tokens), length=jnp.array([5, 5, 5, 4]))
    assert memory.known(context).tolist() == [2, 3, 5, 4]


def test_the_timed_rest_of_a_call_finishes_all_but_the_pending_token(monkeypatch):
    given = []

    def finish(target, params, tokens, resume, drafted):
        given.append((resume.stream.shape, resume.layers, drafted.tolist()))
        return SimpleNamespace(logits=jax.nn.one_hot(tokens, 9)), "cache"

    monkeypatch.setattr(early_exit, "finish", finish)

    def decode(params, tokens, cache, layers):
        assert layers == (0, 2)
        return ModelOutput(jnp.zeros([3, 1, 9]), None, jnp.zeros([3, 1, 7])), cache

    rest = EarlyExit(2, Greedy()).timed(SimpleNamespace(decode=decode))["target"]
    ids, fed = rest({"target": ()}, jnp.arange(12).reshape(3, 4) % 9, jnp.zeros([]))
    assert ids.shape == (3, 4) and fed == "cache"
    assert given == [((3, 3, 7), 2, [3, 3, 3])]


def test_the_timed_call_of_heads_has_one_state_for_each_row(monkeypatch):
    heads = Heads(HeadsConfig(vocab_size=9, states_dim=5, heads=2, mlp_dim=4))
    given = []

    def logits(self, target, params, own, state):
        given.append((params, own, state.shape))
        return jax.nn.one_hot(jnp.array([[3, 4], [5, 6]]), 9)

    monkeypatch.setattr(blockwise.Blockwise, "_logits", logits)
    drafter = Blockwise(heads, Greedy())
    cache = SimpleNamespace(length=jnp.array([2, 7]), rewind=lambda length: length)
    call = drafter.timed(SimpleNamespace())[drafter.role]
    ids, fed = call({"target": "t", drafter.role: "h"}, jnp.zeros([2, 3], jnp.int32), cache)
    assert ids.tolist() == [[3, 4], [5, 6]] and fed.tolist() == [5, 10]
    assert given == [("t", "h", (2, 1, 5))]


def test_a_host_writes_alone_what_it_writes(monkeypatch, tmp_path):
    made = []

    class Checkpointer:
        def __init__(self, multiprocessing_options):
            made.append(multiprocessing_options)

        def __enter__(self):
            return self

        def __exit__(self, *given):
            pass

        def save(self, path, params):
            path.mkdir(parents=True)  # without commit_success.txt, as on a disk

    monkeypatch.setattr(orbax.ocp, "StandardCheckpointer", Checkpointer)
    monkeypatch.setattr(jax, "process_index", lambda: 3)
    monkeypatch.setattr(orbax.directory, "describe", lambda *given: made.append(given[:3]))
    orbax.write(tmp_path / "a", {"w": np.zeros(2, np.float32)}, "config", None)
    options, described = made
    assert (options.primary_host, options.active_processes) == (3, {3})
    assert options.barrier_sync_key_prefix == "host3"
    assert described == (tmp_path / "a", "config", None)


def test_the_line_of_a_step(monkeypatch, capsys):
    """Two steps in 4 s, of which none is shown alone; then one in no time at all."""
    times = iter([10.0, 14.0, 14.0])
    monkeypatch.setattr(training_loop.time, "perf_counter", lambda: next(times))
    progress = training_loop.Progress(0, 65, 2)
    progress.update(1, 2.0, 0.5, 0.01, 300)
    progress.update(2, 3.0, 0.25, 0.02, 100)
    progress.update(4, 1.0, 1.0, 0.5, 7)
    first, second = capsys.readouterr().err.splitlines()
    assert first == (
        "step 2 of 65, loss 2.5000, accuracy 0.375, learning rate 2.00e-02, 100 tokens/s, "
        "2m06s left"
    )
    assert second.endswith(" 7,000,000,000 tokens/s, 0m00s left")


class OnHub:
    """Stands for huggingface_hub, with one repository that has no generation_config.json."""

    def __init__(self):
        self.asked = []

    def HfApi(self):
        def info(name, revision):
            self.asked.append(("info", name, revision))
            files = ("config.json", "model.safetensors", "README.md")
            return SimpleNamespace(siblings=[SimpleNamespace(rfilename=file) for file in files])

        return SimpleNamespace(model_info=info)

    def snapshot_download(self, name, revision, allow_patterns, tqdm_class):
        self.asked.append(("files", name, revision, tuple(allow_patterns)))
        return "folder"

    def hf_hub_download(self, name, file, revision):
        self.asked.append((file, name, revision))


def test_a_revision_is_asked_for_in_every_request():
    pytest.importorskip("huggingface_hub")
    made = OnHub()
    assert hub._downloaded(made, "a/b", "old") == "folder"
    assert made.asked == [
        ("info", "a/b", "old"),
        ("files", "a/b", "old", ("config.json", "model.safetensors")),
        ("generation_config.json", "a/b", "old"),
    ]


def test_a_repository_without_a_model_names_five_of_its_files(monkeypatch):
    pytest.importorskip("huggingface_hub")
    names = [SimpleNamespace(rfilename=name) for name in "fedcba"]
    api = SimpleNamespace(model_info=lambda *given, **named: SimpleNamespace(siblings=names))
    made = SimpleNamespace(HfApi=lambda: api)
    with pytest.raises(hub.CheckpointError, match="but a, b, c, d, e; name another repository$"):
        hub._downloaded(made, "a/b", None)


def test_a_cached_repository_is_that_of_the_revision(monkeypatch, tmp_path):
    pytest.importorskip("huggingface_hub")
    asked = []

    def cached(name, file, revision):
        asked.append((name, file, revision))
        return str(tmp_path / file)

    monkeypatch.setattr(hub, "_hub", lambda name: SimpleNamespace(try_to_load_from_cache=cached))
    monkeypatch.setattr(hub.huggingface, "is_whole", lambda folder: True)
    monkeypatch.setattr(hub.huggingface, "has_vocabulary", lambda folder: True)
    assert hub._folder.__wrapped__("a/b", "old") == str(tmp_path)
    assert asked == [("a/b", "config.json", "old"), ("a/b", "generation_config.json", "old")]


def test_a_checksum_is_the_crc_of_the_elements_in_their_order():
    array = np.frombuffer(b"12345678", np.uint8).reshape(2, 4)
    assert checksums.checksum(np.frombuffer(b"123456789", np.uint8)) == "cbf43926"
    found = checksums.checksum(np.asfortranarray(array))
    assert found == checksums.checksum(array) == "9ae0daaf"
    assert checksums.damage("a", array, {"a": found}) is checksums.damage("a", array, {}) is None
    said = f"a has the checksum {found}, and was saved with 01234567"
    assert checksums.damage("a", array, {"a": "01234567"}) == said


def test_a_fingerprint_of_a_folder_has_16_digits(tmp_path):
    (tmp_path / "checkpoint").write_text("a")
    before = checkpoints.fingerprint(tmp_path)
    (tmp_path / "checkpoint").write_text("b")
    assert len(before) == 16 and before != checkpoints.fingerprint(tmp_path)


def test_splits_of_mixtures_are_in_each_part_and_small_ones_fit():
    parts = [SimpleNamespace(splits=names) for names in (("a", "b", "c"), ("b", "c"), ("c", "a"))]
    assert task.Mixture.splits.fget(SimpleNamespace(parts=parts)) == ["c"]
    sizes = {"most": task.FITS, "more": task.FITS + 1, "endless": None}
    found = SimpleNamespace(num_input_examples=sizes.get)
    assert [task.Task.fits(found, split) for split in sizes] == [True, False, False]
