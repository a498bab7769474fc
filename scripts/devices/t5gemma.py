"""T5Gemma's pairs on TPUs: speed-ups over acceptance rates, predicted from shapes.

  PYTHONPATH=. python scripts/devices/t5gemma.py [--output_file=FILE]

For each file of configs/t5gemma, for drafts that are whole on every chip and drafts that are
divided over the mesh, as scripts/devices/yan.py predicts those of decoder-only models.
tests/cli/test_compiled_configs.py compares the collectives with compiled programs.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yan
from jax.sharding import AbstractMesh

from specdec.common import resources, theory
from specdec.common.records import as_json, write
from specdec.models import partitioning
from specdec.predict.hardware import Topology
from specdec.predict.roofline import predict

TOPOLOGIES = {"9b_9b": ("v4:2x2x1", "v5e:2x4"), "2b_2b": ("v4:1x1x1", "v5e:1x1")}  # by target
ALPHAS = {f"{alpha:g}": alpha for alpha in (0.5, 0.6, 0.7, 0.8, 0.9)}
NAMES = ("target", "draft", "cost_ratio", "verify_cost", "speedups")


def pairs() -> list[str]:
    """Returns the names of the pairs."""
    files = (resources.folder("configs") / "t5gemma").glob("*.gin")
    return sorted(file.stem for file in files if file.stem != "common")


def predicted(pair: str) -> Iterator[dict[str, Any]]:
    """Yields a pair's prediction for each topology, with drafts whole and divided."""
    run = yan.run_of(pair, "t5gemma")
    plan = run.plan
    shape = yan.Shape(run.data.batch_size, plan.capacity, run.data.lengths["inputs"])
    for name in TOPOLOGIES[pair[:5]]:
        topology = Topology.parse(name)
        mesh = AbstractMesh((1, topology.size), (partitioning.DATA, partitioning.MODEL))
        found: dict[str, Any] = {"pair": pair, "topology": name}
        for draft, rules in yan.RULES.items():
            divided = {"target": yan.RULES["divided"], "draft": rules}
            calls = {
                role: yan.counted(_with_one_encoder_layer(model), divided[role], shape, mesh)
                for role, model in plan.models().items()
            }
            ways = (dataclasses.asdict(one) for one in predict(topology.chip, plan, calls, ALPHAS))
            roofline, with_layers = ({name: one[name] for name in NAMES} for one in ways)
            calls = {role: dataclasses.asdict(call) for role, call in calls.items()}
            found[draft] = {"calls": calls, "roofline": roofline, "with_layers": with_layers}
        yield found


def _with_one_encoder_layer(model: Any) -> Any:
    """Returns a model that is faster to count; a step reads no layer of the encoder."""
    config = dataclasses.replace(model.config, num_encoder_layers=1)
    return dataclasses.replace(model, config=config)


def pays_from(one: Mapping[str, Any]) -> float:
    """Returns the acceptance rate from which drafts of one token beat the target alone."""
    return one["cost_ratio"] + one["verify_cost"][1] - 1


def table(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yields the lines of a Markdown table, whose speed-ups have the best draft length.

    Args:
      found: the predictions.
    """
    columns = ["c, whole", "divided", "pays from alpha, whole", "divided"]
    columns += [f"alpha {alpha}" for alpha in ALPHAS]
    yield f"| pair | topology | alone, tokens/s | {' | '.join(columns)} |"
    yield "|---|---|" + "---:|" * (len(columns) + 1)
    for one in found:
        bare, made = ([one[draft][way] for draft in yan.RULES] for way in yan.WAYS)
        cells = [f"{1 / made[0]['target']:.0f}"]
        cells += [
            f"{low['cost_ratio']:.3f} to {high['cost_ratio']:.3f}"
            for low, high in zip(bare, made, strict=True)
        ]
        cells += [f"{pays_from(each):.2f}" for each in made]
        cells += [f"{max(max(each['speedups'][alpha]) for each in made):.2f}" for alpha in ALPHAS]
        yield f"| `{one['pair']}` | {one['topology']} | {' | '.join(cells)} |"


def needed(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yields a table of the acceptance rates at which drafts for 9B-9B are as fast as S-S.

    The draft length is the best one, and a draft is whole or divided, whichever is faster.
    """
    alphas = ("0.5", "0.6", "0.7", "0.8")
    yield f"| draft | topology | {' | '.join(f'S-S: {alpha}' for alpha in alphas)} |"
    yield "|---|---|" + "---:|" * len(alphas)
    for topology in TOPOLOGIES["9b_9b"]:
        drafts = {one["pair"]: one for one in found if one["topology"] == topology}
        small = drafts.pop("9b_9b_s_s")
        for pair, one in drafts.items():
            cells = [_needed(one, _fastest(small, float(alpha))) for alpha in alphas]
            yield f"| `{pair}` | {topology} | {' | '.join(cells)} |"


def _fastest(one: Mapping[str, Any], alpha: float) -> float:
    ways = [one[draft]["with_layers"] for draft in yan.RULES]
    return max(
        theory.speedup(alpha, gamma, way["cost_ratio"], way["verify_cost"][gamma])
        for way in ways
        for gamma in range(1, len(way["verify_cost"]))
    )


def _needed(one: Mapping[str, Any], speedup: float) -> str:
    found = (alpha / 100 for alpha in range(101) if _fastest(one, alpha / 100) >= speedup)
    alpha = next(found, None)
    return "never" if alpha is None else f"{alpha:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output_file", type=Path, help="a file for all figures, as JSON")
    args = parser.parse_args()
    found = [one for pair in pairs() for one in predicted(pair)]
    print(*table(found), "", *needed(found), sep="\n")
    if args.output_file:
        write(args.output_file, f"{as_json({'predictions': found}, indent=1)}\n")


if __name__ == "__main__":
    main()
