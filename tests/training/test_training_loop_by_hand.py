"""The training loop, of parts that do nothing: pytest tests/training"""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from specdec.training import training_loop


def test_steps_are_logged_evaluated_exported_and_saved_in_their_order(monkeypatch):
    """Every second step and the last one are evaluated, and the first evaluation is the best."""
    done: list = []

    class Folder:
        path, step = "a folder", None

        def __init__(self, output, settings, in_force):
            done.append((output, settings))

        def __enter__(self):
            return self

        def __exit__(self, *_): ...

        def cut_log(self, step):
            done.append(f"cut {step}")

        def log(self, record):
            done.append(record["step"])

    def updates(run, state, target, reference, batches):
        assert next(batches) == "a batch"
        for step in range(1, 6):
            yield state, training_loop.Update(step, 0.0, 0.0, 0.0, 1)

    def evaluate(run, params, target, batches, step, *_):
        done.append(f"evaluate {step}")
        return step == 2

    progress = SimpleNamespace(update=lambda *_: None, close=lambda: None, say=print)
    state, recipe = SimpleNamespace(step=0, params="weights"), SimpleNamespace(of=lambda run: "")
    for name, part in {
        "_text": lambda run: {},
        "_maker": lambda run: None,
        "_evaluation": lambda run: ["a batch"],
        "_loaded": lambda *_: (),
        "_settings": lambda run, batch: f"settings of {batch}",
        "_interrupts": lambda: contextlib.nullcontext(lambda: 0),
        "Batches": lambda *_, **__: ["a batch"],
        "Folder": Folder,
        "Recipe": recipe,
        "init": lambda run: state,
        "Progress": lambda *_: progress,
        "_updates": updates,
        "_evaluate": evaluate,
        "_export": lambda run, params, step, *_: done.append(f"export {step}"),
        "_save": lambda run, state, step, *_: done.append(f"save {step}"),
    }.items():
        monkeypatch.setattr(training_loop, name, part)
    monkeypatch.setattr(training_loop.tasks, "check_lengths", lambda *_: None)
    fields = "task split lengths batch_size seed buckets pad_id target_path target reference_path"
    counts = {"steps": 5, "evaluate_every": 2, "checkpoint_every": 3, "log_every": 1}
    run: Any = SimpleNamespace(
        **dict.fromkeys([*fields.split(), "model"]), **counts, objective=SimpleNamespace(top=None)
    )
    assert training_loop._trained(run, "out", str) is state
    assert done == [
        *(("out", "settings of a batch"), "cut 0"),
        *(1, 2, "evaluate 2", "export 2", 3, "save 3", 4, "evaluate 4", 5, "evaluate 5", "save 5"),
    ]


@pytest.mark.parametrize("prompts", [True, False])
@pytest.mark.parametrize("sound", [True, False])
def test_models_of_prompts_or_sound_keep_their_whole_text_side(
    monkeypatch, tmp_path, prompts, sound
):
    file = tmp_path / "tokenizer.json"
    file.touch()
    task = SimpleNamespace(vocabulary=SimpleNamespace(vocab_size=3))
    for name, value in {
        "get_task": task,
        "file_of": str(file),
        "tokenization_of": "a tokenization",
        "has_prompts": prompts,
        "is_sound": sound,
    }.items():
        monkeypatch.setattr(training_loop.tasks, name, lambda _, value=value: value)
    for name in ("check_fit", "check_room"):
        monkeypatch.setattr(training_loop, name, lambda *_: None)
    whole = SimpleNamespace(kept=lambda: {"all": "of it"})
    monkeypatch.setattr(training_loop.checkpoints, "text_model_from", {tmp_path: whole}.get)
    monkeypatch.setattr(training_loop.checkpoints, "vocabulary_from", {tmp_path: "pieces"}.get)
    objective = SimpleNamespace(check=lambda *_: None)
    lengths = {"inputs": 1, "targets": 1}
    run: Any = SimpleNamespace(
        task="", model=None, target=None, objective=objective, lengths=lengths
    )
    kept = {"all": "of it"} if prompts or sound else {"vocabulary": "pieces"}
    assert training_loop._text(run) == kept
