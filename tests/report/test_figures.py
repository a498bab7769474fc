"""`specdec report --figures_dir` on hand-made runs: pytest tests/report/test_figures.py"""

from __future__ import annotations

import json
import re
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from specdec import cli, report
from specdec.common.statistics import Estimate
from specdec.report import run_tables, speedups, times, words
from specdec.report.speedups import Point
from specdec.report.summaries import ReportedRun, read
from specdec.report.times import CallTokens

ROOT = Path(__file__).resolve().parents[2]
CPU = {"backend": "cpu", "cpu": "Some CPU", "cores": 2, "versions": {"jax": "0.10.2"}}
GPU = {"backend": "gpu", "device": "Some GPU", "devices": 1, "versions": {"jax": "0.10.2"}}
PIXELS = {
    "predicted_and_measured": (1600, 1120),
    "over_gamma": (1600, 1000),
    "over_alpha_and_cost": (1600, 1200),
    "gamma_and_arithmetic": (1600, 920),
    "one_generation": (1600, 1080),
    "one_iteration": (1600, 800),
}


def bench(*, gamma=2, ratio=2.0, alpha=0.5, c=0.1, v=1.5, environment=CPU, **settings) -> dict:
    """What the command writes, as far as it is drawn: a target step takes 10 ms."""
    run = {
        "gamma": gamma,
        "drafter": "Autoregressive",
        "sampling": "Greedy()",
        "verifier": "GreedyMatch()",
        "dtype": {"target": "float32", "draft": "float32"},
        "parameters": {"target": 2_000_000, "draft": 1_000_000},
        "lengths": {"inputs": 8, "targets": 8},
        "split": "test",
    }
    return {
        "environment": {"devices": 1, "device": "cpu"} | environment,
        "run": run | settings,
        "texts": 3,
        "repeats": 1,
        "seconds": {"alone": {"p50": 0.5}},
        "speedup": {"ratio": ratio, "low": ratio - 0.25, "high": ratio + 0.5, "per_token": ratio},
        "identical": 3,
        "exact": True,
        "tau": 2.5,
        "alpha": alpha,
        "baseline": {"target_prefill": 0.02, "target_step": 0.01},
        "prediction": {
            "gamma": gamma,
            "prefill": 0.03,
            "cost_ratio": c,
            "verify_cost": v,
            "long_generation": 1.2,
            "these_texts": ratio + 0.125,
            "draft": 0.002,
            "verify": 0.015,
            "rest": 0.001,
        },
    }


def generation(mode: str, text: int, tokens: int, repeat: int = 0, **trace) -> dict:
    one = {"mode": mode, "text": text, "repeat": repeat, "tokens": [7] * tokens}
    seconds = 0.1 * text + repeat + (mode == "alone")
    calls = len(trace.get("drafted", [0] * tokens))
    return {**one, "seconds": seconds, "calls": calls, "drafted": [], "accepted": [], **trace}


# Of 2, 5 and 9 tokens; that of 5 with a rejection, a whole draft, and an end inside a draft.
LINES = [
    generation("speculative", 4, 2, drafted=[2], accepted=[1]),
    generation("alone", 4, 2),
    generation("alone", 5, 9),
    generation("speculative", 5, 9, drafted=[2, 2, 2], accepted=[2, 2, 2]),
    {"part": "alone 1", "text": 4, "repeat": 0, "seconds": 0.3, "steps": 30},
    generation("speculative", 6, 5, drafted=[2, 2, 1], accepted=[0, 2, 1]),
    generation("alone", 6, 5),
]


@pytest.fixture
def write(tmp_path):
    """Puts a summary, and its lines, where `specdec bench` does; returns the summary's path."""

    def write(name: str, figures: dict, lines=LINES) -> str:
        if lines is not None:
            (tmp_path / name).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        path = tmp_path / f"{name}.summary.json"
        path.write_text(json.dumps(figures))
        return str(path)

    return write


@pytest.fixture
def runs(write):
    def runs(**summaries: dict) -> list[ReportedRun]:
        return read([write(f"{name}.jsonl", one) for name, one in summaries.items()])

    return runs


def expected(alpha: float, gamma: int, c: float, v: float) -> float:
    return (1 - alpha ** (gamma + 1)) / (1 - alpha) / (gamma * c + v)


def test_a_point_for_each_run(runs):
    unpredicted = bench() | {"prediction": None}
    found = runs(a=bench(), b=bench(ratio=3.0, alpha=0.75, c=0.3), other=unpredicted)
    assert speedups.points(found) == [
        Point("a", 0.5, 0.1, 2.125, Estimate(2.0, 1.75, 2.5)),
        Point("b", 0.75, 0.3, 3.125, Estimate(3.0, 2.75, 3.5)),
    ]


def test_runs_of_other_draft_lengths_make_a_curve(runs):
    """c and v are interpolated, the band is what the alphas of all runs allow."""
    (curve,) = speedups.curves(
        runs(
            long=bench(gamma=4, ratio=1.5, alpha=0.6, c=0.2, v=2.0),
            short=bench(gamma=2, ratio=2.5, alpha=0.5, c=0.1, v=1.5),
        )
    )
    assert curve.label == "" and curve.gammas == [2, 4] and curve.best == 0
    assert curve.measured == [Estimate(2.5, 2.25, 3.0), Estimate(1.5, 1.25, 2.0)]
    assert curve.predicted == [2.625, 1.625]
    parts = {2: (0.1, 1.5), 3: (0.15, 1.75), 4: (0.2, 2.0)}
    assert list(curve.band) == list(parts)
    for gamma, part in parts.items():
        assert curve.band[gamma] == pytest.approx(
            [expected(alpha, gamma, *part) for alpha in (0.5, 0.6)]
        )


def test_two_runs_of_one_draft_length_share_a_band(runs):
    others = {"b": bench(c=0.3), "longer": bench(gamma=3, c=0.2)}
    (curve,) = speedups.curves(runs(a=bench(c=0.1), **others))
    assert curve.gammas == [2, 2, 3]
    assert curve.band[2] == pytest.approx([expected(0.5, 2, 0.2, 1.5)] * 2)


def test_other_settings_and_other_hardware_make_other_curves(runs):
    """A setting that only runs of a single gamma have makes none."""
    others: dict[str, dict] = {
        "cold": {},
        "drawn": {"sampling": "Sampling(temperature=1.0, top_k=None, top_p=None)"},
        "gpu": {"environment": GPU},
    }
    both = {f"{x}{gamma}": bench(gamma=gamma, **y) for x, y in others.items() for gamma in (2, 3)}
    alone = bench(sampling="Sampling(temperature=0.5)")
    assert [
        (curve.label, curve.gammas) for curve in speedups.curves(runs(alone=alone, **both))
    ] == [
        ("Greedy(), 2 cores of Some CPU, jax 0.10.2", [2, 3]),
        ("Sampling(temperature=1.0), 2 cores of Some CPU, jax 0.10.2", [2, 3]),
        ("Greedy(), 1 x Some GPU, jax 0.10.2", [2, 3]),
    ]


def test_the_curve_of_a_published_row(runs):
    """Where configs/leviathan/ende_small_t0.gin has gamma 7, the paper's 3.2."""
    shown = speedups.papers(runs(mine=bench(), ende_small_t0=bench()), [1, 7])
    assert shown == {
        "alpha 0.75, c 0.02": pytest.approx([1.75 / 1.02, 3.16], abs=0.01)
    }  # read off to two decimals


def test_the_name_of_a_published_curve_stands_at_its_end(drawings, runs):
    shown = runs(ende_small_t0=bench(gamma=2), longer=bench(gamma=3))
    (axes,) = drawings["over_gamma"](shown).axes
    (curve,) = speedups.papers(shown, [1, 3]).values()
    (name,) = axes.texts
    assert name.get_text() == "alpha 0.75, c 0.02" and curve[0] < curve[1]
    assert name.xy == pytest.approx((3, curve[1]))


def test_the_surface_has_the_best_draft_length_of_each_point():
    alphas, cost_ratios = np.array([0.1, 0.5, 0.8]), np.array([0.0, 0.2])
    best = [
        [max(1, *(expected(a, g, c, 1) for g in range(1, 21))) for a in alphas] for c in cost_ratios
    ]
    assert best[1][0] == 1  # no draft pays
    np.testing.assert_allclose(speedups.surface(alphas, cost_ratios), best)


def test_the_timeline_is_of_the_median_text(runs):
    one = times.timeline(runs(a=bench(), b=bench()))
    assert (one.name, one.text, one.tokens) == ("a", 6, 5)
    assert one.calls == [CallTokens(0, 1, 2), CallTokens(2, 1, 0), CallTokens(1, 0, 0)]
    assert one.seconds == pytest.approx({"speculative": 0.6, "alone": 1.6})
    names = ("gamma", "prefill", "draft", "verify", "rest")
    assert [one.prediction[x] for x in names] == [2, 0.03, 0.002, 0.015, 0.001]
    assert one.baseline == {"target_prefill": 0.02, "target_step": 0.01}
    assert [one.start(call) for call in range(3)] == pytest.approx([0.03, 0.048, 0.066])


def test_the_timeline_is_of_the_median_number_of_calls_among_texts_of_one_length(write):
    drafted = {0: [2, 2, 2, 2], 1: [2, 2, 2], 2: [2, 2]}
    lines = [
        one
        for repeat, tested in drafted.items()
        for one in (
            generation("speculative", 6, 6, repeat, drafted=tested, accepted=[1] * len(tested)),
            generation("alone", 6, 6, repeat),
        )
    ]
    one = times.timeline(read([write("a.jsonl", bench(), lines)]))
    assert len(one.calls) == 3 and one.seconds["alone"] == pytest.approx(0.6 + 1 + 1)


def test_a_waterfall_in_target_steps(runs):
    parts = times.waterfalls(runs(a=bench()))["a"]
    assert [part.name for part in parts] == ["draft", "verify", "rest", "target alone"]
    np.testing.assert_allclose(
        [part[1:] for part in parts],
        [(0, 0.2, 0.002), (0.2, 1.5, 0.015), (1.7, 0.1, 0.001), (0, 2.5, 0.025)],
    )


def png_size(path: Path) -> tuple[int, int]:
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n" and content[12:16] == b"IHDR"
    return struct.unpack(">II", content[16:24])


@pytest.mark.ci
def test_every_figure_is_written_and_linked(write, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    first, second = write("run_$1.jsonl", bench()), write("b.jsonl", bench(gamma=3))
    folder, page = tmp_path / "drawn here" / "figures", tmp_path / "report.md"
    files = f"--output_file={page}", f"--figures_dir={folder}"
    assert cli.main(["report", *files, first, second]) == 0
    assert {file.stem: png_size(file) for file in folder.iterdir()} == PIXELS
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [f"wrote {folder / name}.png" for name in PIXELS]
    table, *links = page.read_text().split("\n\n![")
    assert table == run_tables.markdown(read([first, second])).rstrip("\n")
    assert links[1].strip() == "over gamma](drawn%20here/figures/over_gamma.png)"
    assert len(links) == len(PIXELS)


def test_a_report_links_its_figures(write, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cli.report, "_draw", lambda runs, folder: [Path(folder) / "a_b.png"])
    summary, page = write("a.jsonl", bench()), tmp_path / "report.md"
    folder = f"--figures_dir={tmp_path / 'my figures'}"
    assert cli.main(["report", folder, f"--output_file={page}", summary]) == 0
    text = run_tables.markdown(read([summary]))
    assert capsys.readouterr() == ("", f"wrote {tmp_path / 'my figures'}/a_b.png\n")
    assert cli.main(["report", folder, summary]) == 0 and capsys.readouterr().out == text
    assert page.read_text() == f"{text}\n![a b](my%20figures/a_b.png)\n"


def test_a_png_has_no_version_and_twice_the_pixels_of_a_page(tmp_path):
    """It is a PNG whatever format the user's settings prefer."""
    matplotlib = pytest.importorskip("matplotlib")
    from specdec.report import figures

    path = tmp_path / "x.png"
    with matplotlib.rc_context({"savefig.format": "svg", "savefig.dpi": 50}):
        figures.write_png(figures.blank(1.5), path)
    assert png_size(path) == (8 * 200, 300) and b"Software" not in path.read_bytes()


def test_a_single_gamma_is_no_curve(runs):
    pytest.importorskip("matplotlib")
    from specdec.report import figures

    sampled = bench(sampling="Sampling(temperature=1.0)")
    names = [one.__name__ for one in figures.of(runs(a=bench(), b=sampled))]
    assert names == [name for name in PIXELS if name != "over_gamma"]


@pytest.fixture
def drawings():
    pytest.importorskip("matplotlib")
    from specdec.report import figures

    return {draw.__name__: draw for draw in figures.FIGURES}


@pytest.mark.parametrize("name", PIXELS)
def test_a_caption_says_what_it_was_measured_on(drawings, runs, name):
    other = bench(environment=GPU | {"device": "Not drawn"}) | {"prediction": None}
    longer = {"c": bench(gamma=3), "d": bench(gamma=3, environment=GPU)}
    several = runs(other=other, a=bench(), b=bench(environment=GPU), **longer)
    caption = " ".join(drawings[name](several).get_supxlabel().split())
    places = ["2 cores of Some CPU, jax 0.10.2", "1 x Some GPU, jax 0.10.2"]
    shown = places[:1] if name == "one_generation" else places
    assert caption.endswith(f" On {'; '.join(shown)}.")


def test_intervals_and_the_lines_to_compare_with_are_drawn(drawings, runs):
    (axes,) = drawings["predicted_and_measured"](runs(a=bench(ratio=2.0))).axes
    (_, _, (bars,)) = axes.containers[0].lines
    np.testing.assert_allclose(bars.get_segments(), [[(2.125, 1.75), (2.125, 2.5)]])
    # A twentieth of the largest, 2.5, is left beyond both ends.
    np.testing.assert_allclose([axes.get_xlim(), axes.get_ylim()], [(1.625, 2.625)] * 2)
    slopes = {
        line.get_label(): line.get_ydata() / line.get_xdata()
        for line in axes.get_legend().axes.lines
    }
    np.testing.assert_allclose(slopes["measured as predicted"], 1)
    np.testing.assert_allclose(slopes["0.95 of predicted"], 0.95)
    looks = [(x.get_color(), x.get_linestyle()) for x in axes.lines if x.get_label() in slopes]
    assert looks[-2:] == [("#6E6E6E", "-"), ("#6E6E6E", "--")]


def test_the_rows_of_the_paper_are_on_the_surface(runs):
    said = list(words.OF["over_alpha_and_cost"][1](runs(a=bench(alpha=0.75, c=0.3))))
    assert said[0] == "a, here: alpha 0.75, c 0.30, speed-up 2.00" and len(said) == 13
    assert "ende_small_t0, paper: alpha 0.75, c 0.02, speed-up 3.40" in said


def test_a_drafter_that_is_always_wrong_is_on_the_surface(drawings, runs):
    """Each published speed-up stands above its point, in the same look."""
    (axes,) = drawings["over_alpha_and_cost"](runs(a=bench(alpha=0.0, c=2.0))).axes
    assert axes.get_xlim() == (0, 1) and axes.get_ylim()[1] > 2
    speedups = [x for x in axes.texts if hasattr(x, "xy") and re.fullmatch(r"[\d.]+", x.get_text())]
    assert {(x.get_ha(), x.get_fontsize()) for x in speedups} == {("center", 8)}
    *points, ours = axes.lines
    assert {(x.get_marker(), x.get_color(), x.get_markersize()) for x in points} == {
        ("s", "#6E6E6E", 5)
    }
    assert (ours.get_marker(), ours.get_color(), ours.get_markersize()) == ("o", "#D55E00", 7)


def test_names_keep_their_distance():
    pytest.importorskip("matplotlib")
    from specdec.report.figures import apart

    assert apart([0.9, 0.2], 0.1) == [0.9, 0.2]
    assert apart([0.5, 0.51, 0.49], 0.1) == pytest.approx([0.5, 0.6, 0.4])
    assert apart([0.0, 0.0], 0.1) == pytest.approx([0.0, 0.1])
    assert apart([], 0.1) == []


@pytest.mark.parametrize(
    "figures, lines, message",
    [
        (bench(), None, "a.jsonl cannot be read: No such file or directory; the timeline needs"),
        (
            bench(),
            [{"mode": "alone"}],
            "a.jsonl does not have the lines of the specdec bench of its summary",
        ),
        (bench(), LINES[:1], "a.jsonl does not have the lines of the specdec bench of its summary"),
        (
            bench() | {"prediction": None},
            LINES,
            "none of the summaries has a predicted speed-up to draw;",
        ),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(write, tmp_path, capsys, figures, lines, message):
    pytest.importorskip("matplotlib")
    folder = tmp_path / "figures"
    assert cli.main(["report", f"--figures_dir={folder}", write("a.jsonl", figures, lines)]) == 2
    captured = capsys.readouterr()
    assert message in captured.err and captured.err.count("\n") == 1 and not captured.out
    assert not folder.exists()


def test_without_matplotlib(write, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "specdec.report.figures", raising=False)
    monkeypatch.delattr(report, "figures", raising=False)
    summary = write("a.jsonl", bench())
    assert cli.main(["report", f"--figures_dir={tmp_path}", summary]) == 2
    captured = capsys.readouterr()
    assert "--figures_dir needs matplotlib; pip install matplotlib\n" in captured.err
    assert captured.err.count("\n") == 1 and not captured.out


@pytest.mark.ci
def test_a_report_without_figures_needs_no_matplotlib(write):
    program = (
        "import sys; sys.modules['matplotlib'] = None; from specdec import cli;"
        "sys.exit(cli.main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", program, "report", write("a.jsonl", bench())]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0 and done.stdout.startswith("| run |"), done.stderr


VARIED = [
    generation("speculative", 4, 9, drafted=[3, 1, 4], accepted=[1, 1, 4]),
    generation("alone", 4, 9),
    generation("speculative", 5, 4, drafted=[0, 2], accepted=[0, 2]),
    generation("alone", 5, 4),
]


def test_draft_lengths_along_a_generation(write, monkeypatch):
    """Of the longest text of the first run, call by call, and means by place of all texts."""
    monkeypatch.setattr(times, "FEWEST_CALLS", 2)
    varied = bench() | {"prediction": bench()["prediction"] | {"gamma": None}}
    files = [write("a.jsonl", varied, VARIED), write("b.jsonl", bench(), LINES)]
    a, b = times.lengths(read(files))
    assert (a.name, a.text, b.name, b.text) == ("a", 4, "b", 4)
    assert a.calls == [(0, 3, 1, 2), (2, 1, 1, 2), (4, 4, 4, 5)] and b.calls == [(0, 2, 1, 2)]
    # Starts are 0, 2 and 4, and 0 and 1: four of the first three places, one of the next.
    assert (a.places, a.drafted, a.accepted) == ([0], (1.5,), (1.0,))


def test_runs_whose_lengths_vary_have_their_figure(write, tmp_path):
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    from specdec.report import figures, html

    varied = bench() | {"prediction": bench()["prediction"] | {"gamma": None}}
    a, b = write("a.jsonl", varied, VARIED), write("b.jsonl", bench())
    (file,) = figures.draw(read([a]), tmp_path)
    assert file.name == "draft_lengths.png"
    both = read([a, b])
    assert [one.__name__ for one in figures.of(both)][-2:] == ["one_iteration", "draft_lengths"]
    assert set(words.OF) == {*PIXELS, "draft_lengths"}
    left, right = figures.draft_lengths(read([a])).axes
    heights = [(bar.get_x(), bar.get_width(), bar.get_height()) for bar in left.patches]
    assert heights == [(0, 2, 1), (0, 2, 2), (2, 2, 1), (2, 2, 0), (4, 5, 4), (4, 5, 0)]
    said = "a, text 4, accepted by call: 1 of 3, 1 of 1, 4 of 4"
    assert list(words.OF["draft_lengths"][1](both))[0] == said
    measured = "amd_epyc_avx2_2_cores/schedules/base_highlights_t0_confidence.jsonl.summary.json"
    (real,) = read([str(ROOT / "docs" / "results" / measured)])
    page = html.page([real], iter(()))
    assert page.count("Draft lengths along a generation") and "One generation" not in page


def test_tokens_best_gammas_and_operations_are_theirs(drawings, runs):
    """By hand, for each alpha: the expected tokens, the gamma of the least time, and operations
    over tokens."""
    found = drawings["gamma_and_arithmetic"](runs(a=bench(alpha=0.8, gamma=4)))
    first, left, right = found.axes
    assert left.yaxis.get_major_locator().tick_values(0, 2).tolist() == [0, 1, 2]
    assert right.get_yticks().tolist() == [1, 2, 5, 10, 20]
    of_gamma = {line.get_label(): line.get_data() for line in first.lines}
    for alpha, tokens in zip(*of_gamma["gamma 3"], strict=True):
        assert tokens == pytest.approx(1 + alpha + alpha**2 + alpha**3)
    assert ([0.8], [2.5]) in [tuple(map(list, line.get_data())) for line in first.lines]
    of_c = {line.get_label(): line.get_data() for line in left.lines}
    for alpha, gamma in zip(*of_c["c 0.1"], strict=True):
        if (best := max(range(1, 21), key=lambda g: expected(alpha, g, 0.1, 1))) != gamma:
            assert gamma == 0 and expected(alpha, best, 0.1, 1) < 1
    assert ([0.8], [4]) in [tuple(map(list, line.get_data())) for line in left.lines]
    faster, operations = [line.get_data() for line in right.lines][2:4]
    for alpha, speedup, factor in zip(*faster, operations[1], strict=True):
        tokens = (1 - alpha**6) / (1 - alpha)
        assert speedup == pytest.approx(tokens / (5 * 0.05 + 1))
        assert factor == pytest.approx((5 * 0.05 + 6) / tokens)


LONG = [f"Sampling({'top_p=0.5, ' * 12}temperature={x})" for x in (0.5, 1.0)]


@pytest.mark.ci
@pytest.mark.parametrize("name", [*PIXELS, "draft_lengths"])
def test_no_text_of_a_figure_overlaps(runs, name):
    """The names of runs are long and near each other, and draft lengths go to 20."""
    matplotlib = pytest.importorskip("matplotlib")
    from crowding import crowded

    from specdec.report import figures

    named = {f"a_run_of_which_the_name_is_long_{i}": 0.5 + i / 50 for i in range(8)}
    several = runs(
        **{
            run: bench(gamma=2 + i % 2, alpha=alpha, ratio=2 + alpha, sampling=LONG[i // 4])
            for i, (run, alpha) in enumerate(named.items())
        }
    )
    draw = figures.draft_lengths if name == "draft_lengths" else getattr(figures, name)
    with matplotlib.rc_context(figures.STYLE):
        assert crowded(draw(several)) == []
