"""Beam search, compiled: what its loop copies and repeats, and what devices say to each other."""

import math
import re

import jax
import jax.numpy as jnp
import pytest
from support import forget_programs, inside

from specdec.decoding.beam_plan import BeamPlan
from specdec.decoding.beam_rules import T5XBeams
from specdec.decoding.draft_beams import DraftBeams
from specdec.models import partitioning
from specdec.models.bases.transformer import Attention
from specdec.models.contract.cache import KVCache
from specdec.models.t5 import T5Config, T5Target
from specdec.predict.compilation import compile_for

BEAMS, LONGEST, LENGTH, HEADS, HEAD_DIM = 4, 10, 13, 3, 11
CONFIG = T5Config(64, 32, HEADS, HEAD_DIM, 32, num_encoder_layers=1, num_decoder_layers=1)
TARGET = T5Target(CONFIG, partitioning.standard_logical_axis_rules())
DRAFT = T5Target(CONFIG, partitioning.replicated_logical_axis_rules())
PLAN = BeamPlan(TARGET, BEAMS, T5XBeams(), LONGEST, DraftBeams(DRAFT, 2 * BEAMS, 2))


def compiled(devices=1):
    """The search, with a row on each of some CPUs, as if they were chips."""
    forget_programs()
    mesh = partitioning.make_mesh(1, jax.devices()[:devices])
    return compile_for(PLAN, (devices, LENGTH), mesh, parts=False).program.module


def arrays(instructions, *axes):
    """Returns the shapes that the loop makes with all of these axes."""
    made = inside([one for one in instructions if not one.fused], "search")
    found = [re.findall(r"\[([\d,]+)\]", one.shape) for one in made]
    shapes = [tuple(map(int, axes.split(","))) for one in found for axes in one]
    return [shape for shape in shapes if set(axes) <= set(shape)]


def repeated(module):
    """Returns what the loop makes of the keys and values of the inputs that is larger than they."""
    size = HEADS * HEAD_DIM * LENGTH
    return [x for x in arrays(module.operations, HEAD_DIM, LENGTH) if math.prod(x) > size]


def remade(module):
    """Counts the arrays of a cache that the loop makes beyond those that it must: a call of a model
    writes keys and values, and the kept slots of both caches are written once."""
    made = len(arrays(module.operations, HEADS, PLAN.capacity, HEAD_DIM))
    calls = sum(part.calls for part in PLAN.parts())
    return made - 2 * (calls + len(PLAN.models()))


@pytest.mark.ci
def test_keys_of_the_inputs_exist_once_and_no_cache_is_made_again():
    module = compiled()
    assert not repeated(module)
    assert remade(module) == 0


@pytest.mark.planted
def test_keys_that_are_repeated_for_each_node_are_seen(monkeypatch):
    over_inputs = Attention.over_inputs

    def wrong(self, x, keys, values, bias):
        keys, values = (jnp.repeat(one, x.shape[1], axis=0) for one in (keys, values))
        return over_inputs(self, x.swapaxes(0, 1), keys, values, bias).swapaxes(0, 1)

    monkeypatch.setattr(Attention, "over_inputs", wrong)
    assert repeated(compiled())


@pytest.mark.planted
def test_a_cache_that_is_gathered_is_seen(monkeypatch):
    """Plants a bug: slots are gathered from the whole cache."""
    keep = KVCache.keep

    def wrong(self, start, kept, width):
        order = (jnp.arange(PLAN.capacity)[None] + start[:, None]) % PLAN.capacity
        keys = tuple(jnp.take_along_axis(x, order[:, None, :, None], axis=2) for x in self.keys)
        return keep(self.replace(keys=keys), start, kept, width)

    monkeypatch.setattr(KVCache, "keep", wrong)
    assert remade(compiled()) > 0


def said(module):
    """Returns the shapes with a cache's axes that devices say to each other."""
    return arrays(module.collectives, HEADS, HEAD_DIM)


@pytest.mark.ci
def test_rows_on_devices_of_their_own_keep_their_caches():
    assert not said(compiled(devices=2))


@pytest.mark.planted
def test_a_cache_that_does_not_know_how_it_is_divided_is_seen(monkeypatch):
    create = KVCache.create.__func__

    def wrong(cls, *sizes, **others):
        return create(cls, *sizes, **others).replace(axis_rules=())

    monkeypatch.setattr(KVCache, "create", classmethod(wrong))
    assert said(compiled(devices=2))
