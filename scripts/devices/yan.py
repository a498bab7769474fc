"""Yan et al.'s pairs (2402.01528) on TPUs: tokens per second over TAR, forecast from shapes.

  PYTHONPATH=. python scripts/devices/yan.py [--output_file=FILE]

For each file of configs/yan, for drafts that are whole on every chip and drafts that are divided
over the mesh. TAR is the number of tokens of a target call, its own included. Nothing is compiled:
bytes and operations are counted in the shapes of parameters, collectives in their logical axes.
tests/cli/test_compiled_configs.py compares them with compiled programs.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jax.sharding import AbstractMesh

from specdec import cli
from specdec.common import resources, theory
from specdec.common.records import as_json, write
from specdec.models import partitioning
from specdec.predict.hardware import Topology
from specdec.predict.roofline import Shape, counted, predict

TOPOLOGIES = ("v4:2x2x2", "v5p:2x2x1")
ALPHAS = (0.6, 0.8)  # whose TARs the table has
WAYS = ("roofline", "with_layers")
RULES = {
    "whole": partitioning.replicated_logical_axis_rules(),
    "divided": partitioning.standard_logical_axis_rules(),
}


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
