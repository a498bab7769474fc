"""The measurements that are committed, and the tables made of them: pytest tests/measure"""

from __future__ import annotations

import json
import math
import re
import runpy
import statistics
import sys
from pathlib import Path
from typing import Any

import pytest

from specdec.common import theory
from specdec.measure import file
from specdec.measure.summary import summarize
from specdec.types import Part

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "studies"))
import beams_compared  # noqa: E402
import harness  # noqa: E402
import remeasure  # noqa: E402

LINES = sorted((ROOT / "docs" / "results").glob("*/*.jsonl"))
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "pages" / "make_tables.py"))


def page_of(*names: str) -> str:
    return ROOT.joinpath("docs", *names).read_text(encoding="utf-8")


def stored(*names: str) -> list[dict[str, Any]]:
    """The lines of a file in docs/results."""
    return [json.loads(line) for line in page_of("results", *names).splitlines()]


def agree(again: Any, written: Any) -> bool:
    """Whether both say the same, to 9 digits: the last ones depend on how NumPy adds."""
    if isinstance(written, dict):
        same = again.keys() == written.keys()
        return same and all(agree(again[name], written[name]) for name in written)
    if isinstance(written, list):
        return len(again) == len(written) and all(map(agree, again, written))
    return again == (pytest.approx(written, rel=1e-9) if isinstance(written, float) else written)


OFTEN = LINES[::4] + [x for x in LINES if x.stem == "large_ende_t0_gamma10"]


@pytest.mark.parametrize(
    "path",
    [pytest.param(x, marks=[pytest.mark.slow] * (x not in OFTEN)) for x in LINES],
    ids=[f"{path.parent.name}-{path.stem}" for path in LINES],
)
def test_figures_are_those_of_the_lines(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    written = json.loads(Path(f"{path}.summary.json").read_text(encoding="utf-8"))
    floor = written["baseline"]["floor"] * written["baseline"]["bandwidth"]
    parts = [Part(*one) for one in written["prediction"]["parts"]]
    summary = summarize(
        map(file.record, map(json.loads, lines)),
        parts=lambda *of_calls: parts,  # of the lines themselves
        gamma=written["run"]["gamma"],
        same_output=written["identical"] is not None,
        exact=written["exact"],
        step_bytes=round(floor),
    )
    again = json.loads(json.dumps(summary.record()))
    # Summaries before did not have them.
    later = {"conditional", "joint", "depth", "broken_drafts", "spread"}
    for name in later - written.keys():
        del again[name]
    if "by_turns" not in written["prediction"]:
        assert again["prediction"].pop("by_turns") == 1
    for name in again:
        assert agree(again[name], written[name]), name


@pytest.mark.parametrize("page", SCRIPT["PAGES"])
def test_tables_are_what_the_command_prints(page):
    reports = SCRIPT["REPORT"].findall((ROOT / page).read_text(encoding="utf-8"))
    assert reports, "the page has a table between its marks"
    for _, command, shown, _ in reports:
        assert SCRIPT["printed"](command) == shown


LEAD = (  # the measurements of each row of the first table: with AVX-512, with AVX2 only
    ("ende_t0", "ende_t0"),
    ("ende_t1", "ende_t1"),
    ("highlights_t0", "highlights_t0"),
    ("highlights_t1", "highlights_t1"),
    ("base_ende_t0_gamma04", ""),
    ("large_ende_t0_gamma07", "large_ende_t0_gamma07"),
    ("large_ende_t1_speculative_sampling", ""),
    ("", "large_gec_t0_hybrid"),
    ("", "large_qa_t0_hybrid"),
    ("large_multi30k_t0_gamma04", ""),
    ("large_multi30k_t1_speculative_sampling", ""),
)


def cell(device: str, name: str) -> str:
    """Returns a cell of the first table; exact texts at temperature 0 are asserted."""
    if not name:
        return ""
    path = ROOT / "docs" / "results" / f"amd_epyc_{device}_2_cores"
    found = json.loads((path / f"{name}.jsonl.summary.json").read_text(encoding="utf-8"))
    assert "_t1" in name or found["identical"] == found["texts"] * found["repeats"]
    ratio, low, high = (f"{found['speedup'][key]:.2f}" for key in ("ratio", "low", "high"))
    return f"**{ratio}** ({low} to {high})"


def test_the_first_table_has_the_committed_measurements():
    page = page_of("explanation", "performance.md")
    table = page.split("\n|", 1)[1].split("\n\n")[0].splitlines()[2:]
    shown = [tuple(one.strip() for one in line.split("|")[5:7]) for line in table]
    assert shown == [(cell("avx512", one), cell("avx2", other)) for one, other in LEAD]


def test_batches_are_those_of_the_lines():
    page = page_of("log", "performance-log.md")
    summary = page_of("explanation", "performance.md")
    shown = 1, 4, 8, 16, 32  # of the shorter table
    lines = stored("amd_epyc_avx512_2_cores", "batches", "lines.jsonl")
    for rows in sorted({line["rows"] for line in lines}):
        own = sorted((x for x in lines if x["rows"] == rows), key=lambda x: x["gamma"])
        speedups = [f"{x[name]:.2f}" for x in own for name in ("forecast", "measured")]
        v = ", ".join(f"{x['v']:.2f}" for x in own)
        cells = str(rows), f"{own[0]['step_ms']:.2f}", v, *speedups
        assert f"| {' | '.join(cells)} |" in page
        if rows in shown:
            short = str(rows), f"{own[-1]['v']:.2f}", *(f"{x['measured']:.2f}" for x in own)
            assert f"| {' | '.join(short)} |" in summary


def test_refilled_rows_are_those_of_the_lines():
    page = page_of("log", "performance-log.md")
    for line in stored("amd_epyc_avx512_2_cores", "batches", "refill.jsonl"):
        figures = interval(line["speedup"]), f"{line['equal']} of {line['texts']}"
        assert f"| {line['way']} | {line['steps'] or '-'} | {' | '.join(figures)} |" in page
        assert line["equal"] == line["texts"]
    for line in stored("amd_epyc_avx512_2_cores", "batches", "curve.jsonl"):
        same, memory = f"{line['equal']} of {line['texts']}", f"{line['bytes'] / 2**20:.0f}"
        ratio = "1" if line["way"] == "alone" else interval(line["speedup"])
        rate = f"{statistics.median(line['tokens_per_second']):,.0f}"
        cells = line["pair"], str(line["rows"]), line["way"], ratio, rate, same, memory
        assert f"| {' | '.join(cells)} |" in page and line["equal"] == line["texts"]
        # Rows of other outputs begin with a near-tie of the logits.
        assert all(gap < 1e-4 for gap in line["gaps"])


def lines_of(name: str, pair: str = "captions") -> list[dict[str, Any]]:
    lines = stored("amd_epyc_avx512_1_cores", name, "lines.jsonl")
    return [x for x in lines if x.get("pair", "captions") == pair]


def interval(given: list[float], digits: int = 2) -> str:
    value, low, high = (f"{x:.{digits}f}" for x in given)
    return f"{value} ({low} to {high})"


def cells_behind(mark: str) -> list[list[str]]:
    """Rows of the first table behind a mark in docs/log/methods-log.md."""
    page = page_of("log", "methods-log.md")
    table = page.split(mark)[1].split("\n|", 1)[1].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def rows_behind(mark: str) -> dict[str, list[str]]:
    """Returns the rows of the first table after a mark in the log of methods, by first cell."""
    return {first: rest for first, *rest in cells_behind(mark)}


@pytest.mark.parametrize(
    ("mark", "names"),
    [
        (
            "**What the parts of the recipe are worth.**",
            {
                "as it stands": "modern",
                "without glancing": "no glancing",
                "one mask for all places": "one mask",
                "from references": "references",
                "without states and neighbours": "plain",
            },
        ),
        (
            "**The plain form without them**",
            {
                "as it stands": "plain form",
                "without glancing": "plain form, no glancing",
                "one mask for all places": "plain form, one mask",
            },
        ),
    ],
)
def test_what_the_parts_of_the_recipe_are_worth_is_in_the_lines(mark, names):
    of = {(x["drafter"], x["length"]): x for x in lines_of("blocks") if "temperature" not in x}
    rows = rows_behind(mark)
    assert list(rows) == list(names)
    for row, cells in rows.items():
        both = [of[f"{names[row]}, 500 updates", length] for length in (4, 8)]
        figures = [(interval(x["tokens_per_call"]), interval(x["against"], 3)) for x in both]
        assert cells == [*figures[0], *figures[1]]
        assert all(x["unchanged"] == 1 and x["texts"] == 1000 for x in both)


def test_what_a_draft_sees_of_the_source_is_in_the_lines():
    of = {(x["drafter"], x["length"]): x for x in lines_of("blocks") if "temperature" not in x}
    names = {
        "nothing": "no source, 500 updates",
        "the target's encoder": "shared encoder, 500 updates",
        "its own encoder": "small T5, 500 updates more",
        "its own, as it came": "draft",
    }
    rows = rows_behind("**What a draft sees of the source.**")
    assert list(rows) == list(names)
    for row, (_, *cells) in rows.items():
        four, eight = (of[names[row], length] for length in (4, 8))
        memory_bound = theory.mbsu(four["tokens_per_call"][0], 4, four["step"])
        calls = [interval(x["tokens_per_call"]) for x in (four, eight)]
        figures = f"{four['step']:.3f}", interval(four["alpha"], 3), *calls, f"{memory_bound:.2f}"
        assert cells == list(figures)


@pytest.mark.parametrize(
    ("mark", "pair", "names"),
    [
        (
            "**On the embedded translations**",
            "ende",
            ("draft", "one layer on the target's encoder", "masks on its states", "heads"),
        ),
        ("**On its highlights**", "highlights", ("draft", "one layer on the target's encoder")),
    ],
)
def test_what_reads_the_target_of_the_embedded_pair_is_in_the_lines(mark, pair, names):
    of = {(x["drafter"], x["length"], x.get("temperature", 0)): x for x in lines_of("blocks", pair)}
    rows = rows_behind(mark)
    for name, (row, (_, size, updates, *cells)) in zip(names, rows.items(), strict=True):
        name = name if row.endswith("`demo/`") else f"{name}, {updates} updates"
        both = [of[name, length, 0] for length in (4, 8)]
        figures = [(interval(x["tokens_per_call"]), interval(x["against"], 3)) for x in both]
        assert cells == [*figures[0], *figures[1], interval(of[name, 8, 1]["tokens_per_call"])]
        assert size == f"{both[0]['parameters'] / 1e6:.1f}M"
        assert all(x["unchanged"] == 1 and x["texts"] == 400 for x in both)


def test_what_heads_of_a_fine_tuned_target_are_worth_is_in_the_lines():
    """Of each target the texts that it writes alone, all of them."""
    of = {(x["drafter"], x["length"]): x for x in lines_of("blocks")}
    names = {
        "heads on the frozen target, 200 updates": "heads, frozen target, 200 updates",
        "both from the beginning, 200 updates": "heads, tuned target, 200 updates",
        "heads on the frozen target, 120 more": "heads, frozen target, 320 updates",
        "both for these 120": "heads, target tuned for the last 120 of 320 updates",
    }
    rows = rows_behind("**Heads of a fine-tuned target.**")
    assert list(rows) == list(names)
    for row, (_, bleu, *cells) in rows.items():
        both = [of[names[row], length] for length in (4, 8)]
        assert cells == [interval(x["tokens_per_call"]) for x in both]
        for line in both:
            assert bleu == f"{line['bleu']:.2f}"
            assert line["alone"] == 1 and line["exact"] and line["texts"] == 1000


def test_what_a_confidence_head_is_worth_is_in_the_lines():
    of = {(x["costs"], x["blocks"]): x for x in lines_of("foreseen")}
    rows = rows_behind("**What a confidence head is worth.**")
    for row, cells in rows.items():
        costs, blocks = row.split(": ")
        line = of.pop((costs, blocks))
        figures = [interval(line[name]) for name in ("tokens_per_call", "tokens_per_step")]
        cut = f"{line['not_verified']:.0%}"
        assert cells == [figures[0], cut, figures[1], interval(line["over_whole"], 3)]
    assert not of


def test_what_drafters_without_a_model_are_worth_is_in_the_lines():
    lines = stored("lookups.jsonl")
    of = {(x["task"], x["drafter"], x["store"], x["K"]): x for x in lines}

    def cells(digits, drafter, *places):
        """Of tasks and lengths, with the task's own store where there is one."""
        for task, length in places:
            stores = "", f"all {task}", f"100% {task}"
            (line,) = filter(None, (of.get((task, drafter, store, length)) for store in stores))
            figures = line["tokens_per_call"], *line["interval"]
            yield interval(figures, digits) if figures[1] < figures[2] else f"{figures[0]:.3f}"

    def called(row):
        """The drafter of a line, by its first word in the table."""
        return "Autoregressive" if row == "the small model" else re.findall(r"\w+", row)[0]

    own = "captions", "ende", "highlights"
    for row, (length, *found) in rows_behind("## What they are worth").items():
        if row.startswith("the small model"):
            continue  # of other drafts in each column
        assert found == list(cells(3, called(row), *((task, int(length)) for task in own)))
    places = [(task, length) for task in ("gec", "qa") for length in (8, 24)]
    for row, found in rows_behind("where outputs are mostly copies").items():
        assert found == list(cells(2, called(row), *places))


def test_what_several_paths_keep_is_in_the_lines():
    lines = stored("amd_epyc_avx512_2_cores", "paths", "lines.jsonl")
    rows = rows_behind("## Several paths")
    assert rows
    for row, found in rows.items():
        temperature, gamma = map(int, re.findall(r"\d+", row))
        pair = "ende" if row.startswith("translations") else "captions"
        places = pair, temperature, gamma
        of = {x["paths"]: x for x in lines if (x["pair"], x["temperature"], x["gamma"]) == places}
        cells = [interval(of[paths]["tokens_per_call"]) for paths in (1, 2, 4, 8)]
        assert found == [*cells, interval(of[4]["against"])]


def objectives_of(pair: str, steps: int) -> dict[str, list[str]]:
    """Rows of a table as the lines have them: means over seeds, and Student's intervals of the
    difference to cross-entropy with the same seed."""
    cores = 1 if pair == "highlights" else 2
    lines = stored(f"amd_epyc_avx512_{cores}_cores", "alignment", "lines.jsonl")
    found: dict[str, dict[int, dict[str, float]]] = {}
    for x in lines:
        if x.get("pair", "captions") == pair and x["steps"] in (0, steps):
            alphas = {name: value[0] for name, value in x["alphas"].items()}
            found.setdefault(x["objective"], {})[x["seed"]] = alphas
    rows = {}
    for name, of in found.items():
        cells = []
        for t in ("T=0", "T=1"):
            more = [alphas[t] - found["cross_entropy"][seed][t] for seed, alphas in of.items()]
            cells += [f"{statistics.mean(alphas[t] for alphas in of.values()):.3f}", ""]
            if name not in ("as it came", "cross_entropy"):
                assert len(more) == 3
                half = 4.303 * statistics.stdev(more) / math.sqrt(3)
                cells[-1] = f"{statistics.mean(more):+.3f} ± {half:.3f}"
        rows[name] = cells
    return rows


@pytest.mark.parametrize(
    ("mark", "pair", "steps"),
    [
        ("## Learning what the target says", "captions", 200),
        ("**Translations of the embedded pair.**", "ende", 50),
        ("**Its highlights.**", "highlights", 50),
    ],
)
def test_what_objectives_are_worth_is_in_the_lines(mark, pair, steps):
    names = {
        "cross-entropy of the texts": "cross_entropy",
        "`adaptive`, half of the texts its own": "adaptive, half on-policy",
    }
    rows = rows_behind(mark)
    assert {names.get(row, row.replace("`", "")): x for row, x in rows.items()} == (
        objectives_of(pair, steps)
    )


def test_what_parts_of_the_target_are_worth_is_in_the_lines():
    lines = stored("amd_epyc_avx512_1_cores", "shapes", "lines.jsonl")
    of = {(x["layers"], x["encoder"], x["steps"]): x["alphas"] for x in lines}
    rows = cells_behind("**Layers.**")
    assert {(layers, encoder) for layers, encoder, *_ in rows} == {key[:2] for key in of}
    for layers, encoder, *cells in rows:
        kept = [of[layers, "the target's", 0], of[layers, encoder, 200]]
        assert cells == [interval(x[t], 3) for t in ("T=0", "T=1") for x in kept]


def test_what_drafts_of_other_tasks_are_worth_is_in_the_lines():
    lines = stored("amd_epyc_avx512_2_cores", "drafts", "judged.jsonl")
    times = stored("amd_epyc_avx512_2_cores", "drafts", "timed.jsonl")
    steps = {(x["layers"], x["width"]): x["draft_seconds"] for x in reversed(times)}
    calls = {x["gamma"]: (x["verify_seconds"], x["step_seconds"]) for x in times}

    def row(x):
        spent = {
            gamma: (gamma * steps[x["layers"], 4 * x["width"]] + verify) / step
            for gamma, (verify, step) in calls.items()
        }
        speeds = {gamma: x["tokens_per_call"][str(gamma)][0] / of for gamma, of in spent.items()}
        best = max(speeds, key=speeds.__getitem__)
        return [
            x["domain"],
            f"{x['layers']} x {x['width']}",
            x["text"],
            f"{x['loss_of_references']:.3f}, {x['loss_of_outputs']:.3f}",
            f"{x['alpha'][0]:.3f}",
            f"{x['tokens_per_call']['4'][0]:.2f}",
            f"{speeds[best]:.2f} ({best})",
        ]

    found = [row(x) for x in lines if x["domain"] in ("highlights", "answers")]
    assert sorted(cells_behind("**Summaries and answers.**")) == sorted(found)
    assert len(found) == 12


def test_what_drafts_are_worth_elsewhere_is_in_the_lines():
    lines = stored("amd_epyc_avx512_2_cores", "drafts", "judged.jsonl")
    of = {(x["draft"], x["domain"]): x for x in lines}
    domains = "captions", "a target fine-tuned further", "other sentences"
    rows = rows_behind("**Another target, and other sentences.**")
    assert set(rows) == {draft for draft, domain in of if domain in domains[1:]}
    for row, cells in rows.items():
        own = [of[row, domain] for domain in domains]
        assert cells == [f"{x['alpha'][0]:.3f}, {x['tokens_per_call']['4'][0]:.2f}" for x in own]
    # What the page says of their order.
    ranks = [sorted(rows, key=lambda row: of[row, domain]["alpha"][0]) for domain in domains]
    assert ranks[0] == ranks[1] == ranks[2]


def test_what_previous_outputs_draft_is_in_the_lines():
    counted = stored("amd_epyc_avx512_2_cores", "revisions", "counted.jsonl")
    assert all(x["identical"] == x["outputs"] for x in counted)
    of = {(x["drafter"], x["changed"]): interval(x["tokens_per_call"]) for x in counted}
    kinds = "any", "less than a third", "more"
    drafters = dict.fromkeys(drafter for drafter, _ in of)
    rows = [[drafter, *(of[drafter, kind] for kind in kinds)] for drafter in drafters]
    assert cells_behind("**Texts that grow.**") == rows
    timed = stored("amd_epyc_avx512_2_cores", "revisions", "timed.jsonl")
    assert all(x["identical"] == len(x["seconds"]) for x in timed)


def test_forecasts_are_those_of_the_lines():
    page = page_of("log", "performance-log.md")
    lines = stored("amd_epyc_avx512_2_cores", "forecast", "lines.jsonl")
    found = {(x["pair"], x["temperature"], x["gamma"]): x for x in lines}
    pairs = "ende", "highlights", "captions"
    assert found.keys() == {(p, t, gamma) for p in pairs for t in (0, 1) for gamma in range(1, 11)}

    def ratio(line, name):
        low, high = line[f"{name}_interval"]
        return f"{line[name]:.3f} ({low:.3f} to {high:.3f})"

    for gamma in range(1, 11):
        greedy, drawn = ([found[pair, t, gamma] for pair in pairs] for t in (0, 1))
        assert all(line["same"] == 1 for line in greedy)
        formula = [f"{line['formula']:.2f}" for line in greedy]
        cells = str(gamma), *(ratio(line, "other") for line in greedy), *formula
        assert f"| {' | '.join(cells)} |" in page
        cells = str(gamma), *(ratio(line, name) for name in ("same", "other") for line in drawn)
        assert f"| {' | '.join(cells)} |" in page


def test_nothing_of_the_machine_is_in_them():
    for path in filter(Path.is_file, (ROOT / "docs" / "results").rglob("*")):
        assert not re.search(r"/tmp/|/home/|/root/|/work/", path.read_text(encoding="utf-8")), path


def beam_lines(name: str) -> list[dict[str, Any]]:
    return stored("amd_epyc_avx512_2_cores", "beams", f"{name}.jsonl")


def test_beams_of_other_libraries_are_those_of_the_lines():
    lines = beam_lines("identical")
    for beams in (2, 4, 8):
        cells = [str(beams)]
        for peer in ("t5x", "huggingface"):
            some = [x for x in lines if (x["beams"], x["peer"]) == (beams, peer)]
            same, texts = (f"{sum(x[key] for x in some):,}" for key in ("identical", "texts"))
            largest = f"{max(x['score_difference'] for x in some):.1e}".replace("e-0", "e-")
            assert same == texts == "1,000"
            cells.append(f"{same} of {texts}, {largest}")
        shown = cells_behind("Beams of 1,000 captions against")
        assert cells in [[x.replace("largest score difference ", "") for x in row] for row in shown]


def test_beams_and_relaxed_speculation_are_those_of_the_lines():
    page = ROOT / "docs" / "explanation" / "methods" / "beams.md"
    table = page.read_text(encoding="utf-8").split("| decoding | BLEU |")[1].split("\n\n")[0]
    rows = [[x.strip() for x in row.strip("|").split("|")] for row in table.splitlines()[2:]]
    times = []
    for target in ("7.1M parameters", "723.6M parameters"):
        some = [x for x in beam_lines("compared_times") if x["target"] == target]
        spent = {k: x.sum() for k, x in harness.medians(some, "processor_seconds").items()}
        times.append({way: f"{seconds / spent['greedy']:.2f}" for way, seconds in spent.items()})
    for row, one in zip(rows, beam_lines("compared"), strict=True):
        seconds = f"{1e3 * beams_compared.predicted(one):.0f} ms"
        found = f"{one['bleu']:.2f}", f"{one['calls'][0]:.1f}", *(x[one["way"]] for x in times)
        assert row[1:] == [*found, seconds], one["way"]


def test_predicted_steps_of_beams_are_close_to_measured_ones():
    ratios = {}
    for line in beam_lines("predictions"):
        ratios[line["pair"], line["search"]] = line["predicted"] / line["steps_per_call"]
    assert len(ratios) == 24
    assert {x for (_, search), x in ratios.items() if "reuse" not in search} == {1.0}
    assert 1.014 < max(ratios.values()) < 1.015  # "at most 1.5 % too high", the page says
    assert min(ratios.values()) == 1


def test_the_short_table_of_a_gpu_has_the_committed_measurements():
    page = page_of("reference", "gpu-tables.md")
    names = ("grown_ende_t0_gamma5", "grown_ende_t0_gamma7", "grown_ende_t1_gamma7")
    table = page.split("target's step, ms |\n")[1].split("\n\n")[0].splitlines()[1:]
    for row, name in zip(table, (*names, "ende_small_t0", "ende_small_t1"), strict=True):
        path = ROOT / "docs" / "results" / "nvidia_h200" / f"{name}.jsonl.summary.json"
        found = json.loads(path.read_text(encoding="utf-8"))
        ratio, low, high = (f"{found['speedup'][key]:.2f}" for key in ("ratio", "low", "high"))
        of, step = found["prediction"], 1e3 * found["baseline"]["target_step"]
        costs = f"{of['cost_ratio']:.3f} | {of['verify_cost']:.2f} | {step:.2f}"
        shown = f"**{ratio}** ({low} to {high}) | {of['measured_over_predicted']:.2f} | {costs} |"
        assert row.endswith(shown) and f"gamma {found['run']['gamma']} |" in row


def test_beams_on_a_gpu_are_those_of_the_lines():
    page = page_of("reference", "gpu-tables.md")
    rows = page.split("times as fast as plain beams |\n")[1].split("\n\n")[0].splitlines()[1:]
    lines = stored("nvidia_h200", "beams", "lines.jsonl")
    names = ("steps per call", "ms per call", "times as fast")
    for row, line in zip(rows, lines, strict=True):
        same = f"{line['same beams']} of {line['texts']}"
        shown = [cell.strip() for cell in row.strip("|").split("|")][1:]
        assert shown == [same, *(f"{line[name]:.2f}" for name in names)]


def test_devices_are_compared():
    folder = ROOT / "docs" / "results" / "amd_epyc_avx2_2_cores"
    rows = list(remeasure.differences(["ende_t0"], folder))[3:]
    here, there = ([cell.strip() for cell in row.strip("|").split("|")] for row in rows)
    assert here[:2] == ["ende_t0", "amd_epyc_avx2_2_cores"] and here[3] == "1.00"
    assert there[1] == "amd_epyc_avx512_2_cores" and there[6] == "100 of 100"
    ratio = [float(row[2].split()[0]) for row in (here, there)]
    assert float(there[3]) == pytest.approx(ratio[1] / ratio[0], abs=0.01)  # two decimals


@pytest.mark.ci
def test_all_drafters_may_take_what_is_predicted():
    """Each row's ratio is the summary's, and 1 is within its noise."""
    here = [path for path in LINES if path.parent.name == "amd_epyc_avx2_2_cores"]
    rows = [path.with_suffix("") for path in here if "_highlights_t0_" in path.stem]
    assert len(rows) == 18
    for row in rows:
        ratio, low, high = map(float, re.findall(r"[\d.]+", remeasure.over_predicted(row)))
        predicted = remeasure.summary(row)["prediction"]["measured_over_predicted"]
        assert ratio == float(f"{predicted:.2f}")
        assert low < 1 < high


def test_a_device_is_named_by_what_times_depend_on(monkeypatch):
    about = {"backend": "cpu", "device": "cpu", "cpu": "AMD EPYC 7B13", "cores": 4}
    for features, word in ((["sse4_2", "avx2", "fma"], "avx2"), (["avx2", "avx512f"], "avx512")):
        found = about | {"features": features}
        monkeypatch.setattr(harness, "hardware", lambda f=found: f)
        assert harness.device_name() == f"amd_epyc_7b13_{word}_4_cores"


def test_rows_that_are_measured_again_have_the_settings_of_those_that_were():
    for row in remeasure.ROWS:
        found = [path for path in LINES if path.stem == row]
        wanted = ("gamma", "sampling", "verifier", "split", "seed", "repeats", "lengths", "limit")
        settings = []
        for path in found:
            run = json.loads(Path(f"{path}.summary.json").read_text(encoding="utf-8"))["run"]
            settings.append({name: run[name] for name in wanted})
        assert settings and all(one == settings[0] for one in settings), row


def test_what_drafts_of_a_chronos_model_are_worth_is_in_the_lines():
    lines = stored("amd_epyc_avx512_2_cores", "chronos", "judged.jsonl")
    rows = rows_behind("### Drafts for series")
    assert len(rows) == len(lines) == 3
    for line in lines:
        loss, mase = line["wql"], line["mase"]
        assert rows[line["draft"]] == [
            f"{line['parameters']:,}",
            interval(line["alpha"], 3),
            interval(line["tokens_per_call"]),
            f"{loss['speculative']:.4f}, {loss['alone']:.4f}",
            signed(loss["difference"], 4),
            signed(mase["difference"], 3),
        ]
        for _, low, high in (loss["difference"], mase["difference"]):
            assert low <= 0 <= high


def test_times_of_a_chronos_model_are_in_the_lines():
    lines = stored("amd_epyc_avx512_2_cores", "chronos", "timed.jsonl")
    times = {}
    for clock in ("seconds", "processor_seconds"):
        for way in lines[0][clock]:
            of_texts = {}
            for line in lines:
                of_texts.setdefault(line["text"], []).append(line[clock][way])
            times[clock, way] = sum(map(statistics.median, of_texts.values()))
    rows = rows_behind("Time over that of the target alone: one series")
    assert len(rows) == 6
    for way, cells in rows.items():
        for clock, cell in zip(("seconds", "processor_seconds"), cells, strict=True):
            assert cell.split(" ")[0] == f"{times[clock, way] / times[clock, 'alone']:.2f}"


def signed(given: list[float], digits: int) -> str:
    value, low, high = (f"{x:+.{digits}f}" for x in given)
    return f"{value} ({low} to {high})"
