"""The figures of a model's calls for a roofline, and the costs and speed-ups that follow.

The figures are bytes, FLOPs and collectives. `count` takes them from shapes and logical axes, for
machines without libtpu's compiler: nothing is compiled, so temporaries and code are not counted.
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
    """Returns the figures of a model's call, without its collectives."""
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
    """Returns the figures of several calls, one after the other, as those of one call."""
    names, calls = ("bytes", "flops", "int8", "layers"), (call, *others)
    sums = {name: sum(map(operator.attrgetter(name), calls)) for name in names}
    return dataclasses.replace(call, **sums)


def with_collectives(call: Call, module: hlo.Module, width: int, share: float = 1.0) -> Call:
    """Returns a call with collectives."""
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
    """Returns the bytes of the largest share that a device has of a tree of abstract arrays."""
    return sum(_share(leaf) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _share(leaf: jax.ShapeDtypeStruct) -> int:
    shape = leaf.shape if leaf.sharding is None else leaf.sharding.shard_shape(leaf.shape)
    return math.prod(shape)


class Shape(NamedTuple):
    """The shape of a cache: its rows, and tokens of outputs and inputs."""

    rows: int
    outputs: int
    inputs: int


class Counted(NamedTuple):
    """The costs of a plan on one device: each model's call, and the bytes of parameters and
    caches."""

    calls: dict[str, Call]  # of each model, by role
    parameters: int  # bytes of all models' parameters
    caches: int  # bytes of all caches


def count(plan: Plan, shape: Shape, devices: int) -> Counted:
    """Counts the calls of a plan."""
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
    """Returns the figures of a model's call, with its collectives."""
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
    """Returns the figures of one call, with the collectives that follow from divided axes."""
    # A product whose sum runs over a divided axis ends in an all-reduce, as does reading a divided
    # table of tokens. A divided vocabulary ends in an all-gather of the logits.
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


LONGEST = 10  # draft tokens that are predicted for
WIDEST = 128  # tokens of a call of which costs are given

_WIDTHS = {"small": 512, "base": 768, "large": 1024}  # T5's

# As published, of encoder-decoders: {emb_dim of the draft: {task and temperature: alpha}}.
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
    """Returns the costs of a roofline, without prefill; the step is one of the first width."""
    seconds = {
        Calls(role, width): call.seconds(chip, width, layer_seconds)
        for role, call in calls.items()
        for width in dict.fromkeys(widths)
    }
    source = f"{source} and {layer_seconds * 1e6:.0f} us for each layer, no prefill"
    return Costs(seconds, step=seconds[Calls("target", widths[0])], source=source)


@dataclasses.dataclass(frozen=True)
class RooflinePrediction:
    """The predicted model calls of an iteration; all else in it counts as nothing."""

    layer_seconds: float  # assumed for each decoder layer in addition (`hardware.LAYER_SECONDS`)
    target: float  # seconds of a call with one token
    draft: float  # seconds of a draft token, in drafts of the plan's longest length
    cost_ratio: float  # c, `draft` divided by `target`
    # seconds of a draft of the plan's longest length, and of the target's call on it. Tokens per
    # second are TAR, the tokens of a target call with its own, divided by this.
    iteration: float
    verify_cost: list[float]  # v(gamma), for gamma = 0, 1, ..
    speedups: dict[str, list[float]]  # {alpha: [S at gamma 1, 2, ...]}


def predict(
    chip: Chip,
    plan: Plan,
    calls: Mapping[str, Call],
    alphas: Mapping[str, float],
    longest: int = LONGEST,
) -> tuple[RooflinePrediction, RooflinePrediction]:
    """Returns two predictions: by the roofline alone, and with a time for each layer too."""
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
    """The predicted model calls of a beam search; all else in it counts as nothing."""

    layer_seconds: float  # assumed for each decoder layer in addition
    step: float  # seconds of a step of the target alone, one call of w tokens
    iteration: float  # seconds of a call on a tree, and of the draft that grows it
    # the steps per call at which the search is as fast as the target alone. The speed-up is the
    # steps per call divided by this number.
    pays_from: float


def predict_beams(
    chip: Chip, plan: BeamPlan, calls: Mapping[str, Call]
) -> tuple[BeamPrediction, BeamPrediction]:
    """Returns two predictions: by the roofline alone, and with a time for each layer too."""

    both = plan.alone().parts(), plan.parts()

    def at(layer_seconds: float) -> BeamPrediction:
        known = roofline_costs(calls, chip, "", layer_seconds, _widths(*both))
        step, iteration = (known.iteration(parts).seconds for parts in both)
        return BeamPrediction(layer_seconds, step, iteration, iteration / step)

    return at(0.0), at(LAYER_SECONDS)


@dataclasses.dataclass(frozen=True)
class Exit:
    """A token that leaves the target after some layers, decoded without a drafter."""

    layers: int  # the layers that the token passes
    # the time of its call, by the roofline and with a time for each layer in addition
    seconds: tuple[float, float]
    speedup: tuple[float, float]  # over the whole target, in the same two ways


def exits(chip: Chip, plan: Plan, calls: Mapping[str, Call]) -> list[Exit]:
    """Returns a prediction for each depth of the target's calls; arguments as for `predict`."""

    def seconds(role: str) -> tuple[float, float]:
        return calls[role].seconds(chip, 1), calls[role].seconds(chip, 1, LAYER_SECONDS)

    of_all, predicted = seconds("target"), []
    for depth in plan.target.depths:
        leaving = seconds(of_depth(depth))
        speedup = of_all[0] / leaving[0], of_all[1] / leaving[1]
        predicted.append(Exit(depth, leaving, speedup))
    return predicted
