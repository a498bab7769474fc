"""Figures of other domains are those of the lines: pytest tests/measure/test_other_domains.py"""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "reference" / "other-domains-figures.md").read_text(encoding="utf-8")


EPYC, XEON = "amd_epyc_avx512_2_cores", "intel_r_xeon_r_processor_avx512_2_cores"


def lines_of(name: str, *key: str, device: str = EPYC) -> dict:
    text = (DOCS / "results" / device / f"{name}.jsonl").read_text()
    found = [json.loads(line) for line in text.splitlines()]
    return {tuple(str(one[name]) for name in key): one for one in found}


def rows(mark: str) -> list[list[str]]:
    """Returns the cells of the first table after a mark."""
    table = re.search(r"\n\|.*\n\|[-:| ]+\n((?:\|.*\n)+)", PAGE[PAGE.index(mark) :])
    split = (row.strip("|").split("|") for row in table[1].splitlines())
    return [[cell.strip() for cell in row] for row in split]


def interval(given: list[float], digits: int = 2) -> str:
    value, low, high = (f"{x:.{digits}f}" for x in given)
    return f"{value} ({low} to {high})"


def test_pixels_of_speculation_follow_the_targets_law():
    lines = lines_of("pixels/law", "sample")
    table = {row[0].strip("`"): row[1:] for row in rows("**The same law.**")}
    assert table.keys() == {sample for (sample,) in lines}
    for (sample,), line in lines.items():
        small = f"{line['p_value']:.2g}" if line["p_value"] >= 1e-9 else "below 1e-9"
        assert table[sample] == [f"{line['statistic']:.0f}", str(line["degrees"]), small]
        assert line["passed"] == ("Lenient" not in sample)
        assert f"{line['rows']:,}" in PAGE and f"{line['detectable_tv']:.3f}" in PAGE


def test_coupled_pixels_are_the_targets():
    lines = lines_of("pixels/coupled", "draft").values()
    assert lines and all(line["identical"] == line["pictures"] for line in lines)


def test_the_distance_of_pixels_is_never_above_its_bound():
    lines = lines_of("pixels/distance", "draft", "bound")
    table = rows("**A distance instead of equality.**")
    assert len(table) == len(lines) == 4
    for line, row in zip(lines.values(), table, strict=True):
        figures = [line["bound"], interval(line["tokens_per_call"])]
        figures += [f"{line[name]:,}" for name in ("kept", "changed", "furthest", "violations")]
        assert row == [*map(str, figures), f"{line['difference']:.2f}"]
        assert line["violations"] == 0 and line["furthest"] <= line["bound"]


def test_tokens_per_call_of_pixels_are_in_the_lines():
    lines = lines_of("pixels/calls", "draft", "gamma")
    table = {first: cells for first, *cells in rows("**Fewer calls.**")}
    assert len(table) == len(lines) / 3
    for draft, cells in table.items():
        line = lines[draft, "2"]
        assert cells[:2] == [f"{line['parameters']:,}", interval(line["alpha"], 3)]
        by_gamma = [interval(lines[draft, str(gamma)]["tokens_per_call"]) for gamma in (2, 4, 8)]
        assert cells[2:] == by_gamma


def test_drafts_for_speech_change_no_transcript():
    lines = lines_of("speech/judged", "gamma", device=XEON)
    table = {row[0]: row[1:] for row in rows("WER is the word error rate")}
    assert table.keys() == {gamma for (gamma,) in lines}
    for (gamma,), line in lines.items():
        assert table[gamma] == [
            interval(line["tokens_per_call"]),
            interval(line["alpha"], 3),
            f"{line['identical']} of {line['texts']}",
            *(interval(line["wer"][way]) for way in ("speculative", "alone")),
        ]
        assert line["identical"] == line["texts"]
    timed = {
        str(line["run"]["gamma"]): line for (_,), line in lines_of("speech/bench", "run").items()
    }
    for gamma, *cells in rows("`bench` timed 40 sounds"):
        line = timed.pop(gamma)
        ratio, predicted = line["speedup"], line["prediction"]
        costs = (predicted[name] for name in ("these_texts", "cost_ratio", "verify_cost"))
        speed_up = interval([ratio[name] for name in ("ratio", "low", "high")])
        assert cells == [speed_up, *(f"{cost:.2f}" for cost in costs)]
        assert line["identical"] == line["texts"] * line["repeats"]
    assert not timed


def test_a_talk_is_transcribed_by_one_command():
    lines = lines_of("speech/talk", "gamma", device=XEON)
    table = {row[0]: row[1:] for row in rows("The talk has")}
    assert table.keys() == {gamma for (gamma,) in lines}
    for (gamma,), line in lines.items():
        assert table[gamma] == [
            f"{line['seconds']:.1f}",
            f"{line['in_time']} of {line['commands']}",
            *(f"{line[name]:.3f}" for name in ("begins", "ends")),
            f"{line['tokens_per_call']:.2f}",
            f"{line['wer']:.2f}",
            "yes" if line["identical"] else "no",
        ]
        assert line["identical"] and line["in_time"] <= line["commands"]


def test_drafts_of_the_picture_task_are_in_the_lines():
    lines, table = (
        lines_of("pictures/counted", "temperature", "draft"),
        rows("MBSU is the speed-up"),
    )
    assert len(table) == len(lines) == 10
    for draft, temperature, *cells in table:
        line = lines[f"{temperature}.0", draft]
        alpha = interval(line["alpha"], 3) if "alpha" in line else "-"
        names = ("tokens_per_call", "over_text_only", "mbsu")
        shown = [f"{line['parameters']:,}", alpha, *(interval(line[name]) for name in names)]
        assert cells == shown
        assert line.get("identical", 200) == line["texts"] == 200
    assert f"{100 * lines['0.0', 'full']['right']:.1f} %" in PAGE


def test_roll_outs_learn_alike():
    lines = lines_of("rollouts/learned", "way", "seed")
    table = rows("## Roll-outs")
    assert len(lines) == 9 and all(min(line["same"]) == 1 for line in lines.values())
    for way, cells in zip(("alone", "draft", "realigned draft"), table, strict=True):
        runs = [line["held_out"] for (name, _), line in lines.items() if name == way]
        for place, column in ((0, 1), (-1, 2)):
            mean = statistics.mean(run[place]["reward"] for run in runs)
            assert cells[column].startswith(f"{mean:.1f} ±")
            if way != "alone":
                mean = statistics.mean(run[place]["alpha"] for run in runs)
                assert cells[column + 2].startswith(f"{mean:.3f} ±")


def test_times_of_the_picture_task_are_in_the_lines():
    file = DOCS / "results" / "amd_epyc_avx512_2_cores" / "pictures" / "timed.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    table = rows("The next table has times")
    assert len(lines) == 30 and len(table) == 5
    for draft, *cells in table:
        for cell, clock in zip(cells, ("seconds", "processor_seconds"), strict=True):
            sums = dict.fromkeys((draft, "alone"), 0.0)
            for text in {line["text"] for line in lines}:
                own = [line[clock] for line in lines if line["text"] == text]
                for way in sums:
                    sums[way] += statistics.median(one[way] for one in own)
            assert cell.split()[0] == f"{sums[draft] / sums['alone']:.2f}"
