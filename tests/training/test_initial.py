"""What parameters begin with: pytest tests/training/test_initial.py"""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest
from support import tiny_t5

from specdec import checkpoints
from specdec.models.t5 import T5Draft, T5DraftConfig, T5Target
from specdec.training.training_error import TrainingError
from specdec.training.updates import begun_with

TARGET = tiny_t5(24, 16, 24, decoder=3)
DRAFT = T5DraftConfig.of(
    TARGET,
    vocab_size=27,
    mlp_dim=32,
    num_encoder_layers=0,
    encoded_dim=16,
    num_decoder_layers=2,
    markov_rank=4,
)


@pytest.fixture
def saved(tmp_path):
    params = T5Target(TARGET).init(jax.random.key(1))
    checkpoints.save(tmp_path / "target", params, config=TARGET)
    return tmp_path / "target", params


@pytest.mark.ci
def test_what_has_the_same_name_and_shape_is_taken(saved):
    path, target = saved
    own = T5Draft(DRAFT).init(jax.random.key(2))
    found = begun_with(own, path)
    assert jax.tree.structure(found) == jax.tree.structure(own)
    table = found["token_embedder"]["embedding"]
    np.testing.assert_array_equal(table[:24], target["token_embedder"]["embedding"])
    np.testing.assert_array_equal(table[24:], own["token_embedder"]["embedding"][24:])
    head = [tree["decoder"]["logits_dense"]["kernel"] for tree in (found, target, own)]
    np.testing.assert_array_equal(head[0][:, :24], head[1])
    np.testing.assert_array_equal(head[0][:, 24:], head[2][:, 24:])
    layers = [tree["decoder"]["layers_1"] for tree in (found, target, own)]
    same = jax.tree.map(np.array_equal, layers[0]["self_attention"], layers[1]["self_attention"])
    assert all(jax.tree.leaves(same))
    same = jax.tree.map(np.array_equal, layers[0]["mlp"], layers[2]["mlp"])  # of another width
    assert all(jax.tree.leaves(same))
    markov = [tree["decoder"]["markov_embedder"] for tree in (found, own)]
    assert np.array_equal(*[one["embedding"] for one in markov])


@pytest.mark.ci
def test_a_checkpoint_of_which_nothing_fits_is_refused(saved):
    path, _ = saved
    wide = dataclasses.replace(TARGET, emb_dim=12, relative_attention_num_buckets=8, num_heads=3)
    with pytest.raises(TrainingError, match="no array of .* has the name and shape"):
        begun_with(T5Target(wide).init(jax.random.key(0)), path)


def test_a_checkpoint_that_is_not_there_is_refused(tmp_path):
    own = T5Draft(DRAFT).init(jax.random.key(2))
    with pytest.raises(checkpoints.CheckpointError, match="nothing"):
        begun_with(own, tmp_path / "nothing")
