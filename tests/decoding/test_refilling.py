"""Rows that get the next text when their own has ended: pytest tests/decoding/test_refilling.py

The texts of a stream are compared with those of separate batches: tokens, calls, drafts and
log-probabilities.
"""

from __future__ import annotations

import dataclasses
import logging
import types
from typing import Any

import by_definition
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import PromptTable, tiny_t5
from test_combinations import DRAFTERS, RULES, SCHEDULES, TARGET, TREES
from tolerances import SMALL_LOGITS

from specdec.common.values import UsageError
from specdec.decoding import decode, row_keys
from specdec.decoding.program import GivenBatch
from specdec.decoding.refilling import Refilled, _Stream
from specdec.drafters import (
    Autoregressive,
    Drafter,
    PromptLookup,
)
from specdec.measure import recording
from specdec.models.families import model_of
from specdec.models.llama import LlamaConfig
from specdec.models.t5gemma import T5GemmaConfig
from specdec.plan import Plan
from specdec.predict.hlo import read
from specdec.sampling import Sampling
from specdec.schedules import Fixed
from specdec.testing import TableTarget
from specdec.types import Params
from specdec.verifiers import Block

ROWS, WIDTH, LONGEST = 4, 3, 10
WIDTHS = (2, WIDTH)
TOKENS = np.random.default_rng(0).integers(2, 5, [4, 5, WIDTH]).astype(np.int32)
TOKENS[:, ::2, 2:] = 0  # some texts are shorter
LIVE = np.ones([4, 5], bool)
LIVE[1, 3:] = LIVE[2] = False  # a batch with padding, and one of nothing else
DRAWN = RULES["drawn, processed"]
SIZES: dict[str, Any] = {
    "vocab_size": 5,
    "emb_dim": 8,
    "num_heads": 2,
    "head_dim": 4,
    "mlp_dim": 8,
    "num_decoder_layers": 2,
    "pad_id": 0,
}
GEMMA: dict[str, Any] = {
    "num_kv_heads": 1,
    "encoder_emb_dim": 8,
    "encoder_num_heads": 2,
    "encoder_num_kv_heads": 1,
    "encoder_head_dim": 4,
    "encoder_mlp_dim": 8,
    "num_encoder_layers": 1,
    "window": 2,
}
CONFIGS = {
    "t5": tiny_t5(5, 8, head_dim=4, decoder=2),
    "t5gemma": T5GemmaConfig(**SIZES, **GEMMA),
    "llama": LlamaConfig(**SIZES, num_kv_heads=1),
}


def batches(target: Any = TARGET):
    texts = np.where(TOKENS == 0, target.pad_id, TOKENS)
    keys = row_keys(0, jnp.arange(TOKENS.shape[0] * TOKENS.shape[1]))
    return list(map(GivenBatch, keys.reshape(TOKENS.shape[:2]), texts, LIVE))


def assert_same_texts(params, plan, found, prefix=None):
    """Compares a stream's outputs with those of each batch on its own."""
    if prefix is not None:
        prefix = jnp.tile(jnp.array([prefix], jnp.int32), (TOKENS.shape[1], 1))
    expected = batches(plan.target)
    assert len(found) == len(expected)
    for batch, (output, _) in zip(expected, found, strict=True):
        right = decode(params, batch.keys, jnp.asarray(batch.inputs), plan, prefix=prefix)
        right = jax.device_get(right)
        for row in np.flatnonzero(batch.live):
            assert row_of(output, row) == row_of(right, row)
            np.testing.assert_allclose(
                output.log_probs[row], right.log_probs[row], atol=SMALL_LOGITS
            )


def row_of(output, row):
    """Returns a text and its calls; an empty draft has no source."""
    row = output.row(row)
    sources = [x for x, drafted in zip(row.sources, row.drafted, strict=False) if drafted]
    return row._replace(sources=sources)


def plan_of(drafter, rule=DRAWN, target: Any = TARGET):
    return Plan(target, drafter, Block(), SCHEDULES["guarded"], rule, LONGEST)


@pytest.mark.ci
def test_texts_are_those_of_separate_batches():
    drafter = DRAFTERS["lookup, then a model"](DRAWN)
    plan = dataclasses.replace(plan_of(drafter), schedule=Fixed(3))
    params, prefix = plan.params(TREES), (0, 4)
    program = Refilled(
        plan, ROWS, WIDTHS, prefix=jnp.tile(jnp.array([prefix], jnp.int32), (ROWS, 1))
    )
    found = list(program.outputs(params, batches()))
    assert_same_texts(params, plan, found, prefix)
    lengths = [output.length[live] for (output, _), live in zip(found, LIVE, strict=True)]
    assert len(set(np.concatenate(lengths))) > 3


@pytest.mark.ci
def test_prompts_that_outputs_go_on():
    target = PromptTable(5, classes=3, num_layers=2)
    plan, params = plan_of(PromptLookup(), target=target), MODEL_PLAN.params(TREES)
    found = list(Refilled(plan, ROWS, WIDTHS).outputs(params, batches(target)))
    assert_same_texts(params, plan, found)


@pytest.mark.ci
def test_a_real_model():
    target = model_of(CONFIGS["t5"])
    trees = {"target": target.init(jax.random.key(3)), "draft": target.init(jax.random.key(4))}
    rule = Sampling(0.7)
    plan = Plan(target, Autoregressive(target, rule), Block(), Fixed(3), rule, LONGEST)
    params = plan.params(trees)
    found = list(Refilled(plan, ROWS, WIDTHS).outputs(params, batches(target)))
    assert_same_texts(params, plan, found)


def test_texts_are_as_defined():
    """Prompts of two widths are padded with an id that is not 0, and some texts fail."""
    by_definition.check_refilled()


@pytest.mark.ci
def test_acceptance_takes_the_same_texts():
    index = np.arange(20).reshape(4, 5)
    index[~LIVE] = -1
    texts = np.where(LIVE[..., None], TOKENS, 0)
    found = [
        list(
            recording.generate(
                MODEL_PLAN,
                TREES["target"],
                zip(index, texts, strict=True),
                seed=0,
                tokens=30,
                skip=[2, 3],
                refilled=program,
            )
        )
        for program in (None, Refilled(MODEL_PLAN.alone(), ROWS, WIDTHS))
    ]
    kept = [[one for batch in each for one in kept_of(batch)] for each in found]
    assert kept[0] == kept[1] and len(kept[0]) > 3


def kept_of(batch):
    """Returns index and tokens of the rows of a batch that count."""
    rows = np.flatnonzero((batch.length > 0) & (batch.index >= 0))
    return [(batch.index[i], batch.tokens[i, : 1 + batch.length[i]].tolist()) for i in rows]


MODEL_PLAN = plan_of(DRAFTERS["model"](DRAWN))


class Watched(Refilled):
    """Records the addresses of the target's cache after each call, and its program's text."""

    def parts(self, params, *_):
        ((loop, arguments),) = super().parts(params)
        compiled, self.addresses = loop.compile(*arguments), []
        self.text, self.input_formats = compiled.as_text(), compiled.input_formats
        yield types.SimpleNamespace(compile=lambda *_: self), arguments  # type: ignore[misc]

    def __call__(self, params, state, *new):
        ((loop, arguments),) = super().parts(params)
        state = loop.compile(*arguments)(params, state, *new)
        self.addresses.append([x.unsafe_buffer_pointer() for x in state.cache.keys])
        return state


@pytest.mark.ci
def test_nothing_is_compiled_twice_and_no_cache_moves(caplog):
    target = model_of(CONFIGS["t5"])
    plan = dataclasses.replace(
        MODEL_PLAN, target=target, drafter=PromptLookup(), schedule=Fixed(2), sampling=Sampling()
    )
    params, program = Params(target.init(jax.random.key(3))), Watched(plan, ROWS, WIDTHS)
    outputs = program.outputs(params, batches(target) * 2)
    next(outputs)
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        assert len(list(outputs)) == 7
    assert not [one for one in caplog.messages if "Compiling" in one]
    assert len(program.addresses) > 8 and len(np.unique(program.addresses, axis=0)) == 1
    slots = CONFIGS["t5"].num_heads, plan.capacity, CONFIGS["t5"].head_dim
    shape = f"f32[{ROWS},{','.join(map(str, slots))}]"
    assert not [one for one in read(program.text).copies if shape in one.shape and not one.fused]


@dataclasses.dataclass(frozen=True)
class Counts(Drafter):
    """Has a state that is not divided by rows."""

    def init(self, params, context):
        return {"count": jnp.zeros([], jnp.int32)}

    def propose(self, params, request, state):
        draft, _ = PromptLookup().propose(params, request, ())
        return draft, {"count": state["count"] + 1}


def test_a_state_without_rows_is_refused():
    plan = plan_of(Counts())
    with pytest.raises(ValueError, match=r"the state\.drafter\['count'\] is int32\[\] for 4 rows"):
        next(Refilled(plan, ROWS, WIDTHS).outputs(plan.params(TREES), batches()))


def test_one_row_is_refused():
    with pytest.raises(ValueError, match="REFILL needs several rows and BATCH_SIZE is 1; give"):
        Refilled(MODEL_PLAN, 1, WIDTHS)


def test_texts_of_one_width_are_read_together():
    """A narrow text that is read with a wide one would be padded."""
    lengths = [4, 2, 1, 4, 3, 2]
    inputs = np.array([[5] * n + [0] * (4 - n) for n in lengths], np.int32)
    keys = jax.random.split(jax.random.key(0), len(lengths))
    shapes: Any = ()
    stream = _Stream([GivenBatch(keys, inputs, np.ones(len(lengths), bool))], shapes, (2, 4), 0)
    taken = [[text.row for text in stream.take(2, len(lengths))] for _ in range(4)]
    assert taken == [[0, 3], [1, 2], [4, 5], []]


@dataclasses.dataclass(frozen=True)
class Listens(TableTarget):
    """A table whose inputs are numbers, as of sound: they have no tokens and no padding."""

    def inputs_shape(self, rows, length):
        return jax.ShapeDtypeStruct((rows, 3, 2), jnp.float32)


def test_inputs_without_tokens_are_read_whole():
    sound = np.arange(1, 13, dtype=np.float32).reshape(2, 3, 2)
    given = GivenBatch(row_keys(0, jnp.arange(2)), sound, np.ones(2, bool))
    shapes: Any = ()
    texts = _Stream([given], shapes, WIDTHS, 0).take(2, 2)
    program = Refilled(dataclasses.replace(MODEL_PLAN, target=Listens(5)), 8, WIDTHS)
    keys, inputs, live = program._texts(texts, WIDTH)
    np.testing.assert_array_equal(inputs, sound)
    assert live.all() and (keys == given.keys).all()
    longer = given._replace(inputs=np.ones([2, 4, 2], np.float32))
    with pytest.raises(UsageError, match="has room for 3 .* and a batch has 4; leave out REFILL"):
        program._texts(_Stream([longer], shapes, WIDTHS, 0).take(2, 2), WIDTH)


@pytest.mark.parametrize(
    "running, texts, more, places, left",
    [
        (0, 2, True, [0, 1], 8),  # there is room for the next two, which come first
        (5, 2, True, [5, 6], 6),  # and for one only: until two rows are finished
        (6, 2, True, [6, 7], 6),
        (6, 1, True, [6, 7], 6),
        (4, 2, True, [4, 5], 8),
        (6, 2, False, [6, 7], 0),  # to the end
    ],
)
def test_a_refill_ends_when_there_is_room_for_the_next_texts(running, texts, more, places, left):
    program = Refilled(MODEL_PLAN, 8, WIDTHS)
    rows: list[Any] = [running > place or None for place in range(8)]
    found = program._places(["a text"] * texts, rows, more)  # type: ignore[list-item]
    assert [x.tolist() for x in found] == [places, left]
    assert rows.count("a text") == texts and rows.count(None) == 8 - running - texts
