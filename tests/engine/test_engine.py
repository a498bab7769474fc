"""What an engine resolves, shares and depends on: pytest tests/engine"""

import contextlib
import dataclasses
import types
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import rotary
from support import tiny_t5
from tolerances import LOGITS

from specdec import checkpoints, tasks
from specdec.common import demo, progress
from specdec.drafters import Autoregressive, Drafter, PromptLookup
from specdec.engine import Engine, NotExact, Placement, Settings, Store, drafter_key, opening
from specdec.models.llama import Llama, LlamaConfig
from specdec.models.placement.layouts import Layout
from specdec.models.t5 import T5Target
from specdec.plan import Plan
from specdec.sampling import Greedy, MinLength, Sampling, SuppressTokens, with_processors
from specdec.schedules import Fixed
from specdec.testing import TableTarget
from specdec.types import Table
from specdec.verifiers import Block, Coupled, GreedyMatch, SyntheticAcceptance

PAIR = T5Target(tiny_t5(2048, 8, 12))


def plan(sampling=Greedy(), verifier=None, max_length=24):  # noqa: B008
    drafter = Autoregressive(PAIR, sampling)
    verifier = verifier or (GreedyMatch() if sampling.greedy else Coupled())
    return Plan(PAIR, drafter, verifier, Fixed(3), sampling, max_length, stop_ids=(7,))


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """A target and a draft that is near it, with the demo's vocabulary."""
    folder = tmp_path_factory.mktemp("engine")
    vocabulary = checkpoints.Vocabulary(Path(demo.path("vocabulary.model")))
    params = PAIR.init(jax.random.key(0))
    for name, factor in (("target", 1.0), ("draft", 1.01)):
        scaled = jax.tree.map(lambda x, factor=factor: factor * x, params)
        checkpoints.save(folder / name, scaled, config=PAIR.config, vocabulary=vocabulary)
    return {name: str(folder / name) for name in ("target", "draft")}


@pytest.fixture(scope="module")
def engine(paths):
    return Engine.open(plan(), paths)


def batch_of(engine):
    lengths = {"inputs": 48, "targets": 24}
    pairs = [("Three bakers must prepare a tasty cherry.", "Drei Bäcker.")]
    (batch,) = tasks.text_batches(pairs, engine.vocabulary, lengths, batch_size=1)
    return batch


def test_a_plan_is_resolved_for_its_checkpoint_and_these_devices(engine, paths):
    """The vocabulary is the one saved with the target; texts end as the checkpoint says."""
    given = plan()
    assert engine.vocabulary.vocab_size == 2048 and engine.plan.stop_ids == (1,)
    assert engine.plan == dataclasses.replace(given, stop_ids=(1,)).laid_out(1)
    rounded = Engine.open(given, paths, settings=Settings(int8=("target",)))
    four = Engine.open(given, paths, rows=4)
    assert four.plan == dataclasses.replace(given, stop_ids=(1,)).laid_out(4) != engine.plan
    assert rounded.plan.models()["target"].weights == "int8"
    assert rounded.plan.models()["draft"].weights == "stored"


def test_an_engine_decodes_and_scores_as_its_parts_do(engine):
    batch = batch_of(engine)
    ours, _ = engine.decode(batch)
    alone, _ = engine.alone().decode(batch)
    np.testing.assert_array_equal(ours.tokens, alone.tokens)
    assert int(ours.trace.calls[0]) < int(alone.trace.calls[0]) == int(alone.length[0])
    batch = batch._replace(targets=np.asarray(ours.tokens))
    forced = engine.score(batch)
    np.testing.assert_allclose(forced, ours.log_probs, atol=LOGITS)  # of other widths


def test_alone_and_variants_share_what_was_read(engine, monkeypatch):
    """Nothing that the engine has is read again, and a layout of its own holds the same numbers."""
    engine.load()

    def read(*_, **__):
        raise AssertionError("was read again")

    monkeypatch.setattr(checkpoints, "load", read)
    other = engine.variant(schedule=Fixed(1))
    for role, model in other.plan.models().items():
        kept = engine.plan.models()[role].to_stored(engine.params[role])
        again = model.to_stored(other.params[role])
        assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), kept, again))
    same = engine.variant(verifier=Block())
    ours, theirs = (jax.tree.leaves(one.params["draft"]) for one in (engine, same))
    assert all(a is b for a, b in zip(ours, theirs, strict=True))
    copier = engine.variant(drafter=PromptLookup())
    assert copier.weights.keys() == {"target"} and copier.params.keys() == {"target"}
    alone = engine.alone()
    kept = engine.plan.target.to_stored(engine.params["target"])
    again = alone.plan.target.to_stored(alone.params["target"])
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), kept, again))


def test_a_key_is_what_an_output_depends_on(engine, paths):
    key = engine.key()
    assert key == Engine.open(plan(), paths).key()
    assert {"fingerprint of target", "fingerprint of vocabulary"} < key.keys()
    # What drafts, in which layout, and how many texts at once: nothing of it changes an output.
    assert key == engine.variant(drafter=PromptLookup()).key() == engine.alone().key()
    assert key == Engine.open(plan(), paths, rows=8, layouts=False).key()
    alone = Plan(PAIR, PromptLookup(), GreedyMatch(), Fixed(3), Greedy(), 24)
    others = {
        "length": Engine.open(plan(max_length=23), paths),
        "sampling": Engine.open(plan(Sampling(0.7)), paths),
        "processors": Engine.open(plan(with_processors(Greedy(), (MinLength(3),))), paths),
        "eight bits": Engine.open(plan(), paths, settings=Settings(int8=("target",))),
        "tokens too": Engine.open(
            plan(), paths, settings=Settings(int8=("target",), int8_tokens=True)
        ),
        "weights": Engine.open(alone, {"target": paths["draft"]}),
    }
    keys = [key, *(one.key() for one in others.values())]
    assert all(one not in keys[:i] for i, one in enumerate(keys)), list(others)


def test_recordings_of_a_drafter_depend_on_its_own_weights(engine):
    drafters = {"drafter": engine.plan.drafter, "copies": PromptLookup()}
    keys = engine.drafter_keys(drafters)
    assert "fingerprint of draft" in keys["drafter"]
    assert (
        keys["copies"]["copies"] == "PromptLookup" and "fingerprint of draft" not in keys["copies"]
    )


@dataclasses.dataclass(frozen=True)
class Both(Drafter):
    """Has a model and a table."""

    model: TableTarget
    propose = None

    def models(self):
        return {"draft": self.model}

    def tables(self):
        return {"lookup": Table("ngram")}


def test_recordings_of_a_drafter_depend_on_all_that_it_owns():
    prints = {
        f"fingerprint of {role}": role for role in ("target", "draft", "lookup", "vocabulary")
    }
    assert drafter_key("mine", Both(TableTarget(5, scale=2.0)), prints) == {
        "fingerprint of draft": "draft",
        "fingerprint of lookup": "lookup",
        "mine": "Both",
        "mine.model": "TableTarget",
        "mine.model.vocab_size": 5,
        "mine.model.classes": 1,
        "mine.model.scale": 2.0,
        "mine.model.num_layers": 1,
    }


def test_what_is_not_exact_is_opened_only_if_it_may_be_lossy(paths):
    lossy = plan(verifier=SyntheticAcceptance(0.5))
    with pytest.raises(NotExact):
        Engine.open(lossy, paths)
    assert not Engine.open(lossy, paths, settings=Settings(lossy=True)).plan.exact


@pytest.mark.parametrize(
    "change, message",
    [
        ({"weights": {"draft": None}}, "the parameters of 'draft' are; give a direct"),
        ({"weights": {"draft": "/nowhere"}}, "/nowhere does not exist"),
        ({"prefix": 30 * "Drei Bäcker "}, "the prefix has .* tokens but outputs hold 24"),
        ({"vocabulary": tasks.for_texts(tasks.Bytes())}, "saved with another vocabulary"),
    ],
)
def test_what_does_not_go_together_is_refused(paths, change, message):
    weights = {k: v for k, v in (paths | change.pop("weights", {})).items() if v is not None}
    with pytest.raises(ValueError, match=message):
        Engine.open(plan(), weights, **change)


def test_an_id_of_the_model_without_a_text_may_be_suppressed(tmp_path):
    """The vocabulary has 259 ids, and the model 261."""
    model = T5Target(tiny_t5(261, 8))
    zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), model.parameter_shapes())
    checkpoints.save(tmp_path / "model", zeros, config=model.config)
    parts = PromptLookup(), GreedyMatch(), Fixed(3)
    for token in (260, 261):
        rule = with_processors(Greedy(), (SuppressTokens((token,)),))
        wrong = pytest.raises(ValueError, match="token 261 but the vocabulary has 261; give ids")
        with wrong if token == 261 else contextlib.nullcontext():
            plan = Plan(model, *parts, rule, 8)
            Engine.open(plan, {"target": tmp_path / "model"}, tasks.for_texts(tasks.Bytes(0)))


@pytest.mark.parametrize(
    "model", [TableTarget(5), rotary.Rotary(rotary.RotaryConfig(8, 4, 1, 4, 4, 1))]
)
def test_only_some_families_have_eight_bits(model):
    plan = Plan(model, PromptLookup(), GreedyMatch(), Fixed(3), Greedy(), 8)
    says = f"int8 names the target, but {type(model).__name__} has no int8 kernels"
    with pytest.raises(ValueError, match=says):
        opening.check_eight_bits(plan, ("target",), False)


TINY = T5Target(tiny_t5(259, 8, 12, decoder=1))


def test_a_key_names_all_that_a_text_depends_on_and_no_placement():
    plan = Plan(TINY, PromptLookup(), GreedyMatch(), Fixed(3), Greedy(), 24, stop_ids=(3, 5))
    vocabulary = tasks.for_texts(tasks.Bytes())

    def key_of(**way):
        model = dataclasses.replace(TINY, **way)
        return Engine(plan.with_models({"target": model}), vocabulary, {}).key()

    key = key_of()
    named = {name: x for name, x in key.items() if not name.startswith("target.config.")}
    assert named == {
        "max_length": 24,
        "stop_ids": [3, 5],
        "the vocabulary's size": 259,
        "sampling": "Greedy",
        "target": "T5Target",
        "target.config": "T5Config",
        "target.weights": "stored",
    }
    assert all(key[f"target.config.{name}"] == size for name, size in TINY.sizes.items())
    placements: list[dict[str, Any]] = [
        {"axis_rules": (("heads", "model"),)},
        {"layout": Layout("out_in", ((1, "kernel_first"),))},
        *({"layout": Layout(**way)} for way in ({"joined": True}, {"fused": "triton"})),
        {"layout": Layout(least_width=2, widened=True, in_order=True)},
    ]
    assert all(key_of(**way) == key for way in placements)
    stored = [dataclasses.replace(TINY, **way).stored() for way in placements]
    assert stored[1:] == [TINY] * 4 and stored[0].axis_rules == (("heads", "model"),)
    assert key_of(weights="int8") == key | {"target.weights": "int8"}


@pytest.mark.parametrize(
    "before, after",
    [
        ({}, {"layout": Layout(joined=True)}),
        ({"layout": Layout(joined=True)}, {"layout": Layout("all_out_in")}),
        ({"weights": "int8_tokens"}, {"weights": "int8_tokens", "layout": Layout(widened=True)}),
    ],
    ids=str,
)
def test_parameters_are_read_once_and_rewritten_for_another_layout(before, after, monkeypatch):
    draw, read = np.random.default_rng(0), []
    shapes = TINY.parameter_shapes()
    stored = jax.tree.map(lambda x: draw.normal(size=x.shape).astype(np.float32), shapes)

    def loaded(self, model, path):
        read.append(path)
        return model.from_stored(stored)

    monkeypatch.setattr(Placement, "read", loaded)
    first, second = (dataclasses.replace(TINY, **way) for way in (before, after))
    plan = Plan(first, PromptLookup(), GreedyMatch(), Fixed(3), Greedy(), 24)
    nothing: Any = None
    engine = Engine(plan, nothing, {"target": "a path"})
    engine.load()
    found = engine.with_models({"target": second}).params["target"]
    expected = second.from_stored(stored)
    assert jax.tree.structure(found) == jax.tree.structure(expected) and read == ["a path"]
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    assert {x.dtype for x in jax.tree.leaves(found)} == {x.dtype for x in jax.tree.leaves(expected)}


LLAMA = Llama(LlamaConfig(9, 4, 1, 1, 4, 4, 1))


@pytest.mark.parametrize(
    "theirs, own, path, found",
    [
        (TINY, TINY, "a", "theirs"),
        (TINY, TINY, "b", "read"),
        (TINY, TINY.in_layout(orders=(("1", "in_out"),)), "a", "theirs"),
        (TINY, dataclasses.replace(TINY, weights="int8"), "a", "read"),
        (TINY, LLAMA, "a", "read"),
        (TableTarget(4), TableTarget(5), "a", "read"),
        (TableTarget(4), TINY, "a", "read"),
        (TINY, TableTarget(5), "a", "read"),
    ],
)
def test_parameters_are_shared_where_only_the_layout_differs(monkeypatch, theirs, own, path, found):
    """And only if they come from the same path. The stage of reading names what is read."""
    stages = []
    placement: Any = types.SimpleNamespace(
        read=lambda model, path: "theirs" if (model, path) == (theirs, "a") else "read"
    )
    monkeypatch.setattr(
        progress, "stage", lambda *given: stages.append(given) or contextlib.nullcontext()
    )
    store = Store(placement)
    store.read(theirs, "a")
    assert store.read(own, path, "draft") == found
    read = [("reading", "reading the draft")] * (found == "read")
    assert stages == [("reading", ""), *read]
