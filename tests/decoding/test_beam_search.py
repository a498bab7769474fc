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


@pytest.mark.parametrize(
    "name",
    [
        "v1_1",
        pytest.param("v1_0", marks=pytest.mark.ci),
        pytest.param("wide_heads", marks=pytest.mark.slow),
    ],
)
def test_beams_are_those_of_t5x(name):
    target, params, golden = load(name)
    inputs = jnp.asarray(golden["encoder_input_tokens"])
    plan = BeamPlan(target, 4, T5XBeams(0.6), golden["beam4"].shape[2])
    found = beam_search(Params(params), inputs, plan)
    assert found.tokens[:, ::-1].tolist() == golden["beam4"].tolist()  # T5X's best one is the last
    np.testing.assert_allclose(found.scores[:, ::-1], golden["beam4_scores"], **SCORES)


@functools.cache
def hugging_face(name):
    target = checkpoints.model_from(GOLDEN / name)
    return target, checkpoints.load(GOLDEN / name, config=target.config)


RULES = ("length_penalty", "early_stopping")
PROCESSORS = {"min_new_tokens": "min_length"}


@pytest.mark.parametrize(
    "name, some",
    [
        ("hf_v1_1", True),
        pytest.param("hf_v1_1", False, marks=pytest.mark.ci),
        pytest.param("hf_v1_0", False, marks=pytest.mark.slow),
    ],
)
def test_beams_are_those_of_hugging_face(name, some):
    """All beams, their order and their scores, in ten settings; by default in three of them."""
    golden = np.load(GOLDEN / "beams.npz")
    target, params = hugging_face(name)
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


RULE = {
    "t5x": T5XBeams(0.6),
    "hf": HuggingFaceBeams(),
    "early": HuggingFaceBeams(early_stopping=True),
}


@pytest.mark.parametrize("reuse", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize(
    "rule, beams, width, depth",
    [
        ("early", 4, 4, 3),
        pytest.param("t5x", 4, 8, 2, marks=pytest.mark.ci),
        pytest.param("hf", 8, 32, 1, marks=pytest.mark.slow),
        pytest.param("t5x", 2, 2, 1, marks=pytest.mark.slow),
        pytest.param("hf", 2, 8, 3, marks=pytest.mark.slow),
        pytest.param("t5x", 8, 16, 2, marks=pytest.mark.slow),
    ],
)
def test_drafted_beams_are_the_same(rule, beams, width, depth, reuse):
    """Tables have fewer candidates than 2w in the first steps, and texts that never end."""
    drafter = DraftBeams(TABLE, width, depth, reuse=reuse)
    plan = BeamPlan(TABLE, beams, RULE[rule], 12, drafter)
    plain, drafted = check_same(plan, tables(), TEXTS)
    assert np.sum(drafted.trace.calls) < np.sum(plain.trace.calls)


@pytest.mark.ci
def test_a_perfect_draft_is_worth_all_its_steps():
    """The draft is the target, and its beams see what the target's see."""
    params = tables()["target"]
    plan = BeamPlan(TABLE, 4, T5XBeams(0.6), 12, DraftBeams(TABLE, 16, 2, reuse=False))
    _, drafted = check_same(plan, Params(params, params), TEXTS)
    steps = np.sum(drafted.trace.steps, axis=1)
    assert drafted.trace.calls.tolist() == np.ceil(steps / 3).astype(int).tolist()


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
    plan = BeamPlan(TABLE, 4, T5XBeams(0.6), 12, DraftBeams(TABLE, 8, 2))
    check_same(plan, Params(params, jax.tree.map(hostile, params)), TEXTS)


@pytest.mark.slow
def test_a_draft_of_another_vocabulary_changes_nothing():
    wide = TableTarget(vocab_size=9, classes=3, scale=2.0)
    for other in (wide, TableTarget(vocab_size=5, classes=3, scale=2.0)):
        inputs = jnp.minimum(TEXTS, 4)
        plan = BeamPlan(TABLE, 2, T5XBeams(0.6), 10, DraftBeams(other, 4, 2))
        check_same(plan, Params(tables()["target"], other.init(jax.random.key(5))), inputs)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["v1_1"])
def test_positions_are_right_beyond_the_exact_buckets(name):
    """A table knows no positions: a T5 does, and 40 tokens reach its logarithmic buckets."""
    target, params, golden = load(name)
    inputs = jnp.asarray(golden["encoder_input_tokens"])[:3]
    plan = BeamPlan(target, 4, T5XBeams(0.6), 40, DraftBeams(target, 8, 2))
    _, drafted = check_same(plan, Params(params, noisy(params, 0.02)), inputs)
    perfect = beam_search(Params(params, params), inputs, plan)
    assert np.sum(perfect.trace.calls) < np.sum(drafted.trace.calls)


@pytest.mark.ci
@pytest.mark.parametrize(
    "rule", [pytest.param(name, marks=[pytest.mark.slow] * (name != "t5x")) for name in RULE]
)
def test_prefixes_of_different_lengths(rule):
    prefix = jnp.asarray([[3, 2, 5], [4, 0, 0], [2, 2, 0], [0, 0, 0]] * 4, jnp.int32)
    plan = BeamPlan(TABLE, 4, RULE[rule], 12, DraftBeams(TABLE, 8, 2))
    _, drafted = check_same(plan, tables(), TEXTS, prefix=prefix)
    for row, given in enumerate(np.asarray(prefix)):
        count = np.count_nonzero(given)
        kept = np.asarray(drafted.tokens)[row, :, :count]
        assert np.all((kept == given[:count]) | (np.asarray(drafted.length)[row] == 0)[:, None])


@pytest.mark.slow
def test_a_prefix_of_nothing_is_none():
    plan = BeamPlan(TABLE, 4, RULE["t5x"], 12, DraftBeams(TABLE, 8, 2))
    none = beam_search(tables(), TEXTS, plan, prefix=jnp.zeros([16, 1], jnp.int32))
    assert none.tokens.tolist() == beam_search(tables(), TEXTS, plan).tokens.tolist()


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


def test_a_row_does_not_depend_on_its_neighbours():
    plan = BeamPlan(TABLE, 4, T5XBeams(0.6), 12, DraftBeams(TABLE, 8, 2))
    whole = beam_search(tables(), TEXTS, plan)
    for row in (0, 7):
        alone = beam_search(tables(), TEXTS[row : row + 1], plan)
        assert alone.tokens[0].tolist() == whole.tokens[row].tolist()
        assert alone.trace.calls[0] == whole.trace.calls[row]


@pytest.mark.slow
@pytest.mark.parametrize(
    "rule",
    [
        *RULE.values(),
        HuggingFaceBeams(length_penalty=2.0, early_stopping="never"),
        HuggingFaceBeams(length_penalty=-0.5),
    ],
)
def test_the_best_text_alone_takes_no_more_steps(rule):
    plan = BeamPlan(TABLE, 4, rule, 12, DraftBeams(TABLE, 8, 2))
    every = beam_search(tables(), TEXTS, plan)
    best = dataclasses.replace(plan, best_only=True)
    _, found = check_same(best, tables(), TEXTS)
    assert found.tokens[:, 0].tolist() == every.tokens[:, 0].tolist()
    assert np.sum(found.trace.steps) <= np.sum(every.trace.steps)


@pytest.mark.ci
def test_the_best_text_of_t5x_alone_takes_fewer_steps():
    t5x = BeamPlan(TABLE, 4, T5XBeams(0.6), 12)
    fewer = beam_search(tables(), TEXTS, dataclasses.replace(t5x, best_only=True))
    assert np.sum(fewer.trace.steps) < np.sum(beam_search(tables(), TEXTS, t5x).trace.steps)


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
    plan = BeamPlan(TABLE, 4, T5XBeams(), 6, DraftBeams(TABLE, 8, 2))
    assert [tuple(part) for part in plan.parts()] == [
        ("target", 20, 1),
        ("draft", 8, 1),
        ("draft", 8, 1),
    ]
    assert [tuple(part) for part in plan.alone().parts()] == [("target", 4, 1)]
    wide = BeamPlan(T5Target(tiny_t5(9), least_width=7), 2, T5XBeams(), 12)
    assert [tuple(part) for part in wide.parts()] == [("target", 7, 1)]
    assert wide.capacity == 2 * 11 + 7 and plan.capacity == 4 * 5 + 20


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
