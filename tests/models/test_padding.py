"""Models that pad with another id than 0, in whose texts id 0 is a token.

The golden models are those of transformers; see tests/golden/README.md.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import GOLDEN, tiny_t5

from specdec import Params, Plan, checkpoints, decode, row_keys
from specdec.drafters import Autoregressive, PromptLookup
from specdec.models.t5 import T5Draft, T5DraftConfig, T5Target
from specdec.sampling import Greedy
from specdec.schedules import Fixed
from specdec.training import (
    Align,
    AllExits,
    ConfidenceHead,
    ExitClassifier,
    FillMasks,
    Frozen,
    Pairs,
    TeacherForced,
    cross_entropy,
)
from specdec.training.laws import _texts
from specdec.training.loss import Learner
from specdec.training.training_batches import TokenPair, pack
from specdec.verifiers import SpeculativeSampling

PAD, START, ENDS = 1, 0, (2, 60)


def opened(name):
    path = GOLDEN / name
    config: Any = checkpoints.config_from(path)
    target = T5Target(config)
    return target, checkpoints.load(path), np.load(path / "golden.npz")


MADLAD = opened("hf_madlad")
TIED = opened("hf_madlad_tied")


@pytest.fixture(scope="module")
def pairs():
    """Texts that transformers decoded, with id 0 inside inputs and targets."""
    _, _, golden = MADLAD
    targets = golden["greedy"].copy()
    assert np.any(targets[1] == 0) and targets[2, -1] == PAD
    return Pairs(golden["encoder_input_tokens"], targets)


def test_ids_are_those_of_the_checkpoint():
    target, _, _ = MADLAD
    assert (target.pad_id, target.config.decoder_start_id, target.stop_ids) == (PAD, START, (2,))
    assert TIED[0].stop_ids == ENDS
    assert target.active(jnp.array([[PAD, PAD], [0, PAD]])).tolist() == [False, True]


@pytest.mark.parametrize(
    "drafter",
    [
        pytest.param(Autoregressive(TIED[0], Greedy()), marks=pytest.mark.ci, id="a model"),
        pytest.param(PromptLookup(), id="a copy"),
    ],
)
def test_speculation_writes_what_the_target_alone_writes(drafter):
    target, params, golden = MADLAD
    inputs = golden["encoder_input_tokens"]
    plan = Plan(target, drafter, SpeculativeSampling(), Fixed(3), Greedy(), max_length=18)
    trees = {role: TIED[1] for role in drafter.owned()}
    keys = row_keys(0, jnp.arange(len(inputs)))
    output = decode(Params(target=params, **trees), keys, inputs, plan)
    assert output.length.tolist() == [18, 18, 14] and int(jnp.sum(output.trace.drafted))
    made = np.arange(18)[None] < np.asarray(output.length)[:, None]
    np.testing.assert_array_equal(np.asarray(output.tokens)[made], golden["greedy"][made])


def test_a_batch_is_filled_up_with_the_models_id():
    texts = [TokenPair(np.array([5, 0, 2], np.int32), np.array([0, 7, 2], np.int32))]
    (packed,) = pack(texts, {"inputs": 5, "targets": 4}, 2, 1, PAD)
    assert packed.inputs.tolist() == [[5, 0, 2, PAD, PAD], [PAD] * 5]
    assert packed.targets.tolist() == [[0, 7, 2, PAD], [PAD] * 4]


@pytest.mark.ci
def test_the_loss_counts_id_0_and_not_padding(pairs):
    target, params, golden = MADLAD
    made = np.cumsum(pairs.targets == 2, axis=1) - (pairs.targets == 2) == 0
    logits = golden["logits"].astype(np.float64)
    nats = (
        np.log(np.exp(logits).sum(-1))
        - np.take_along_axis(logits, pairs.targets[..., None].astype(int), axis=-1)[..., 0]
    )
    sums = cross_entropy(jnp.asarray(golden["logits"]), jnp.asarray(pairs.targets), PAD)
    assert int(sums.tokens) == made.sum() < made.size
    np.testing.assert_allclose(float(sums.loss), nats[made].sum(), rtol=1e-5)
    own = TeacherForced(0.0).sums(Learner(target, params, None), pairs, 0.0, None)
    # transformers wrote these texts, so each token is the argmax.
    assert int(own.tokens) == int(own.correct) == made.sum()


# Another numbering of the ids must change no loss. Ids 0 and 3 change places.

SWAPPED = np.array([3, 1, 2, 0, *range(4, 24)])
FIRST = T5Draft(
    T5DraftConfig.of(
        tiny_t5(24, 8, 12, heads=2, head_dim=4, decoder=2),
        exit_classifier=True,
        confidence_head=True,
    )
)
SECOND = T5Draft(dataclasses.replace(FIRST.config, pad_id=3, decoder_start_id=3))
MASKS = FillMasks(masks=2, blocks=2, glancing=(0.0, 0.0))


def renumbered(params):
    table = params["token_embedder"]["embedding"][SWAPPED]
    kernel = params["decoder"]["logits_dense"]["kernel"][:, SWAPPED]
    decoder = params["decoder"] | {"logits_dense": {"kernel": kernel}}
    return params | {"token_embedder": {"embedding": table}, "decoder": decoder}


@pytest.mark.ci
@pytest.mark.parametrize(
    "objective",
    [
        MASKS,
        *(
            pytest.param(objective, marks=pytest.mark.slow)
            for objective in (
                TeacherForced(0.1),
                AllExits(),
                ExitClassifier(),
                Align({"forward_kl": 1.0}),
                ConfidenceHead(MASKS),
            )
        ),
    ],
    ids=lambda x: type(x).__name__,
)
def test_no_loss_depends_on_the_number_of_the_padding_id(objective):
    texts = Pairs(
        np.array([[5, 3, 7, 1], [3, 9, 1, 0], [0, 0, 0, 0]], np.int32),
        np.array([[3, 8, 3, 6, 1], [4, 3, 1, 0, 0], [0, 0, 0, 0, 0]], np.int32),
    )
    other = Pairs(SWAPPED[texts.inputs].astype(np.int32), SWAPPED[texts.targets].astype(np.int32))
    params, frozen = (FIRST.init(jax.random.key(seed)) for seed in (0, 1))

    def sums(model, own, theirs, pairs):
        learner = Learner(model, own, Frozen(model, theirs))
        return objective.sums(learner, pairs, 0.1, jax.random.key(2))

    losses = [
        jax.jit(sums, static_argnums=0)(model, own, theirs, pairs)
        for model, own, theirs, pairs in (
            (FIRST, params, frozen, texts),
            (SECOND, renumbered(params), renumbered(frozen), other),
        )
    ]
    assert int(losses[0].tokens) == int(losses[1].tokens) > 0
    assert int(losses[0].correct) == int(losses[1].correct)
    np.testing.assert_allclose(float(losses[0].loss), float(losses[1].loss), rtol=1e-5)


def test_stored_laws_know_a_text_by_its_tokens_and_not_by_its_padding(pairs):
    (_, *rest) = _texts(pairs, PAD)
    columns = (np.pad(ids, ((0, 0), (0, 3)), constant_values=PAD) for ids in pairs[:2])
    wider = Pairs(next(columns), next(columns))
    assert [*_texts(wider, PAD)][1:] == rest
    assert [length for _, length in rest] == [18, 14]
