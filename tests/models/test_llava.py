"""LLaVA's prompts with pictures, and drafts without them: pytest tests/models/test_llava.py

The golden model was saved and run by transformers itself; see tests/golden/README.md.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import teacher_forced
from tolerances import LOGITS

from specdec import Params, Plan, autoregressive_decode, checkpoints, decode, row_keys
from specdec.drafters import Autoregressive, WithoutPictures
from specdec.models.bases import prompts
from specdec.models.families import model_of
from specdec.models.llama import Llama, LlamaConfig
from specdec.models.llava import ClipConfig
from specdec.sampling import Greedy
from specdec.schedules import Fixed
from specdec.types import Revised
from specdec.verifiers import GreedyMatch

FOLDER = Path(__file__).resolve().parents[1] / "golden" / "hf_llava"
GOLDEN = dict(np.load(FOLDER / "golden.npz"))
INPUTS = {"tokens": jnp.asarray(GOLDEN["prompts"]), "pixels": jnp.asarray(GOLDEN["pixels"])}
ROWS, LONGEST = GOLDEN["greedy"].shape
IMAGE, PATCHES = 59, 4
MODEL: Any = model_of(checkpoints.config_from(FOLDER))
TINY = ClipConfig(image_size=4, patch_size=2, emb_dim=8, num_heads=2, mlp_dim=12, num_layers=3)


@pytest.fixture(scope="module")
def params():
    return checkpoints.load(FOLDER, config=MODEL.config)


def run(params, inputs=INPUTS, model=MODEL):
    """Returns the logits of the golden outputs."""
    tokens = np.concatenate([model.start(inputs)[:, None], GOLDEN["outputs"][:, :-1]], axis=1)
    return teacher_forced(model, params, inputs, tokens)


def test_logits_are_those_of_transformers(params):
    """Pictures at other places, two in one prompt, and a prompt without one, in one batch."""
    assert [sum(row == IMAGE) // PATCHES for row in GOLDEN["prompts"]] == [1, 2, 0, 1, 1]
    np.testing.assert_allclose(run(params), GOLDEN["logits"], rtol=0, atol=LOGITS)


@pytest.mark.ci
def test_prompts_that_are_read_in_blocks_give_the_same(params, monkeypatch):
    monkeypatch.setattr(prompts, "BLOCK", 5)  # a picture lies in two blocks
    np.testing.assert_allclose(run(params), GOLDEN["logits"], rtol=0, atol=LOGITS)


@pytest.mark.ci
def test_a_batch_without_pictures_needs_none(params):
    tokens = jnp.where(INPUTS["tokens"] == IMAGE, 7, INPUTS["tokens"])
    bare = {"tokens": tokens, "pixels": jnp.zeros([ROWS, 0, 3, 28, 28])}
    for inputs in (tokens, bare):
        found = run(params, inputs)[2]
        np.testing.assert_allclose(found, GOLDEN["logits"][2], rtol=0, atol=LOGITS)


@pytest.mark.ci
def test_greedy_texts_are_those_of_generate_and_drafts_change_nothing(params):
    """LLaVA's language model drafts without pictures; drafting for itself, all is accepted."""
    c = MODEL.config
    fields = {f.name: getattr(c, f.name) for f in dataclasses.fields(LlamaConfig)}
    blind = Autoregressive(Llama(LlamaConfig(**fields)), Greedy(), WithoutPictures(IMAGE))
    keys = row_keys(0, jnp.arange(ROWS))
    given = {"target": MODEL, "sampling": Greedy(), "max_length": LONGEST}
    alone = autoregressive_decode(params, keys, INPUTS, **given)
    expected = GOLDEN["greedy"]
    np.testing.assert_array_equal(alone.length, (expected >= 0).sum(axis=1))
    np.testing.assert_array_equal(alone.tokens, np.where(expected < 0, 0, expected))
    own = {name: params[name] for name in ("token_embedder", "decoder")}
    for drafter, draft in ((blind, own), (Autoregressive(MODEL, Greedy()), params)):
        plan = Plan(MODEL, drafter, GreedyMatch(), Fixed(3), Greedy(), LONGEST)
        output = decode(Params(params, draft=draft), keys, INPUTS, plan)
        np.testing.assert_array_equal(output.tokens, alone.tokens)
        if drafter.view is None:
            trace = output.trace
            assert np.all(trace.accepted == trace.drafted)


def test_pictures_are_given_once_for_each_id(params):
    shorter, pictures = [], []
    for row, prompt in enumerate(GOLDEN["prompts"]):
        ids = prompt[prompt != MODEL.pad_id].tolist()
        first = [i for i, one in enumerate(ids) if one == IMAGE][::PATCHES]
        shorter.append([one for i, one in enumerate(ids) if one != IMAGE or i in first])
        pictures.append(list(GOLDEN["pixels"][row, : len(first)]))
    made = MODEL.inputs_of(shorter, pictures)
    jax.tree.map(np.testing.assert_array_equal, made, dict(INPUTS))
    with pytest.raises(ValueError, match="prompt 1 has the id 59 1 times and 0 pictures; give it"):
        MODEL.inputs_of([[5, IMAGE, 6]], [[]])
    with pytest.raises(ValueError, match="prompt 1 ends in a picture .the id 59.; give it a text"):
        MODEL.inputs_of([[5, IMAGE]], [[np.zeros([3, 28, 28])]])


@pytest.mark.parametrize("count, pictures", [(3, 1), (8, 1), (4, 0), (4, None)])
def test_what_does_not_fit_the_pictures_is_refused_before_it_is_compiled(params, count, pictures):
    says = f"prompt 2 has the id 59 {count} times; give it 4 times for each of at most "
    says += f"{pictures or 0} pictures"
    tokens = jnp.array([[5] * 9, [IMAGE] * count + [5] * (9 - count)], jnp.int32)
    inputs = tokens
    if pictures is not None:
        inputs = {"tokens": tokens, "pixels": jnp.zeros([2, pictures, 3, 28, 28])}
    given = {"target": MODEL, "sampling": Greedy(), "max_length": 4}
    for all_inputs in (inputs, Revised(inputs, tokens)):
        with pytest.raises(ValueError, match=says):
            autoregressive_decode(params, row_keys(0, jnp.arange(2)), all_inputs, **given)


def test_a_prompt_that_ends_in_a_picture_is_refused():
    tokens = jnp.array([[5, 6, 7, 8, 9, 9], [5, *[IMAGE] * 4, MODEL.pad_id]], jnp.int32)
    inputs = {"tokens": tokens, "pixels": jnp.zeros([2, 1, 3, 28, 28])}
    view = WithoutPictures(IMAGE).read_by(MODEL)
    for refuse in (MODEL.check_inputs, view):
        with pytest.raises(ValueError, match="prompt 2 ends in a picture .the id 59.; give it a"):
            refuse(inputs)
    with pytest.raises(ValueError, match="prompt 1 ends in a picture"):
        view({"tokens": jnp.array([[IMAGE, MODEL.pad_id]])})


def test_pixels_of_another_shape_are_refused(params):
    for pixels in (jnp.zeros([5, 1, 3, 28, 42]), jnp.zeros([5, 1, 3, 28, 28], jnp.bfloat16)):
        with pytest.raises(ValueError, match=r"; give float32 \[5, pictures, 3, 28, 28\]"):
            MODEL.prefill(params, INPUTS | {"pixels": pixels}, 4)


def test_a_text_moves_together_where_its_pictures_were():
    """Its positions are counted without them, and each row keeps its own padding."""
    x, pad = IMAGE, 60
    tokens = jnp.array([[5, x, x, 6, 7, pad], [x, x, x, x, 8, 9], [5, 6, pad, pad, pad, pad]])
    expected = [[5, 6, 7, -1, -1, -1], [8, 9, -1, -1, -1, -1], [5, 6, -1, -1, -1, -1]]
    found = jax.jit(WithoutPictures(x, pad_id=pad))({"tokens": tokens, "pixels": 0})
    assert jnp.where(found == pad, -1, found).tolist() == expected
    with pytest.raises(ValueError, match=r"has no padding id; call read_by\(model\) first"):
        WithoutPictures(x)(tokens)


def test_a_mesh_divides_the_heads_of_both_models():
    tower = dataclasses.replace(TINY, emb_dim=12, num_heads=6)
    config = dataclasses.replace(MODEL.config, num_heads=8, num_kv_heads=4, vision=tower)
    assert model_of(config).cache_heads == 2, "the most that divides 4 and 6"
