"""Which runs commands refuse, and what they say first: pytest tests/cli/test_runs_of_flags.py"""

from __future__ import annotations

import argparse
import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from specdec import cli
from specdec.cli import run as runs
from specdec.common.values import UsageError
from specdec.texts.texts import Data, TextList, TextStream

LENGTHS = {"inputs": 64, "targets": 8}


def noted(capsys, text="a text", prefixes=("translate: ",), **flags) -> str:
    fields = {"gin_bindings": [], "target": "t", "task_prefix": None} | flags
    known = None
    if prefixes is not None:
        known = SimpleNamespace(prefixes=dict(zip("abc", prefixes, strict=False)))
    runs.note_missing_prefix(SimpleNamespace(**fields), known, text)
    return capsys.readouterr().err


def test_a_prefix_that_a_text_lacks_is_named(capsys):
    assert noted(capsys, prefixes=("translate: ", "sum: ", "translate: ")) == (
        "specdec: config.json of t names prefixes ('translate: ', 'sum: ') and the first text has "
        "none; give --task_prefix='...', or --task_prefix='' for none\n"
    )
    for how in (
        {"text": "sum: a", "prefixes": ("translate: ", "sum: ")},
        {"prefixes": ()},
        {"prefixes": None},
        {"target": None},
        {"task_prefix": ""},
        {"gin_bindings": ["A=1", "TASK_PREFIX='x'"]},
    ):
        assert noted(capsys, **how) == ""
    assert noted(capsys, gin_bindings=["MY_TASK_PREFIX='x'"])


def test_inputs_hold_the_longest_text_and_all_pictures(monkeypatch):
    """Models have 40 and 30 positions, the third any number; outputs take 8 of them."""
    monkeypatch.setattr(runs.tasks, "files_of", lambda vocabulary, text: "f" * text.count("<"))
    monkeypatch.setattr(runs, "vocabulary_of", lambda run: "V")
    monkeypatch.setattr(
        runs.checkpoints, "parameter_count", lambda model: 7 if model is target else 0
    )
    roomy: list[int] = []

    class Target(SimpleNamespace):
        def with_room(self, pictures):
            roomy.append(pictures)
            return self if pictures < 2 else "roomy"

    target = Target(longest_text=40)
    count = {id(target): 7}
    monkeypatch.setattr(runs.checkpoints, "parameter_count", lambda model: count[id(model)])
    models = {
        "target": target,
        "draft": Target(longest_text=30),
        "other": Target(longest_text=None),
    }
    plan = SimpleNamespace(max_length=8, target=target, models=lambda: models)
    plan.with_models = lambda changed: SimpleNamespace(
        max_length=8, changed=changed, models=lambda: {"x": Target(longest_text=28)}
    )
    monkeypatch.setattr(runs.dataclasses, "replace", lambda run, **fields: fields)

    def fitted(texts, limit=None):
        data = Data(None, "test", LENGTHS, texts, buckets=(8, 16, 32), limit=limit)
        return runs._fitted(SimpleNamespace(data=data, plan=plan))

    assert fitted(None).data.lengths == LENGTHS
    texts = TextList([("a < b", None), ("c < d < e", None)])
    with monkeypatch.context() as own:
        own.setattr(
            Data, "within", lambda self, room: SimpleNamespace(fitted=lambda *a: (room, *a))
        )
        assert fitted(texts, 1) == {"plan": plan, "data": (22, "V", 7)}
        found = fitted(texts)
        assert found["data"] == (20, "V", 7) and found["plan"].changed == {"target": "roomy"}
        assert fitted(TextStream([("a < b < c", None)])) == {"plan": plan, "data": (22, "V", 7)}
    assert roomy == [1, 2]


@pytest.mark.parametrize("flags, kept", [([], True), (["--skip_checksums"], False)])
def test_checksums_are_left_out_where_a_flag_says_so(flags, kept):
    args = cli.overview().parse_args(["decode", "--gin_file=demo.gin", *flags])
    assert runs.described(args).placement.checksums is kept


OTHERS = "D drafts from previous outputs, which are missing; give --previous=FILE or --live"
NONE = "D drafts from no previous output; leave --drafter out, or give --drafter=hybrid"


@pytest.mark.parametrize(
    "reads, given, says",
    [(True, True, ""), (False, False, ""), (True, False, OTHERS), (False, True, NONE)],
)
def test_previous_outputs_are_for_a_drafter_that_reads_them(reads, given, says):
    run: Any = SimpleNamespace(
        beams=SimpleNamespace(num_beams=0),
        plan=SimpleNamespace(reads_previous=reads, drafter="D"),
        data=SimpleNamespace(batch_size=1, refill=False),
    )
    previous: Any = SimpleNamespace(outputs=None) if given else None
    with pytest.raises(UsageError, match=says) if says else contextlib.nullcontext():
        runs._refuse_unsuited(argparse.Namespace(), run, previous)
