"""Beam search against T5X's and Hugging Face's, and with drafts against itself without."""

import dataclasses
import functools
import json

import by_definition
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import GOLDEN, load, tiny_t5
from tolerances import SCORES

from specdec import checkpoints
from specdec.decoding.beam_plan import BeamPlan
from specdec.decoding.beam_rules import HuggingFaceBeams, T5XBeams
from specdec.decoding.beam_search import beam_search
from specdec.decoding.draft_beams import DraftBeams
from specdec.decoding.finite import NonFiniteLogits
from specdec.models import partitioning
from specdec.models.placement.layouts import Layout
from specdec.models.t5 import T5Target
from specdec.sampling.processors import in_order
from specdec.testing import TableTarget
from specdec.types import Params


def noisy(params, scale, seed=1):
    """Returns parameters that are a little wrong, as those of a draft are."""
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    wrong = [x + scale * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)]
    return jax.tree.unflatten(tree, wrong)


def check_same(plan, params, inputs, **given):
    """Compares a search that drafts with the same one that does not; returns both."""
    plain = beam_search(Params(params["target"]), inputs, plan.alone(), **given)
    drafted = beam_search(params, inputs, plan, **given)
    assert drafted.tokens.tolist() == plain.tokens.tolist()
    assert drafted.length.tolist() == plain.length.tolist()
    np.testing.assert_allclose(drafted.scores, plain.scores, **SCORES)
    steps = np.sum(drafted.trace.steps, axis=1)
    assert steps.tolist() == np.sum(plain.trace.steps, axis=1).tolist()
    assert plain.trace.calls.tolist() == steps.tolist()
    return plain, drafted


@pytest.mark.parametrize("name", ["v1_1", pytest.param("v1_0", marks=pytest.mark.ci)])
def test_beams_are_those_of_t5x(name):
    target, params, golden = load(name)
    inputs = jnp.asarray(golden["encoder_input_tokens"])
    plan = BeamPlan(target, 4, T5XBeams(0.6), golden["beam4"].shape[2])
    found = beam_search(Params(params), inputs, plan)
    assert found.tokens[:, ::-1].tolist() == golden["beam4"].tolist()  # T5X's best one is the last
    np.testing.assert_allclose(found.scores[:, ::-1], golden["beam4_scores"], **SCORES)


RULES = ("length_penalty", "early_stopping")
PROCESSORS = {"min_new_tokens": "min_length"}


@pytest.mark.parametrize("some", [True, pytest.param(False, marks=pytest.mark.ci)])
def test_beams_are_those_of_hugging_face(some):
    """All beams, their order and their scores, in ten settings; by default in three of them."""
    golden, name = np.load(GOLDEN / "beams.npz"), "hf_v1_1"
    target = checkpoints.model_from(GOLDEN / name)
    params = checkpoints.load(GOLDEN / name, config=target.config)
    inputs = jnp.asarray(golden[f"{name}/inputs"])
    stops = json.loads(str(golden[f"{name}/stops"]))
    settings = json.loads(str(golden["settings"]))
    for case in ("never_long", "processors", "prefix") if some else settings:
        given = settings[case]
        right = golden[f"{name}/{case}"].astype(np.int32)
        processors = {
            PROCESSORS.get(key, key): value
            for key, value in given.items()
            if key not in (*RULES, "num_beams", "max_new_tokens")
        }
        plan = BeamPlan(
            target,
            given["num_beams"],
            HuggingFaceBeams(**{key: given[key] for key in RULES if key in given}),
            right.shape[2],
            processors=in_order(**processors) if processors else (),
            stop_ids=tuple(stops[case]),
        )
        prefix = None
        if case == "prefix":
            prefix = jnp.tile(jnp.asarray(golden["prefix"][1:], jnp.int32), (len(inputs), 1))
        found = beam_search(Params(params), inputs, plan, prefix=prefix)
        index = np.arange(right.shape[2])
        # Behind the end of a text Hugging Face repeats a stop id, or 0.
        right = np.where(index < np.asarray(found.length)[:, :, None], right, 0)
        assert found.tokens.tolist() == right.tolist(), case
        np.testing.assert_allclose(
            found.scores, golden[f"{name}/{case}/scores"], **SCORES, err_msg=case
        )


TABLE = TableTarget(vocab_size=7, classes=3, scale=2.0)
TEXTS = jnp.asarray([[2 + i % 5, 3, 1 + i // 5] for i in range(16)], jnp.int32)


@functools.cache
def tables(scale=1.0):
    params = TABLE.init(jax.random.key(0))
    return Params(params, noisy(params, scale))


PLAN = BeamPlan(TABLE, 4, T5XBeams(0.6), 12, DraftBeams(TABLE, 8, 2))


@pytest.mark.ci
def test_drafted_beams_are_the_same():
    """Tables have fewer candidates than 2w in the first steps, and texts that never end."""
    rule = HuggingFaceBeams(early_stopping=True)
    plan = dataclasses.replace(PLAN, rule=rule, drafter=DraftBeams(TABLE, 4, 3))
    plain, drafted = check_same(plan, tables(), TEXTS)
    assert np.sum(drafted.trace.calls) < np.sum(plain.trace.calls)


@pytest.mark.parametrize(
    "hostile",
    [
        lambda logits: jnp.full_like(logits, -1e4).at[..., 1].set(0.0),  # ends every text
        lambda logits: jnp.full_like(logits, jnp.nan),
        lambda logits: jnp.zeros_like(logits),
        lambda logits: -logits,
    ],
    ids=["ends", "nan", "uniform", "opposite"],
)
def test_a_hostile_draft_changes_nothing(hostile):
    params = tables()["target"]
    check_same(PLAN, Params(params, jax.tree.map(hostile, params)), TEXTS)


@pytest.mark.ci
def test_several_stop_ids_and_processors():
    processors = in_order(no_repeat_ngram_size=2, min_length=3)
    plan = BeamPlan(
        TABLE, 4, HuggingFaceBeams(), 12, DraftBeams(TABLE, 8, 2), processors, stop_ids=(1, 4)
    )
    plain, _ = check_same(plan, tables(), TEXTS)
    for text, length in zip(plain.tokens.reshape(-1, 12), plain.length.reshape(-1), strict=True):
        words = np.asarray(text[:length]).tolist()
        pairs = list(zip([0, *words], words, strict=False))
        assert len(set(pairs)) == len(pairs) and not {1, 4} & set(words[:2])


@pytest.mark.ci
def test_the_best_text_of_t5x_alone_takes_fewer_steps():
    every = beam_search(tables(), TEXTS, PLAN.alone())
    best = beam_search(tables(), TEXTS, dataclasses.replace(PLAN.alone(), best_only=True))
    assert best.tokens[:, 0].tolist() == every.tokens[:, 0].tolist()
    assert np.sum(best.trace.steps) < np.sum(every.trace.steps)


def brute_force(params, inputs, rule, beams, longest):
    """The search as it is defined, on the host: whole texts, no cache, no arrays of beams."""
    logits = np.asarray(params["logits"], np.float32)

    def log_probs(words):
        total = sum(words) % TABLE.vocab_size
        row = logits[int(np.sum(inputs)) % TABLE.classes, total, words[-1]]
        return np.asarray(jax.nn.log_softmax(jnp.asarray(row)))

    live, done = [(0.0, [0])], []
    for _ in range(longest):
        found = [
            (np.float32(score + p), [*words, token])
            for score, words in live
            for token, p in enumerate(log_probs(words))
        ]
        found = sorted(found, key=lambda one: -one[0])[: 2 * beams]
        for rank, (score, words) in enumerate(found):
            full = rule.ends_at_limit and len(words) == longest + 1
            if (words[-1] == 1 or full) and (rule.best_last or rank < beams):
                done.append((score / rule.penalty(len(words) - 1), words))
        done = sorted(done, key=lambda one: -one[0])[:beams]
        live = [one for one in found if one[1][-1] != 1][:beams]
        reach = live[0][0] / rule.penalty(longest + 1 if rule.best_last else len(live[0][1]) - 1)
        if len(done) == beams and done[-1][0] > reach:
            break
        if not rule.best_last and len(done) == beams and done[-1][0] >= reach:
            break
    return [words[1:] for _, words in done], [score for score, _ in done]


@pytest.mark.parametrize(
    "rule",
    [
        T5XBeams(1.0),
        pytest.param(HuggingFaceBeams(), marks=pytest.mark.ci),
        pytest.param(T5XBeams(0.0), marks=pytest.mark.slow),
        pytest.param(HuggingFaceBeams(0.0), marks=pytest.mark.slow),
    ],
)
def test_the_search_as_it_is_defined(rule):
    plan = BeamPlan(TABLE, 3, rule, 10, DraftBeams(TABLE, 6, 2))
    params = tables()
    found = beam_search(params, TEXTS, plan)
    for row in range(len(TEXTS)):
        texts, scores = brute_force(params["target"], TEXTS[row], rule, 3, 10)
        lengths = np.asarray(found.length[row])[: len(texts)]
        ours = [
            np.asarray(found.tokens[row, i, :length]).tolist() for i, length in enumerate(lengths)
        ]
        assert ours == texts
        np.testing.assert_allclose(found.scores[row, : len(texts)], scores, **SCORES)


@pytest.mark.parametrize("check", [by_definition.check_beams, by_definition.check_draft_beams])
def test_beams_are_as_defined(check):
    """Processors read prompts, rows are full before others, and some beams have NaN."""
    check()


@pytest.mark.ci
def test_beams_over_a_mesh():
    """Two rows and two parts of the model; each device searches for its own row."""
    target, params, golden = load("v1_1")
    inputs, expected = jnp.asarray(golden["encoder_input_tokens"])[:2], golden["beam4"][:2]
    plan = BeamPlan(target, 4, T5XBeams(0.6), expected.shape[2], DraftBeams(target, 8, 2))
    rules = partitioning.standard_logical_axis_rules()
    divided = dataclasses.replace(target, axis_rules=rules)
    mesh = partitioning.make_mesh(2, jax.devices()[:4])
    with jax.set_mesh(mesh):
        placed = jax.device_put(params, partitioning.shardings(divided, mesh))
        over = dataclasses.replace(plan, target=divided, drafter=DraftBeams(divided, 8, 2))
        found = beam_search(Params(placed, placed), inputs, over)
    assert found.tokens[:, ::-1].tolist() == expected.tolist()  # T5X's, as above
    np.testing.assert_allclose(found.scores[:, ::-1], golden["beam4_scores"][:2], **SCORES)


@pytest.mark.slow
def test_beams_in_bfloat16():
    """Calls of another width round otherwise, so beams may differ: the rows, though, end."""
    target, params, golden = load("v1_0", dtype="bfloat16")
    inputs = jnp.asarray(golden["encoder_input_tokens"])
    plan = BeamPlan(target, 4, T5XBeams(0.6), 20, DraftBeams(target, 8, 2))
    found = beam_search(Params(params, params), inputs, plan)
    plain = beam_search(Params(params), inputs, plan.alone())
    assert np.mean(np.asarray(found.tokens[:, 0]) == np.asarray(plain.tokens[:, 0])) > 0.5
    assert np.sum(found.trace.calls) < np.sum(plain.trace.calls)


def test_logits_that_are_not_finite_name_the_row():
    params = tables()["target"]
    broken = {"logits": params["logits"].at[1].set(jnp.nan)}
    plan = BeamPlan(TABLE, 2, T5XBeams(0.6), 6)
    with pytest.raises(NonFiniteLogits, match="output token 1 of row"):
        beam_search(Params(broken), TEXTS, plan)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"drafter": DraftBeams(TABLE, 2, 2)}, "DraftBeams.width is 2, fewer than the 4 beams"),
        ({"beams": 0}, "BeamPlan.beams is 0; give a positive integer"),
        ({"rule": T5XBeams, "beams": 4}, "BeamPlan.rule is"),
    ],
)
def test_plans_that_cannot_work(changes, message):
    with pytest.raises(ValueError, match=message):
        BeamPlan(**{"target": TABLE, "beams": 4, "rule": T5XBeams(), "max_length": 6} | changes)


def test_what_a_call_takes():
    draft = ("draft", 8, 1)
    assert [tuple(part) for part in PLAN.parts()] == [("target", 20, 1), draft, draft]
    assert [tuple(part) for part in PLAN.alone().parts()] == [("target", 4, 1)]
    wide = BeamPlan(T5Target(tiny_t5(9), layout=Layout(least_width=7)), 2, T5XBeams(), 12)
    assert [tuple(part) for part in wide.parts()] == [("target", 7, 1)]
    assert wide.capacity == 2 * 11 + 7 and PLAN.capacity == 4 * 11 + 20


@pytest.mark.ci
def test_a_draft_uses_what_the_target_said_of_its_last_tree():
    """A draft to which all tokens are alike proposes the target's own beams then."""
    params = tables()["target"]
    given = Params(params, jax.tree.map(jnp.zeros_like, params))
    calls = {}
    for reuse in (True, False):
        plan = BeamPlan(TABLE, 2, T5XBeams(0.6), 10, DraftBeams(TABLE, 6, 2, reuse=reuse))
        calls[reuse] = beam_search(given, TEXTS, plan).trace.calls
    assert np.all(calls[True] <= calls[False]) and np.sum(calls[True]) < 0.9 * np.sum(calls[False])
