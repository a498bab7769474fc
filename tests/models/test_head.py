"""Heads that have some of the ids: pytest tests/models/test_head.py"""

from __future__ import annotations

import dataclasses
import functools
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import cells, tiny_t5
from tolerances import SMALL_LOGITS

from specdec import checkpoints, cli
from specdec.models import families, partitioning
from specdec.models.placement.layouts import Storage
from specdec.models.sizes.kept_parts import Trim
from specdec.models.t5 import T5Draft, T5DraftConfig, T5Target
from specdec.training import FillMasks, TeacherForced
from specdec.training.alignment import DIVERGENCES, NOTHING, Align, drawn
from specdec.training.loss import Frozen, Pairs
from specdec.training.updates import begun_with

pytestmark = pytest.mark.ci

UNTIED = tiny_t5(24, 16, 24, decoder=2)
TIED = dataclasses.replace(UNTIED, logits_via_embedding=True, mlp_activations=("relu",))
CONFIGS = {"untied": UNTIED, "tied": TIED}
IDS = (1, 2, 5, 6, 7, 11, 12, 20)
OTHERS = tuple(i for i in range(24) if i not in IDS)
INPUTS = jnp.asarray([[3, 5, 7, 2, 1], [4, 9, 1, 0, 0]], jnp.int32)
TOKENS = jnp.asarray([[0, 8, 6, 11], [0, 3, 2, 13]], jnp.int32)

either = pytest.mark.parametrize("name", CONFIGS)
LAYOUTS: tuple[Storage, ...] = ("checkpoint", "in_out", "out_in", "all_out_in")


@functools.cache
def whole(name):
    target = T5Target(CONFIGS[name])
    return target, jax.jit(target.init)(jax.random.key(2))


def trimmed(name, ids=IDS):
    model, params = whole(name)
    kept = Trim(head_ids=ids)
    config = families.resized(model.config, kept)
    return T5Draft(config), families.resize(params, model.config, kept)


@functools.partial(jax.jit, static_argnums=0)
def logits_of(model, params):
    return model.decode(params, TOKENS, model.prefill(params, INPUTS, 5))[0].logits


@pytest.mark.parametrize(
    "name, layout",
    cells(CONFIGS, LAYOUTS, often=[("untied", "checkpoint"), ("tied", "all_out_in")]),
)
def test_ids_that_are_kept_have_their_logits_and_others_none(name, layout):
    expected = logits_of(*whole(name))
    model, params = trimmed(name)
    ours = model.in_layout(storage=layout)
    tree = ours.from_stored(params)
    found = logits_of(ours, tree)
    assert found.shape == expected.shape and found.dtype == expected.dtype
    kept = jnp.asarray(IDS)
    np.testing.assert_allclose(found[..., kept], expected[..., kept], rtol=0, atol=SMALL_LOGITS)
    assert bool(jnp.all(jnp.isneginf(found[..., jnp.asarray(OTHERS)])))
    jax.tree.map(np.testing.assert_array_equal, ours.to_stored(tree), params)


@either
@pytest.mark.parametrize("weights", ["int8", "int8_tokens"])
def test_eight_bits_are_for_the_head_where_tokens_have_them(name, weights):
    model, params = trimmed(name)
    rounded = dataclasses.replace(model, weights=weights)
    tree = rounded.from_stored(params)
    head = tree["decoder"]["logits_dense"]["kernel"]
    if weights == "int8":
        np.testing.assert_array_equal(head, params["decoder"]["logits_dense"]["kernel"])
    assert head.dtype == ("float32" if weights == "int8" else "int8")
    large, small = whole(name)
    expected = dataclasses.replace(large, weights=weights)
    expected = logits_of(expected, expected.from_stored(small))
    kept = jnp.asarray(IDS)
    found = logits_of(rounded, tree)
    np.testing.assert_allclose(found[..., kept], expected[..., kept], rtol=0, atol=SMALL_LOGITS)


def test_transformers_has_no_such_head(tmp_path):
    model, params = trimmed("untied")
    with pytest.raises(checkpoints.CheckpointError) as error:
        checkpoints.save(tmp_path / "m", params, config=model.config, format="huggingface")
    assert str(error.value) == (
        "format huggingface: the head has 8 of 24 ids (head_ids), and that of transformers' T5 has "
        "all; choose another format"
    )


@pytest.mark.parametrize("ids", [IDS, (1, 2, 5)])
def test_over_devices(ids):
    model, params = trimmed("untied", ids)
    rules = partitioning.standard_logical_axis_rules()
    divided = dataclasses.replace(model, axis_rules=rules)
    mesh = partitioning.make_mesh(2, jax.devices()[:2])
    if len(ids) % 2:
        with pytest.raises(ValueError, match="logits_dense.* has 3 vocab, which a mesh"):
            partitioning.shardings(divided, mesh)
        return
    with jax.set_mesh(mesh):
        placed = jax.device_put(params, partitioning.shardings(divided, mesh))
        found = logits_of(divided, placed)
    expected = logits_of(model, params)
    kept = jnp.asarray(ids)
    np.testing.assert_allclose(found[..., kept], expected[..., kept], rtol=0, atol=SMALL_LOGITS)
    assert bool(jnp.all(jnp.isneginf(found) == jnp.isneginf(expected)))


def test_a_trimmed_head_does_not_grow():
    config = trimmed("tied")[0].config
    with pytest.raises(ValueError, match="8 of 24 ids; let a model with the whole head grow"):
        families.resized(config, dataclasses.replace(TIED, emb_dim=32))


# Training.

PAIRS = Pairs(INPUTS, jnp.asarray([[8, 6, 11, 1], [3, 2, 1, 0]], jnp.int32))


def aligned(name, divergence, **changes):
    """Loss per token, and its gradient."""
    target, params = whole(name)
    model, own = trimmed(name)
    objective = Align({divergence: 1.0}, **changes)

    def loss(own):
        frozen = Frozen(target, params)
        sums = objective.loss(model, own, frozen, PAIRS, jax.random.key(0), jnp.float32(0.5))
        return sums.loss / sums.tokens

    return jax.jit(jax.value_and_grad(loss))(jax.tree.map(lambda leaf: 1.1 * leaf, own))


@pytest.mark.parametrize(
    "divergence",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name not in ("forward_kl", "adaptive")))
        for name in DIVERGENCES
    ],
)
def test_alignment_of_what_cannot_be_said_is_finite(divergence):
    value, gradient = aligned("untied", divergence)
    leaves = [value, *jax.tree.leaves(gradient)]
    assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in leaves)
    assert abs(value) < 50, "what cannot be said counts for nothing"
    assert any(bool(jnp.any(leaf != 0)) for leaf in jax.tree.leaves(gradient))


def test_the_drafters_own_texts_have_its_ids():
    model, own = trimmed("untied")
    texts = drawn(model, own, PAIRS, jax.random.key(1))
    assert np.isin(texts, (0, *IDS)).all()
    value, _ = aligned("untied", "jensen_shannon", on_policy=1.0)
    assert np.isfinite(value)


def test_alpha_is_the_overlap_on_the_ids_that_are_kept():
    target, params = whole("untied")
    model, own = trimmed("untied")
    frozen = Frozen(target, params)
    sums = Align({"jensen_shannon": 1.0}).measure(model, own, frozen, PAIRS)
    p = jax.nn.softmax(teacher_logits(target, params), axis=-1)
    q = jax.nn.softmax(teacher_logits(model, own), axis=-1)
    real = np.asarray(PAIRS.targets) > 0
    alpha = np.minimum(p, q).sum(axis=-1)[real].sum()
    np.testing.assert_allclose(real.sum() - sums.loss, alpha, rtol=1e-5)


def teacher_logits(model, params):
    text = jnp.pad(PAIRS.targets, ((0, 0), (1, 0)))[:, :-1]
    return model.decode(params, text, model.prefill(params, PAIRS.inputs, 4))[0].logits


def test_forward_kl_is_of_the_ids_that_are_kept():
    p = jnp.log(jnp.asarray([[[0.5, 0.3, 0.2]]]))
    q = jnp.asarray([[[np.log(0.6), np.log(0.4), NOTHING]]])
    value = DIVERGENCES["forward_kl"](p, q, jnp.ones([1, 1], bool))
    expected = 0.5 * np.log(0.5 / 0.6) + 0.3 * np.log(0.3 / 0.4)
    np.testing.assert_allclose(value[0, 0], expected, rtol=1e-5)


@pytest.mark.parametrize("objective", [TeacherForced(), FillMasks(masks=2)])
def test_cross_entropy_of_what_cannot_be_said_is_refused(objective):
    model = trimmed("untied")[0]
    with pytest.raises(ValueError, match=r"has 8 of 24 ids \(head_ids\); give Align, or trim the"):
        objective.check(model, None)
    if isinstance(objective, TeacherForced):
        objective.check(whole("untied")[0], None)


@pytest.fixture
def saved(tmp_path):
    """The directories of a whole model and of its trimmed one."""
    for name, (model, params) in {"whole": whole("untied"), "part": trimmed("untied")}.items():
        checkpoints.save(tmp_path / name, params, config=model.config)
    return tmp_path / "whole", tmp_path / "part"


@pytest.mark.slow
def test_heads_begin_with_each_others_ids(saved):
    def head(tree):
        return np.asarray(tree["decoder"]["logits_dense"]["kernel"])

    (model, params), (large, _) = trimmed("untied"), whole("untied")
    own = large.init(jax.random.key(9))
    found = begun_with(own, saved[1], large.head_ids)
    np.testing.assert_array_equal(head(found)[:, IDS], head(params))
    np.testing.assert_array_equal(head(found)[:, OTHERS], head(own)[:, OTHERS])
    found = begun_with(model.init(jax.random.key(9)), saved[0], model.head_ids)
    np.testing.assert_array_equal(head(found), head(params))
    other = T5Draft(T5DraftConfig.of(UNTIED, head_ids=(0, *IDS[:-1])))
    own = other.init(jax.random.key(9))
    found = begun_with(own, saved[1], other.head_ids)  # as many ids, and others
    np.testing.assert_array_equal(head(found)[:, 1:], head(params)[:, :-1])
    np.testing.assert_array_equal(head(found)[:, 0], head(own)[:, 0])


# The command.


@pytest.fixture
def written(tmp_path):
    """A folder of predictions."""
    folder = tmp_path / "outputs"
    folder.mkdir()
    texts = [[5, 5, 7, 1], [5, 9, 7, 3, 1], [2, 1]]
    lines = [json.dumps({"input": "a", "tokens": tokens}) for tokens in texts]
    (folder / "predictions.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return folder


def trim(saved, tmp_path, *flags):
    return cli.main(["trim", f"--input={saved[0]}", f"--output={tmp_path / 'out'}", *flags])


def test_the_command_keeps_the_most_frequent_ids(saved, written, tmp_path, capsys):
    assert trim(saved, tmp_path, "--head_size=4", f"--predictions={written}") == 0
    said = f"its head has 4 of 24 ids, 81.82% of the tokens in {written}\n"
    assert capsys.readouterr().out.endswith(said)
    config = checkpoints.config_from(tmp_path / "out")
    assert config.head_ids == (1, 2, 5, 7)  # of 2, 3 and 9 the smallest
    expected = trimmed("untied", (1, 2, 5, 7))[1]
    jax.tree.map(np.testing.assert_array_equal, checkpoints.load(tmp_path / "out"), expected)


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--head_size=7"], r"--head_size is 7 and .* has 6 different ids; give 1 to 6"),
        (["--head_size=0"], r"--head_size is 0 and .* has 6 different ids; give 1 to 6"),
        (["--head_size=2", "--large"], "--predictions: .* has token 24, and the model 24 ids; giv"),
    ],
)
def test_the_command_refuses_in_one_line(flags, message, saved, written, tmp_path, capsys):
    if "--large" in flags:
        flags.remove("--large")
        line = json.dumps({"input": "a", "tokens": [24]})
        (written / "predictions.jsonl").write_text(f"{line}\n")
    assert trim(saved, tmp_path, f"--predictions={written}", *flags) == 2
    out, err = capsys.readouterr()
    assert not out and err.count("\n") == 1
    assert re.search(message, err)
    assert not (tmp_path / "out").exists()
