"""Computes the bytes, FLOPs and collectives of model calls, and costs and speed-ups from them.

`count` computes these figures from shapes and logical axes, for machines without libtpu's compiler.
It compiles nothing, so temporaries and code are not counted.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, PartitionSpec

from specdec.common import published
from specdec.common.values import fields_of
from specdec.decoding.beam_plan import BeamPlan
from specdec.models import partitioning
from specdec.models.contract.model import Model
from specdec.plan import Plan
from specdec.predict import hlo
from specdec.predict.costs import Calls, Costs
from specdec.predict.hardware import LAYER_SECONDS, Call, Chip
from specdec.schedules import Fixed
from specdec.types import AxisRules, Part, PyTree, of_depth

LOGIT = 4  # bytes of a logit, which is float32


def silent_call(
    model: Model, params: PyTree, cache_bytes: int, rows: int, mesh: Mapping[str, int]
) -> Call:
    """Returns the work of a model's call without collectives; `mesh` maps an axis to its size."""
    read = model.read_by_decode(params)
    leaves = jax.tree.leaves(read)
    in_int8 = [leaf for leaf in leaves if leaf.dtype == "int8" and model.weights == "int8_tokens"]
    numbers, narrow = sum(map(_share, leaves)), sum(map(_share, in_int8))
    per_number = 2 * (rows // mesh[partitioning.DATA])
    return Call(
        bytes=device_bytes(read) + cache_bytes,
        flops=per_number * (numbers - narrow),
        int8=per_number * narrow,
        layers=model.num_layers,
        devices=mesh[partitioning.MODEL],
    )


def together(call: Call, *others: Call) -> Call:
    """Returns one call with the summed work of several calls that run one after the other."""
    names, calls = ("bytes", "flops", "int8", "layers"), (call, *others)
    sums = {name: sum(map(operator.attrgetter(name), calls)) for name in names}
    return dataclasses.replace(call, **sums)


def with_collectives(call: Call, module: hlo.Module, width: int, share: float = 1.0) -> Call:
    """Returns `call` with a share of the collectives of its program `module` on `width` tokens."""
    reduced, gathered = (
        [x.bytes for x in module.collectives if x.opcode == opcode]
        for opcode in ("all-reduce", "all-gather")
    )
    return dataclasses.replace(
        call,
        reductions=round(share * len(reduced)),
        reduced=share * sum(reduced) / width,
        gathers=round(share * len(gathered)),
        gathered=share * sum(gathered) / width,
    )


def device_bytes(tree: PyTree) -> int:
    """Returns the bytes on one device of a tree of `jax.ShapeDtypeStruct`s with shardings."""
    return sum(_share(leaf) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _share(leaf: jax.ShapeDtypeStruct) -> int:
    shape = leaf.shape if leaf.sharding is None else leaf.sharding.shard_shape(leaf.shape)
    return math.prod(shape)


class Shape(NamedTuple):
    """The sizes of a cache."""

    rows: int
    outputs: int  # tokens
    inputs: int  # tokens


class Counted(NamedTuple):
    """The work and memory of a plan on one device."""

    calls: dict[str, Call]  # role -> one call of its model
    parameters: int  # bytes of the parameters of all models
    caches: int  # bytes of all caches


def count(plan: Plan, shape: Shape, devices: int) -> Counted:
    """Counts the work and memory of a plan whose models are divided over `devices` devices."""
    mesh = AbstractMesh((1, devices), (partitioning.DATA, partitioning.MODEL))
    models = {
        role: dataclasses.replace(x, axis_rules=partitioning.fitting(x, x.axis_rules, mesh))
        for role, x in plan.models().items()
        if isinstance(x, Model)
    }
    return Counted(
        calls={role: counted(x, x.axis_rules, shape, mesh) for role, x in models.items()},
        parameters=sum(_parameter_bytes(model, mesh) for model in models.values()),
        caches=sum(model.cache_bytes(*shape, dict(mesh.shape)) for model in models.values()),
    )


@functools.cache
def _parameter_bytes(model: Model, mesh: AbstractMesh) -> int:
    return device_bytes(partitioning.abstract(model, mesh))


@functools.cache
def counted(model: Model, rules: AxisRules, shape: Shape, mesh: AbstractMesh) -> Call:
    """Returns the work of a model's call with collectives, extrapolated from 1 and 2 layers."""
    first, second = (
        fields_of(_counted(_with(model, rules, layers, mesh), shape, mesh)) for layers in (1, 2)
    )
    more = model.num_layers - 1
    return Call(**{name: x + more * (second[name] - x) for name, x in first.items()})


def _with(model: Model, rules: AxisRules, layers: int, mesh: AbstractMesh) -> Model:
    encoder = {name: 1 for name in ("num_encoder_layers",) if model.sizes.get(name)}  # not called
    config = dataclasses.replace(model.config, num_decoder_layers=layers, **encoder)
    model = dataclasses.replace(model, config=config, axis_rules=())
    return dataclasses.replace(model, axis_rules=partitioning.fitting(model, rules, mesh))


def _counted(model: Model, shape: Shape, mesh: AbstractMesh) -> Call:
    """Returns the work of a model's call, with the collectives that divided axes cause."""
    # A product that sums over a divided axis ends in an all-reduce, and so does a lookup in a
    # divided token embedding. A divided vocabulary ends in an all-gather of the logits.
    sizes = dict(mesh.shape)
    params = partitioning.abstract(model, mesh)
    call = silent_call(model, params, model.cache_bytes(*shape, sizes), shape.rows, sizes)
    divided = {name for name, over in model.axis_rules if over == partitioning.MODEL}
    axes, leaves = ({k: v for k, v in x.items() if k != "encoder"} for x in (model.axes(), params))
    axes = jax.tree.leaves(axes, is_leaf=lambda leaf: isinstance(leaf, PartitionSpec))
    named = zip(axes, jax.tree.leaves(leaves), strict=True)
    sums = [x.shape[1] for names, x in named if names[1:] == ("embed",) and names[0] in divided]
    gathers = int("vocab" in divided)
    return dataclasses.replace(
        call,
        reductions=len(sums),
        reduced=sum(sums) * jnp.dtype(model.dtype).itemsize,
        gathers=gathers,
        gathered=gathers * model.vocab_size * LOGIT,
    )


LONGEST = 10  # the longest predicted draft
WIDEST = 128  # the most tokens of a call for which `roofline_costs` returns costs

_WIDTHS = {"small": 512, "base": 768, "large": 1024}  # T5's

# Published for T5: emb_dim of the draft -> "task T=temperature" -> alpha.
PAPER_ALPHAS: Mapping[int, Mapping[str, float]] = {
    width: {
        f"{row.task} T={row.temperature}": row.alpha
        for row in published.rows().values()
        if row.draft == draft
    }
    for draft, width in _WIDTHS.items()
}


def roofline_costs(
    calls: Mapping[str, Call],
    chip: Chip,
    source: str = "",
    layer_seconds: float = LAYER_SECONDS,
    widths: Sequence[int] = range(1, WIDEST + 1),
) -> Costs:
    """Returns costs by a roofline, without prefill; a step is a call on `widths[0]` tokens."""
    seconds = {
        Calls(role, width): call.seconds(chip, width, layer_seconds)
        for role, call in calls.items()
        for width in dict.fromkeys(widths)
    }
    source = f"{source} and {layer_seconds * 1e6:.0f} us for each layer, no prefill"
    return Costs(seconds, step=seconds[Calls("target", widths[0])], source=source)


@dataclasses.dataclass(frozen=True)
class RooflinePrediction:
    """The times and speed-ups predicted from model calls alone; other work takes no time."""

    layer_seconds: float  # assumed for each decoder layer in addition (`hardware.LAYER_SECONDS`)
    target: float  # seconds of a call with one token
    draft: float  # seconds of a draft token, in drafts of the plan's longest length
    cost_ratio: float  # c, `draft` divided by `target`
    # seconds of a draft of the plan's longest length plus the target's call on it. The speed in
    # tokens/s is TAR, the output tokens per target call, divided by this.
    iteration: float
    verify_cost: list[float]  # v(gamma), for gamma = 0, 1, ..
    speedups: dict[str, list[float]]  # label of an alpha -> speed-ups at gamma = 1, 2, ..


def predict(
    chip: Chip,
    plan: Plan,
    calls: Mapping[str, Call],
    alphas: Mapping[str, float],
    longest: int = LONGEST,
) -> tuple[RooflinePrediction, RooflinePrediction]:
    """Returns two predictions: by the roofline alone, and with `LAYER_SECONDS` for each layer.

    `calls` has each role's call, and `alphas` maps a label to an acceptance rate."""
    lengths = range(1, longest + 1)
    parts = {
        gamma: dataclasses.replace(plan, schedule=Fixed(gamma)).parts()
        for gamma in {*lengths, plan.longest_draft}
    }
    widths = _widths(plan.alone().parts()[:1], *parts.values())

    def at(layer_seconds: float) -> RooflinePrediction:
        known = roofline_costs(calls, chip, "", layer_seconds, widths)
        iterations = {gamma: known.iteration(calls, gamma) for gamma, calls in parts.items()}
        longest_draft = iterations[plan.longest_draft]
        return RooflinePrediction(
            layer_seconds=layer_seconds,
            target=known.step,
            draft=longest_draft.draft / plan.longest_draft,
            cost_ratio=longest_draft.cost_ratio,
            iteration=longest_draft.seconds,
            verify_cost=[1.0, *(iterations[gamma].verify_cost for gamma in lengths)],
            speedups={
                label: [iterations[gamma].speedup(alpha) for gamma in lengths]
                for label, alpha in alphas.items()
            },
        )

    return at(0.0), at(LAYER_SECONDS)


def _widths(*parts: Iterable[Part]) -> list[int]:
    return [part.width for part in itertools.chain.from_iterable(parts)]


@dataclasses.dataclass(frozen=True)
class BeamPrediction:
    """The times of a beam search predicted from model calls alone; other work takes no time."""

    layer_seconds: float  # assumed for each decoder layer in addition
    step: float  # seconds of a step of a search without drafts, one call on w tokens
    iteration: float  # seconds of a draft tree and of the target's call on it
    # the steps per call at which drafts save no time; the speed-up is steps per call / this
    pays_from: float


def predict_beams(
    chip: Chip, plan: BeamPlan, calls: Mapping[str, Call]
) -> tuple[BeamPrediction, BeamPrediction]:
    """Returns two predictions: by the roofline alone, and with `LAYER_SECONDS` for each layer."""
    both = plan.alone().parts(), plan.parts()

    def at(layer_seconds: float) -> BeamPrediction:
        known = roofline_costs(calls, chip, "", layer_seconds, _widths(*both))
        step, iteration = (known.iteration(parts).seconds for parts in both)
        return BeamPrediction(layer_seconds, step, iteration, iteration / step)

    return at(0.0), at(LAYER_SECONDS)


@dataclasses.dataclass(frozen=True)
class Exit:
    """The time of a token that leaves the target after some layers, without a drafter."""

    layers: int  # the layers that the token passes
    seconds: tuple[float, float]  # by the roofline, and with a time for each layer in addition
    speedup: tuple[float, float]  # over a token that passes all layers, for both of `seconds`


def exits(chip: Chip, plan: Plan, calls: Mapping[str, Call]) -> list[Exit]:
    """Returns a prediction for each number of layers in `plan.target.depths`."""

    def seconds(role: str) -> tuple[float, float]:
        return calls[role].seconds(chip, 1), calls[role].seconds(chip, 1, LAYER_SECONDS)

    of_all, predicted = seconds("target"), []
    for depth in plan.target.depths:
        leaving = seconds(of_depth(depth))
        speedup = of_all[0] / leaving[0], of_all[1] / leaving[1]
        predicted.append(Exit(depth, leaving, speedup))
    return predicted
