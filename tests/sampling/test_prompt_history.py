"""The prompt of a decoder-only model is a part of the text that processors read:
pytest tests/sampling/test_prompt_history.py"""

from __future__ import annotations

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import PromptTable

from specdec import Plan, decode, row_keys, score
from specdec.certificate import beam_checks, subject
from specdec.decoding import Decided, replay
from specdec.decoding.beam_plan import BeamPlan
from specdec.decoding.beam_rules import HuggingFaceBeams
from specdec.decoding.beam_search import beam_search
from specdec.drafters import Autoregressive
from specdec.measure import opinions
from specdec.sampling import (
    FrequencyPenalty,
    Greedy,
    MinLength,
    NoBadWords,
    NoRepeatNGram,
    PresencePenalty,
    Processed,
    Sampling,
    before_each,
    in_order,
)
from specdec.schedules import Fixed
from specdec.testing import divergences
from specdec.types import History, Params, Prompt
from specdec.verifiers import SpeculativeSampling

GOLDEN = np.load(Path(__file__).resolve().parents[1] / "golden" / "prompt_processors.npz")
SETTINGS = json.loads(str(GOLDEN["settings"]))
V, N = 12, 5
TARGET = PromptTable(V)
TREE = TARGET.init(jax.random.key(0))
PARAMS = Params(TREE, TARGET.init(jax.random.key(1)))
INPUTS = jnp.array([[3, 4, 5, 6], [7, 8, 0, 0], [9, 0, 0, 0]], jnp.int32)
KEYS = row_keys(0, jnp.arange(3))
# No token of prompt or output occurs again.
RULE = Processed(Sampling(), (NoRepeatNGram(1),))
PLAN = Plan(TARGET, Autoregressive(TARGET, RULE), SpeculativeSampling(), Fixed(2), RULE, N, ())
IN_PROMPT = np.zeros([3, V], bool)
for row, tokens in enumerate(INPUTS.tolist()):
    IN_PROMPT[row, [token for token in tokens if token]] = True


def processors(given: dict) -> tuple:
    """Returns the processors of settings of transformers' `generate`."""
    given = dict(given)
    if "forced_eos_token_id" in given:
        given["forced_eos_length"] = given.pop("forced_eos_token_id") * 10
    return in_order(min_length=given.pop("min_new_tokens", 0), **given)


@pytest.mark.parametrize("name", SETTINGS)
def test_each_token_is_the_one_that_hugging_face_chooses(name):
    """From the same logits, after prompts of two to nine tokens in one batch."""
    prompts, ids = (jnp.asarray(GOLDEN[x], jnp.int32) for x in ("prompts", f"{name}/ids"))
    lengths = jnp.arange(2, 10)
    start = jnp.take_along_axis(prompts, lengths[:, None] - 1, axis=1)
    fed = jnp.concatenate([start, jnp.maximum(ids[:, :-1], 0)], axis=1)
    _, history = before_each(fed, (1,), Prompt(prompts, lengths))
    rule = Processed(Greedy(), processors(SETTINGS[name]))
    chosen = np.argmax(rule.process(jnp.asarray(GOLDEN[f"{name}/logits"]), history), axis=-1)
    within = np.asarray(ids) >= 0
    assert np.array_equal(chosen[within], ids[within])
    assert np.any(ids != GOLDEN["plain"])


def test_a_prompt_comes_before_the_start_token():
    history = History(jnp.array([[6, 1, 2, 9], [8, 3, 9, 9], [9, 9, 9, 9]]), jnp.array([3, 2, 1]))
    text = history.after(TARGET.prompt(INPUTS)).ahead(jnp.array([[10], [11], [2]]))
    assert text.length.tolist() == [[6, 7], [3, 4], [1, 2]]
    assert text.tokens[0].tolist() == [3, 4, 5, 6, 1, 2, 10]
    assert text.tokens[1, :4].tolist() == [7, 8, 3, 11]
    assert text.tokens[2, :2].tolist() == [9, 2]


@pytest.mark.parametrize(
    "processor, left",
    [
        (FrequencyPenalty(1.0), [0, 0, 0, 0, 0, 0, 0, -1]),
        (PresencePenalty(1.0), [0, 0, 0, 0, 0, 0, 0, -1]),
        (MinLength(2), [0, -np.inf, 0, 0, 0, 0, 0, 0]),
        (NoBadWords(((5, 6, 7, 2), (4, 6, 7, 3))), [0, 0, -np.inf, 0, 0, 0, 0, 0]),
    ],
    ids=str,
)
def test_outputs_are_counted_without_the_prompt(processor, left):
    """The prompt is 5 6, and the output so far 7."""
    history = History(jnp.array([[6, 7]]), jnp.array([2]), (1,))
    history = history.after(Prompt(jnp.array([[5, 6]]), jnp.array([2])))
    found = Processed(Greedy(), (processor,)).process(jnp.zeros([1, 8]), history)
    assert found[0].tolist() == left


def test_what_is_drafted_and_drawn_is_not_in_the_prompt():
    inputs, keys = jnp.tile(INPUTS, (40, 1)), row_keys(0, jnp.arange(120))
    output = decode(PARAMS, keys, inputs, PLAN)
    for row in range(120):
        one = output.row(row)
        asked = zip(one.proposed, one.drafted, strict=True)
        drafted = [token for tokens, count in asked for token in tokens[:count]]
        assert not IN_PROMPT[row % 3, [*one.tokens, *drafted]].any()


@pytest.mark.ci
def test_it_is_read_by_everything_that_scores_a_text():
    """Each finds that a token of the prompt is impossible."""
    texts = jnp.array([[1, 5, 2, 10, 11], [1, 7, 2, 10, 11], [1, 9, 2, 10, 11]])
    right = np.isneginf(score(TREE, INPUTS, texts, target=TARGET, sampling=RULE, stop_ids=()))
    assert np.array_equal(right, IN_PROMPT[np.arange(3)[:, None], texts])
    fed = jnp.concatenate([TARGET.start(INPUTS)[:, None], texts[:, :-1]], axis=1)
    taught = opinions.teach(PARAMS, INPUTS, fed, plan=PLAN)
    asked = opinions.opinions(
        PARAMS,
        INPUTS,
        jnp.concatenate([fed, texts[:, -1:]], axis=1),
        jnp.full([3], N),
        taught,
        plan=PLAN,
    )
    certified = subject.taught_scores(TREE, INPUTS, texts, plan=PLAN)[2]
    for probs in (taught.p, certified):
        assert not probs[np.broadcast_to(IN_PROMPT[:, None], probs.shape)].any()
    assert not IN_PROMPT[np.arange(3)[:, None], asked.proposed].any()
    (_, found, _) = divergences(
        TARGET, TREE, KEYS, INPUTS, texts, texts + 1, sampling=RULE, stop_ids=()
    )
    assert found.gap < np.inf
    (found,) = divergences(
        TARGET, TREE, KEYS[1:2], INPUTS[1:2], texts[1:2].at[0, 0].set(8), texts[1:2], sampling=RULE
    )
    assert found.gap == np.inf


def test_it_is_read_by_a_replay():
    proposed = jnp.zeros([3, N, 2], jnp.int32).at[:, 0].set(jnp.array([[10, 5], [10, 7], [10, 9]]))
    drafted = jnp.zeros([3, N], jnp.int32).at[:, 0].set(2)
    texts = jnp.array([[10, 1, 2, 11, 1]] * 3)
    decided = Decided(texts, proposed, drafted, jnp.zeros([3, N], jnp.int32).at[:, 0].set(1))
    found = replay(PARAMS, KEYS, INPUTS, decided, plan=PLAN)
    assert (found.p[:, 0, 0] > 0).all() and not found.p[:, 0, 1].any()


@pytest.mark.ci
def test_it_is_read_by_a_beam_search_and_by_its_certificate():
    plan = BeamPlan(TARGET, 3, HuggingFaceBeams(1.0), N, None, RULE.processors, stop_ids=())
    output = beam_search(Params(TREE), INPUTS, plan)
    for row in range(3):
        for text in output.texts(row):
            assert len(set(text)) == N and not IN_PROMPT[row, text].any()
    scores = beam_checks._score(
        TREE, INPUTS, output.tokens, output.length, output.finished, plan=plan
    )
    np.testing.assert_allclose(scores, output.scores, rtol=1e-5)
