"""What both models thought of each draft token: pytest tests/decoding/test_replay.py"""

from __future__ import annotations

import functools
import json

import by_definition
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import support
from tolerances import PROBABILITIES

from specdec import Params, Plan, cli, decode, row_keys
from specdec.decoding import Decided, replay
from specdec.drafters import Autoregressive
from specdec.sampling import (
    FrequencyPenalty,
    NoRepeatNGram,
    Processed,
    Sampling,
    before_each,
    standardised,
)
from specdec.schedules import Fixed
from specdec.testing import TableTarget
from specdec.verifiers import Coupled, SpeculativeSampling

ROWS, LONGEST = 9, 11
TARGET, DRAFT = TableTarget(7, scale=1.5), TableTarget(7, scale=0.7)
BOTH = [model.init(jax.random.key(i))["logits"] for i, model in enumerate((TARGET, DRAFT))]
PARAMS = Params({"logits": BOTH[0]}, {"logits": sum(BOTH)})
INPUTS = jnp.arange(2, 2 + 3 * ROWS, dtype=jnp.int32).reshape(ROWS, 3)
KEYS = row_keys(3, jnp.arange(ROWS))
ONE, FILTERED = Sampling(), Sampling(temperature=0.8, top_k=5)


def plan_of(schedule, verifier, rule) -> Plan:
    """Every row has LONGEST tokens."""
    drafter = Autoregressive(DRAFT, FILTERED)
    return Plan(TARGET, drafter, verifier, schedule, rule, LONGEST, ())


LOOKS_BACK = Processed(FILTERED, (FrequencyPenalty(0.5), NoRepeatNGram(2)))
PLAIN = plan_of(Fixed(3), SpeculativeSampling(), LOOKS_BACK)


@functools.partial(jax.jit, static_argnames="plan")
def again(decided: Decided, plan: Plan, prefix):
    return replay(PARAMS, KEYS, INPUTS, decided, plan=plan, prefix=prefix)


def decided_of(output) -> Decided:
    trace = output.trace
    return Decided(output.tokens, trace.proposed, trace.drafted, trace.accepted)


@functools.partial(jax.jit, static_argnames=("model", "rule"))
def forced(model: TableTarget, params, row: int, tokens, rule) -> jax.Array:
    """[T, V] probabilities before each of the tokens, computed on their own."""
    tokens = jnp.pad(tokens[None, :-1], ((0, 0), (1, 0)))
    cache = model.prefill(params, INPUTS[row][None], tokens.shape[1])
    logits = model.decode(params, tokens, cache)[0].logits[0]
    return standardised(rule, logits[None], *before_each(tokens, (), None))[1][0]


def probabilities(role: str, rule, row: int, tokens) -> np.ndarray:
    model, params = (TARGET, PARAMS["target"]) if role == "target" else (DRAFT, PARAMS["draft"])
    padded = jnp.asarray(np.pad(tokens, (0, LONGEST + 4 - len(tokens))), jnp.int32)
    return np.asarray(forced(model, params, row, padded, rule))


def calls(output, given: int = 0):
    """Row, call, the text before it, what was drafted, and how much of that was accepted."""
    for row in range(ROWS):
        tokens, *made = output.row(row)[:4]
        at = given
        for call, (proposed, drafted, accepted) in enumerate(zip(*made, strict=True)):
            yield row, call, tokens[:at], proposed[:drafted], accepted, tokens[at + accepted :][:1]
            at += accepted + 1


@pytest.mark.ci
@pytest.mark.parametrize(
    "plan, given",
    [(plan_of(support.StopAfterUnlikely(3, 0.2), Coupled(), FILTERED), (4, 2))],
)
def test_probabilities_are_those_of_each_model_by_itself(plan, given):
    prefix = jnp.tile(jnp.array(given, jnp.int32), (ROWS, 1)) if given else None
    output = decode(PARAMS, KEYS, INPUTS, plan, prefix=prefix)
    found, rule = again(decided_of(output), plan, prefix), plan.sampling
    kinds = set()
    for row, call, before, drafted, accepted, own in calls(output, len(given)):
        here, at = np.arange(len(drafted)), len(before)
        places = at + here, drafted
        of_draft = [*before, *drafted]
        p, softmax = (probabilities("target", x, row, of_draft)[places] for x in (rule, ONE))
        q = probabilities("draft", FILTERED, row, of_draft)
        np.testing.assert_allclose(found.p[row, call, here], p, atol=PROBABILITIES)
        np.testing.assert_allclose(found.softmax[row, call, here], softmax, atol=PROBABILITIES)
        np.testing.assert_allclose(found.q[row, call, here], q[places], atol=PROBABILITIES)
        if own:
            end, corrects = at + accepted, accepted < len(drafted)
            own_p = probabilities("target", rule, row, of_draft[:end])[end, own[0]]
            own_q = q[end, own[0]] if corrects else np.nan
            np.testing.assert_allclose(found.own_p[row, call], own_p, atol=PROBABILITIES)
            np.testing.assert_allclose(found.own_q[row, call], own_q, atol=PROBABILITIES)
            kinds.add((corrects, len(drafted) > accepted + 1))
    assert {(True, True), (True, False), (False, False)} <= kinds


@pytest.mark.ci
def test_probabilities_are_as_defined():
    """Rows have different prefixes, and some are full before others."""
    by_definition.check_replay()


@pytest.mark.ci
def test_nothing_is_known_behind_a_token_that_the_drafter_proposes_no_more():
    decided = decided_of(decode(PARAMS, KEYS, INPUTS, PLAIN))
    other = (decided.proposed[:, 0, 1] + 1) % TARGET.vocab_size
    changed = decided._replace(
        proposed=decided.proposed.at[:, 0, 1].set(other),
        accepted=decided.accepted.at[:, 0].min(1),
    )
    unknown = np.isnan(again(changed, PLAIN, None).q[:, 0])
    np.testing.assert_array_equal(unknown, np.tile([False, False, True], (ROWS, 1)))


EXPLAIN = ["--explain", "--limit=24", "--gin.BATCH_SIZE=24", "--gin.GAMMA=4"]


@pytest.fixture
def explained(tmp_path):
    """Lines of `specdec decode --explain` with the pair that ships."""

    def explained(file: str) -> list[dict]:
        path = tmp_path / "out.jsonl"
        lengths = "--gin.TASK_FEATURE_LENGTHS={'inputs': 32, 'targets': 20}"
        flags = [f"--output_file={path}", "--compilation_cache_dir=", lengths, *EXPLAIN]
        assert cli.main(["decode", f"--gin_file={file}", *flags]) == 0
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    return explained


def decided(line: dict):
    """p, q and verdict of each draft token about which was decided."""
    of_calls = (line["explained"]["p"], line["explained"]["q"], line["accepted"])
    for p, q, accepted in zip(*of_calls, strict=True):
        for j in range(min(accepted + 1, len(p))):
            yield p[j], q[j], j < accepted
