"""Yan et al.'s pairs (2402.01528) on TPUs: tokens per second over TAR, forecast from shapes.

  PYTHONPATH=. python scripts/devices/yan.py [--output_file=FILE]

For each file of configs/yan, for drafts that are whole on every chip and drafts that are divided
over the mesh. TAR is the number of tokens of a target call, its own included. Nothing is compiled:
bytes and operations are counted in the shapes of parameters, collectives in their logical axes.
tests/cli/test_yan_configs.py compares them with compiled programs.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, PartitionSpec

from specdec import cli
from specdec.common import resources, theory
from specdec.common.records import as_json, write
from specdec.instrument.compile.calls import silent_call
from specdec.instrument.compile.hardware import Call, Topology
from specdec.instrument.compile.roofline import predict
from specdec.models import partitioning
from specdec.models.contract.model import Model
from specdec.types import AxisRules

TOPOLOGIES = ("v4:2x2x2", "v5p:2x2x1")
ALPHAS = (0.6, 0.8)  # whose TARs the table has
LOGIT = 4  # bytes of a logit, which is float32
WAYS = ("roofline", "with_layers")
RULES = {
    "whole": partitioning.replicated_logical_axis_rules(),
    "divided": partitioning.standard_logical_axis_rules(),
}


class Shape(NamedTuple):
    """The shape of a cache: its rows, and tokens of outputs and inputs."""

    rows: int
    outputs: int
    inputs: int


def pairs() -> list[str]:
    """Returns the names of the pairs, those of LLaMA first."""
    files = (resources.folder("configs") / "yan").glob("*.gin")
    return sorted(file.stem for file in files if file.stem != "common")


def run_of(pair: str, folder: str = "yan") -> cli.DecodeRun:
    """Returns the run of a pair's file."""
    paths = ["CHECKPOINT_PATH = '-'", "DRAFT_CHECKPOINT_PATH = '-'"]
    args = argparse.Namespace(
        gin_file=[f"{folder}/{pair}.gin"],
        gin_bindings=paths,
        gin_search_paths=".",
        tfds_data_dir=None,
    )
    return cli.settings.build(cli.DecodeRun, args, {})


@functools.cache
def counted(model: Any, rules: AxisRules, shape: Shape, mesh: Any) -> Call:
    """Returns the figures of a model's call, with its collectives.

    All are counted for models of one layer and of two, because all layers are alike.

    Args:
      model: the model.
      rules: the rules that divide it, if the mesh can divide it evenly.
      shape: of the cache.
      mesh: the mesh, of devices or abstract.
    """
    one, two = (_counted(_with(model, rules, layers, mesh), shape, mesh) for layers in (1, 2))
    more = model.num_layers - 1

    def of_all(name: str) -> Any:
        first = getattr(one, name)
        return first + more * (getattr(two, name) - first)

    return Call(**{field.name: of_all(field.name) for field in dataclasses.fields(Call)})


def _with(model: Any, rules: AxisRules, layers: int, mesh: Any) -> Model:
    config = dataclasses.replace(model.config, num_decoder_layers=layers)
    model = dataclasses.replace(model, config=config, axis_rules=())
    return dataclasses.replace(model, axis_rules=partitioning.fitting(model, rules, mesh))


def _counted(model: Model, shape: Shape, mesh: Any) -> Call:
    """Returns the figures of one call.

    A product whose sum runs over a divided axis ends in an all-reduce, as does reading a divided
    table of tokens. A divided vocabulary ends in an all-gather of the logits.
    """
    sizes = dict(mesh.shape)
    params = partitioning.abstract(model, mesh)
    call = silent_call(model, params, model.cache_bytes(*shape, sizes), shape.rows, sizes)
    divided = {name for name, over in model.axis_rules if over == partitioning.MODEL}
    axes, leaves = ({k: v for k, v in x.items() if k != "encoder"} for x in (model.axes(), params))
    axes = jax.tree.leaves(axes, is_leaf=lambda leaf: isinstance(leaf, PartitionSpec))
    named = zip(axes, jax.tree.leaves(leaves), strict=True)
    sums = [leaf.shape[1] for names, leaf in named if leaf.ndim == 2 and names[0] in divided]
    gathers = int("vocab" in divided)
    return dataclasses.replace(
        call,
        reductions=len(sums),
        reduced=sum(sums) * jnp.dtype(model.dtype).itemsize,
        gathers=gathers,
        gathered=gathers * model.vocab_size * LOGIT,
    )


def forecast(pair: str) -> Iterator[dict[str, Any]]:
    """Yields a pair's forecast for each topology, with drafts whole and divided."""
    run = run_of(pair)
    plan = run.plan
    shape = Shape(run.data.batch_size, plan.capacity, run.data.lengths["inputs"])
    for name in TOPOLOGIES:
        topology = Topology.parse(name)
        mesh = AbstractMesh((1, topology.size), (partitioning.DATA, partitioning.MODEL))
        found: dict[str, Any] = {"pair": pair, "topology": name, "gamma": plan.longest_draft}
        for draft, rules in RULES.items():
            divided = {"target": RULES["divided"], "draft": rules}
            calls = {
                role: counted(model, divided[role], shape, mesh)
                for role, model in plan.models().items()
            }
            made = predict(topology.chip, plan, calls, {})
            roofline, with_layers = (_times(dataclasses.asdict(one)) for one in made)
            calls = {role: dataclasses.asdict(call) for role, call in calls.items()}
            found[draft] = {"calls": calls, "roofline": roofline, "with_layers": with_layers}
        yield found


def _times(made: Mapping[str, Any]) -> dict[str, float]:
    return {name: made[name] for name in ("target", "draft", "cost_ratio", "iteration")}


def table(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yields the lines of a Markdown table: c in both ways, all else by the roofline with layers.

    Args:
      found: the forecasts.
    """
    tars = [theory.expected_tokens(alpha, found[0]["gamma"]) for alpha in ALPHAS]
    columns = ["c, whole", "divided", "pays from TAR, whole", "divided"]
    for tar in tars:
        columns += [f"tokens/s at TAR {tar:.2f}, whole", "divided"]
    yield f"| pair | topology | alone, tokens/s | {' | '.join(columns)} |"
    yield "|---|---|" + "---:|" * (len(columns) + 1)
    for one in found:
        bare, made = ([one[draft][way] for draft in RULES] for way in WAYS)
        cells = [f"{1 / made[0]['target']:.0f}"]
        cells += [
            f"{low['cost_ratio']:.3f} to {high['cost_ratio']:.3f}"
            for low, high in zip(bare, made, strict=True)
        ]
        cells += [f"{each['iteration'] / each['target']:.2f}" for each in made]
        cells += [f"{tar / each['iteration']:.0f}" for tar in tars for each in made]
        yield f"| `{one['pair']}` | {one['topology']} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output_file", type=Path, help="a file for all figures, as JSON")
    args = parser.parse_args()
    found = [one for pair in pairs() for one in forecast(pair)]
    print(*table(found), sep="\n")
    if args.output_file:
        write(args.output_file, f"{as_json({'forecasts': found}, indent=1)}\n")


if __name__ == "__main__":
    main()
