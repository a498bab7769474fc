"""Tables and a figure of the study of drafts, of the lines in docs/results/DEVICE/drafts/.

  python scripts/drafts_report.py [--draw]

Lines come from scripts/drafts.py, drafts_timed.py and draft_steps.py. Rank correlations are
Spearman's over the drafts, with percentile intervals of 10,000 resamples of them. --draw makes
docs/figures/drafts.svg (needs the extra `report`).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from drafts_timed import TIMES
from remeasure import RESULTS, device_name
from scipy import stats

from specdec.compile.hardware import LAYER_SECONDS, Topology
from specdec.records import Lines

DEFAULT = "8x128"  # T5-small's layers
RESAMPLES = 10_000
XXL = (24, 4096)  # layers and width of the target on a TPU
GAMMAS = range(1, 11)
OTHER_TASKS = ("highlights", "answers")


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--draw", action="store_true")
    args = parser.parse_args()
    folder = RESULTS / device_name() / "drafts"
    judged, timed, steps = (
        list(Lines(folder / f"{x}.jsonl")) for x in ("judged", "timed", "steps")
    )
    found = together(judged, timed, steps)
    on_captions = [one for one in judged if one["domain"] not in OTHER_TASKS]
    others = {task: of_task(judged, timed, task) for task in OTHER_TASKS}
    tables = drafts(found), correlations(found), domains(on_captions), of_others(others)
    for table in (*tables, correlations_of_others(others)):
        print(*table, "", sep="\n")
    if args.draw:
        draw(found, RESULTS.parent / "figures" / "drafts.svg")


def together(
    judged: Sequence[Mapping[str, Any]],
    timed: Sequence[Mapping[str, Any]],
    steps: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Of each draft all that is known of it, the fastest first."""
    times = {one["draft"]: one for one in timed}
    on_tpu = on_v4(steps)
    found = []
    for one in judged:
        if one["domain"] != "captions" or one["draft"] not in times:
            continue
        time = times[one["draft"]]
        seconds = on_tpu[one["layers"], TIMES * one["width"]]
        tokens = {gamma: one["tokens_per_call"][str(gamma)] for gamma in GAMMAS}
        target = on_tpu[XXL]
        v4 = {g: tokens[g][0] * target / (g * seconds + target) for g in GAMMAS}
        spent = time["gamma"] * time["draft_seconds"]
        found.append(
            {
                **one,
                **time,
                "alpha": one["alpha"][0],
                "tar": tokens[4][0],
                "speed": time["speedup"][0],
                "cost_ratio": time["draft_seconds"] / time["step_seconds"],
                "modelled": tokens[time["gamma"]][0]
                * time["step_seconds"]
                / (spent + time["verify_seconds"]),
                "sensitivity": -spent / (spent + time["verify_seconds"]),
                "v4": max(v4.values()),
                "v4_gamma": max(v4, key=v4.__getitem__),
            }
        )
    return sorted(found, key=lambda one: -one["modelled"])


def on_v4(steps: Sequence[Mapping[str, Any]]) -> dict[tuple[int, int], float]:
    """Seconds of a call of one token by layers and width: bytes over bandwidth, and the layers."""
    chip = Topology.parse("v4:1x1x1").chip
    return {
        (one["layers"], one["width"]): one["bytes"] / chip.bandwidth + one["layers"] * LAYER_SECONDS
        for one in steps
        if one["where"] != "here"
    }


def drafts(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    heads = (
        "layers x width, as grown",
        "learned from, steps",
        "loss of references, of outputs",
        "alpha",
        "tokens per call, gamma 4",
        "ms a draft token (of a target step)",
        "best gamma",
        "speed-up (95 %)",
        "predicted",
        "of all texts, by the parts",
        "d ln speed / d ln t_d",
        "XXL on v4 (gamma)",
    )
    yield f"| {' | '.join(heads)} |\n|{'---|' * 2}{'---:|' * 10}"
    for one in found:
        value, low, high = one["speedup"]
        cells = (
            f"{one['layers']} x {one['width']}",
            f"{one['text']}, {one['steps']}",
            f"{one['loss_of_references']:.2f}, {one['loss_of_outputs']:.2f}",
            f"{one['alpha']:.3f}",
            f"{one['tar']:.2f}",
            f"{1e3 * one['draft_seconds']:.2f} ({one['cost_ratio']:.3f})",
            one["gamma"],
            f"{value:.2f} ({low:.2f} to {high:.2f})",
            f"{one['promised_speedup']:.2f}",
            f"{one['modelled']:.2f}",
            f"{one['sensitivity']:.2f}",
            f"{one['v4']:.2f} ({one['v4_gamma']})",
        )
        yield f"| {' | '.join(map(str, cells))} |"


def correlations(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Of what a draft knows, costs and keeps, with how fast it makes the target."""
    columns = {
        "tar": "tokens per call, gamma 4",
        "speed": "speed-up",
        "modelled": "speed-up of all texts",
        "v4": "XXL on v4",
    }
    rows = {
        "loss_of_references": "loss of references",
        "loss_of_outputs": "loss of the target's outputs",
        "tar": "tokens per call, gamma 4",
        "draft_seconds": "seconds of a draft token",
        "layers": "layers",
        "width": "width",
    }
    yield f"| rank correlation of | {' | '.join(f'with {x}' for x in columns.values())} |"
    yield "|---|---:|---:|---:|---:|"
    for row, name in rows.items():
        cells = [
            "" if row == column else correlation(*(_values(found, x) for x in (row, column)))
            for column in columns
        ]
        yield f"| {name} | {' | '.join(cells)} |"


def correlation(x: np.ndarray, y: np.ndarray) -> str:
    """Spearman's, with its interval."""
    random = np.random.default_rng(0)
    draws = [random.integers(len(x), size=len(x)) for _ in range(RESAMPLES)]
    values = [_spearman(x[i], y[i]) for i in draws if len(set(x[i])) > 1 and len(set(y[i])) > 1]
    low, high = np.percentile(values, [2.5, 97.5])
    return f"{_spearman(x, y):+.2f} ({low:+.2f} to {high:+.2f})"


def _spearman(x: np.ndarray, y: np.ndarray) -> float:
    return float(np.corrcoef(stats.rankdata(x), stats.rankdata(y))[0, 1])


def _values(found: Sequence[Mapping[str, Any]], name: str) -> np.ndarray:
    return np.array([one[name] for one in found], float)


def domains(judged: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Alpha, and tokens per call with gamma 4, where drafts did not learn."""
    names = list(dict.fromkeys(one["domain"] for one in judged))
    of = {(one["draft"], one["domain"]): one for one in judged}
    own = list(dict.fromkeys(one["draft"] for one in judged))
    yield f"| draft | {' | '.join(names)} |\n|---|{'---:|' * len(names)}"
    for name in own:
        cells = [
            f"{one['alpha'][0]:.3f}, {one['tokens_per_call']['4'][0]:.2f}" if one else ""
            for one in (of.get((name, domain)) for domain in names)
        ]
        yield f"| {name} | {' | '.join(cells)} |"


def of_task(
    judged: Sequence[Mapping[str, Any]], timed: Sequence[Mapping[str, Any]], task: str
) -> list[dict[str, Any]]:
    """Of each draft of another task all that is known of it, the fastest first: with what the parts
    of its shape take at T5-large's sizes, by the better of the draft lengths that were timed."""
    steps = {(one["layers"], one["width"]): one["draft_seconds"] for one in reversed(timed)}
    calls = {one["gamma"]: (one["verify_seconds"], one["step_seconds"]) for one in timed}
    found = []
    for one in judged:
        if one["domain"] != task:
            continue
        draft = steps[one["layers"], TIMES * one["width"]]
        speeds = {
            gamma: one["tokens_per_call"][str(gamma)][0] * step / (gamma * draft + verify)
            for gamma, (verify, step) in calls.items()
        }
        more = {
            "alpha": one["alpha"][0],
            "tar": one["tokens_per_call"]["4"][0],
            "draft_seconds": draft,
            "modelled": max(speeds.values()),
            "gamma": max(speeds, key=speeds.__getitem__),
        }
        found.append({**one, **more})
    return sorted(found, key=lambda one: -one["modelled"])


def of_others(others: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[str]:
    heads = "layers x width", "learned from", "loss of references, of outputs", "alpha"
    heads = "task", *heads, "tokens per call, gamma 4", "of all texts, by the parts (gamma)"
    yield f"| {' | '.join(heads)} |\n|{'---|' * 3}{'---:|' * 4}"
    for task, found in others.items():
        for one in found:
            cells = (
                task,
                f"{one['layers']} x {one['width']}",
                one["text"],
                f"{one['loss_of_references']:.3f}, {one['loss_of_outputs']:.3f}",
                f"{one['alpha']:.3f}",
                f"{one['tar']:.2f}",
                f"{one['modelled']:.2f} ({one['gamma']})",
            )
            yield f"| {' | '.join(cells)} |"


def correlations_of_others(others: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[str]:
    """As on captions, of the drafts of each task."""
    rows = {
        "loss_of_references": "loss of references",
        "loss_of_outputs": "loss of the target's outputs",
    }
    columns = {"tar": "tokens per call, gamma 4", "modelled": "speed-up of all texts"}
    heads = [f"{task}, with {name}" for task in others for name in columns.values()]
    yield f"| rank correlation of | {' | '.join(heads)} |\n|---|{'---:|' * len(heads)}"
    for row, name in rows.items():
        cells = [
            correlation(*(_values(found, x) for x in (row, column)))
            for found in others.values()
            for column in columns
        ]
        yield f"| {name} | {' | '.join(cells)} |"


def draw(found: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Tokens per call over cost with lines of equal speed, and speed over loss."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "specdec"
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
    costs = np.linspace(0, 1.1 * max(one["cost_ratio"] for one in found), 50)
    verify = np.mean([one["verify_seconds"] / one["step_seconds"] for one in found])
    for speed in (1.0, 1.25, 1.5, 1.75, 2.0):
        left.plot(costs, speed * (4 * costs + verify), color="0.85", zorder=0)
        left.annotate(f"{speed:g}x", (costs[-1], speed * (4 * costs[-1] + verify)), color="0.5")
    for one in found:
        known = one["text"] == "outputs" and one["steps"] == max(x["steps"] for x in found)
        mark, label = ("o" if known else "x"), f"{one['layers']}x{one['width']}"
        for axes, x, y in ((left, "cost_ratio", "tar"), (right, "loss_of_references", "speed")):
            axes.plot(one[x], one[y], mark, color=f"C{[1, 2, 4, 8].index(one['layers'])}")
            axes.annotate(label, (one[x], one[y]), (5, 3), textcoords="offset points", fontsize=7)
    left.set_ylim(0.9 * min(one["tar"] for one in found), 1.1 * max(one["tar"] for one in found))
    left.set_xlabel("a draft token, in target steps")
    left.set_ylabel("tokens per target call, drafts of 4")
    right.set_xlabel("loss of references, nats per token")
    right.set_ylabel("speed-up with the best draft length")
    figure.savefig(path, metadata={"Date": None}, bbox_inches="tight")


if __name__ == "__main__":
    main()
