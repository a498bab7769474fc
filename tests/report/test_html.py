"""`specdec report --html` on hand-made runs and generations: pytest tests/report/test_html.py"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import chromium
import pytest
from test_figures import bench

from specdec import cli, report
from specdec.report import run_tables
from specdec.report.summaries import ReportedRun

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results" / "amd_epyc_avx512_2_cores"
SUMMARIES = [str(RESULTS / f"{name}.jsonl.summary.json") for name in ("ende_t0", "ende_t1")]
HOSTILE = (
    "</script><script>window.hit = 1</script>",
    "<img src=http://127.0.0.1:9/x onerror='window.hit = 1'>",
    "\"' onfocus=window.hit=1 autofocus x='",
    "{{ 7 * 7 }}",
    "turned \u202egnp.\u2066 \x1b[31m \ud800 around",
)


def line(index: int, *, text: str = " word", hostile: str | None = None, **changes) -> dict:
    """A generation of three calls: 1 of 2 accepted and corrected, all of 2, and an end inside."""
    text = hostile or text
    explained = {
        "plan": hostile or "Autoregressive, Sampling(temperature=1.0, top_k=None)",
        "given": 0,
        "stop_ids": [1],
        "batch": {"seconds": 0.03, "rows": 1, "calls": 3},
        "token_texts": ["A", text, text, "B", "C", "D", ""],
        "proposed": [[11, 19], [13, 14], [16, 1]],
        "proposed_texts": [["A", "wrong"], [text, "B"], ["D", ""]],
        "p": [[0.5, 0.125], [0.75, 0.5], [0.25, 1.0]],
        "q": [[0.25, 0.5], [1.0, None], [0.5, 1.0]],
        "softmax": [[0.5, 0.125], [0.75, 0.5], [0.25, 1.0]],
        "own_p": [0.625, 0.875, None],
        "own_q": [0.375, None, None],
    }
    record = {
        "index": index,
        "sample": 0,
        "input": hostile or "in",
        "target": hostile,
        "prediction": hostile or "out",
        "tokens": [11, 12, 13, 14, 15, 16, 1],
        "drafted": [2, 2, 2],
        "accepted": [1, 2, 2],
        "explained": explained,
    }
    return record | changes


@pytest.fixture
def make(tmp_path):
    """The path of a page, with generations if lines are given."""

    def make(*arguments: str, lines=()) -> Path:
        pytest.importorskip("jinja2")
        pytest.importorskip("matplotlib")
        page, file = tmp_path / "page.html", tmp_path / "out.jsonl"
        if lines:
            file.write_text("".join(f"{json.dumps(one)}\n" for one in lines))
            arguments = (*arguments, f"--generations={file}")
        assert cli.main(["report", f"--html={page}", *arguments]) == 0
        return page

    return make


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if chromium.path() is None:
        pytest.skip(f"there is no {' or '.join(chromium.NAMES)} here")
    with chromium.Chromium(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


def test_the_page_in_a_browser(make, browser):
    """What the summaries say stands in the table; nothing is asked of anybody else."""
    page = make(*SUMMARIES, lines=[line(0), line(1), line(2)])
    browser.open(page.as_uri())
    cells = browser.value(
        "[...document.querySelectorAll('#tables table tbody tr')]"
        ".map(row => [...row.cells].map(cell => cell.innerText.trim()))"
    )
    summaries = [json.loads(Path(path).read_text()) for path in SUMMARIES]
    for row, name, summary in zip(cells, ("ende_t0", "ende_t1"), summaries, strict=True):
        speedup = summary["speedup"]
        shown = "{ratio:.2f} ({low:.2f} to {high:.2f})".format(**speedup)
        assert (row[0], row[3], row[7]) == (name, shown, f"{summary['tau']:.2f}")
    svgs = "document.querySelectorAll('figure svg').length"
    named = "document.querySelectorAll('[role=img][aria-label][aria-describedby]').length"
    assert browser.value(svgs) == browser.value(named) == 5
    ids = browser.value("[...document.querySelectorAll('[id]')].map(one => one.id)")
    assert len(ids) == len(set(ids))
    words = browser.value("document.querySelector('#predicted_and_measured-in-words').textContent")
    assert f"measured {summaries[0]['speedup']['ratio']:.2f} (" in words
    assert browser.problems() == [] and browser.requests() == [page.as_uri()]


SELECTED = "[...document.querySelectorAll('[aria-selected=true]')].filter(x => x.offsetParent)"


def state(browser) -> tuple[str, str, str, bool]:
    """The text and the call that are shown, what has the focus, and whether one can see that."""
    text, call = browser.value(f"{SELECTED}.map(one => one.hash)")
    shown = "[...document.querySelectorAll('section.text, .panel')].filter(x => x.offsetParent)"
    assert browser.value(f"{shown}.map(one => '#' + one.id)") == [text, call]
    focus = browser.value("document.activeElement.hash")
    outlined = browser.value("getComputedStyle(document.activeElement).outlineStyle != 'none'")
    return text, call, focus, outlined


def test_arrow_keys_go_from_call_to_call_and_from_text_to_text(make, browser):
    browser.open(make(lines=[line(0), line(1)]).as_uri())
    browser.press("Tab")
    first = "#text-1-call-1"
    assert state(browser) == ("#text-1", first, "#text-1", True)
    browser.press("ArrowDown")
    assert state(browser) == ("#text-2", "#text-2-call-1", "#text-2", True)
    browser.press("ArrowDown")  # there is no third text
    browser.press("ArrowUp")
    assert state(browser) == ("#text-1", first, "#text-1", True)
    browser.press("Tab")
    assert state(browser) == ("#text-1", first, first, True)
    browser.press("ArrowRight")
    assert state(browser) == ("#text-1", "#text-1-call-2", "#text-1-call-2", True)
    browser.press("End")
    browser.press("ArrowRight")
    assert state(browser) == ("#text-1", "#text-1-call-3", "#text-1-call-3", True)
    browser.press("ArrowLeft")
    browser.press("ArrowDown")
    assert state(browser) == ("#text-2", "#text-2-call-1", "#text-2-call-1", True)
    assert browser.problems() == []


def test_roles_and_names_are_those_of_tabs(make, browser):
    browser.open(make(lines=[line(0)]).as_uri())
    nodes = browser.call("Accessibility.getFullAXTree")["nodes"]
    names = ((one["role"]["value"], one.get("name", {}).get("value", "")) for one in nodes)
    found = {(role, " ".join(name.split())) for role, name in names}
    assert {
        ("tablist", "Texts"),
        ("tablist", "output, by target call"),
        ("tab", "Call 1, gamma 2: 1 of 2 accepted, then the target's correction: A word"),
        ("tab", "Call 3, gamma 2: 2 of 2 accepted, the text's end: D⟨end⟩"),
        ("tabpanel", "Text 0"),
        ("columnheader", "q, drafter"),
        ("rowheader", "wrong"),
        ("cell", "rejected"),
    } <= found


def test_a_narrow_window_scrolls_in_one_direction(make, browser):
    page = make(lines=[line(i, text=" long" * 9) for i in range(9)])
    size = {"width": 360, "height": 640, "deviceScaleFactor": 1, "mobile": False}
    browser.call("Emulation.setDeviceMetricsOverride", **size)
    browser.open(page.as_uri())
    widths = "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    content, window = browser.value(widths)
    browser.call("Emulation.clearDeviceMetricsOverride")
    assert content == window <= 360


@pytest.fixture
def dated(tmp_path):
    """The summary of a run today, with a long name, and a schedule of 100 characters."""
    summary = json.loads(Path(SUMMARIES[0]).read_text(encoding="utf-8"))
    summary["environment"]["date"] = "2026-11-26"
    long = {"schedule": f"Heuristic(buckets={tuple(range(1, 31))})", "gamma": None}
    summary["run"] |= long
    summary["prediction"] = None
    assert len(summary["run"]["schedule"]) > 100
    path = tmp_path / f"{'a_name_of_a_run_' * 6}.jsonl.summary.json"
    path.write_text(json.dumps(summary))
    return str(path)


def test_the_page_begins_with_the_result(make, dated, capsys):
    """For several runs it has each speed-up, and what they do not share is left to the table."""
    page = (path := make(dated)).read_text(encoding="utf-8")
    assert capsys.readouterr() == ("", f"wrote {path}\n")
    assert "<h1>2.64 times as fast as the target alone</h1>" in page
    facts = dict(re.findall(r"<dt>(.*?)</dt><dd><bdi>(.*?)</bdi></dd>", page.split("<nav")[0]))
    assert facts.pop("drafts").startswith("Autoregressive, Heuristic(buckets=(1, 2, ")
    assert facts == {
        "95 % interval": "2.50 to 2.80",
        "identical outputs": "100 of 100",
        "models": "target 16.8M float32 and draft 0.7M float32",
        "sampling": "Greedy()",
        "machine": "2 cores of AMD EPYC (avx512f), jax 0.10.2",
        "texts": "50 texts of test",
        "date": "2026-11-26",
    }
    both = make(*SUMMARIES).read_text(encoding="utf-8")
    assert "<h1>2.64 and 2.33 times as fast as the target alone: two runs</h1>" in both
    assert "<dt>95 % interval</dt>" not in both and "<dt>date</dt>" not in both


def test_a_fact_has_three_values_at_most():
    runs = [ReportedRun(name, bench(sampling=f"Sampling({name})")) for name in "abcd"]
    assert run_tables.facts(runs[:3])["sampling"] == ["Sampling(a)", "Sampling(b)", "Sampling(c)"]
    assert "sampling" not in run_tables.facts(runs)


@pytest.mark.parametrize("width", [400, 800, 1400])
def test_no_table_is_wider_than_the_window(make, browser, dated, width):
    """Names and schedules may be long; on a narrow window each run is a card."""
    page = make(dated, SUMMARIES[1])
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    browser.call("Emulation.setDeviceMetricsOverride", **size)
    browser.open(page.as_uri())
    script = "[...document.querySelectorAll('.runs th, .runs td')]"
    edges = browser.value(f"{script}.map(cell => cell.getBoundingClientRect().right)")
    first = browser.value("document.querySelector('.runs .first').getBoundingClientRect().top")
    how = browser.value("document.querySelector('.runs td').getBoundingClientRect().top")
    content = browser.value("document.documentElement.scrollWidth")
    browser.call("Emulation.clearDeviceMetricsOverride")
    assert max(edges) <= content <= width
    assert first < how if width < 960 else first == how


def test_text_has_contrast_in_both_themes():
    """Every colour of text has a contrast of 4.5 or more with what it is written on."""
    css = (Path(report.__file__).parent / "page" / "page.css").read_text(encoding="utf-8")
    light, dark = (
        dict(re.findall(r"--([\w-]+): (#\w{6});", x)) for x in css.split("@media", 2)[:2]
    )
    tinted = ("accepted", "rejected", "own")
    for theme in (light, dark):
        grounds = {name: ["paper", "raised"] for name in ("ink", "muted", "blue", *tinted)}
        for name in tinted:
            grounds[name].append(f"{name}-tint")
        for name, under in grounds.items():
            for ground in under:
                assert contrast(theme[name], theme[ground]) >= 4.5, (name, ground)


def contrast(one: str, other: str) -> float:
    """Returns the contrast of two colours as WCAG defines it."""
    bright, dim = sorted(map(luminance, (one, other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def luminance(colour: str) -> float:
    shares = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in shares]
    return sum(x * weight for x, weight in zip(linear, (0.2126, 0.7152, 0.0722), strict=True))


def test_what_is_untrusted_is_text(make, browser):
    """Markup, quotes, templates and characters that turn or drive text are shown, not obeyed."""
    page = make(lines=[line(i, hostile=hostile) for i, hostile in enumerate(HOSTILE)])
    browser.open(page.as_uri())
    assert browser.value("window.hit") is None and browser.value("document.images.length") == 0
    assert browser.value("document.scripts.length") == 1
    shown = browser.value("[...document.querySelectorAll('p.input bdi')].map(x => x.textContent)")
    assert shown[::2][:4] == list(HOSTILE[:4])
    assert shown[-1] == "turned ⟨U+202E⟩gnp.⟨U+2066⟩ ⟨U+001B⟩[31m ⟨U+D800⟩ around"
    assert browser.problems() == [] and browser.requests() == [page.as_uri()]


def test_no_script_runs_but_the_pages_own(make, browser):
    """The second line of defence: what slipped in would be refused."""
    page = make(lines=[line(0)])
    smuggled = "<script>window.hit = 1</script><img src='http://127.0.0.1:9/x'>"
    page.write_text(page.read_text(encoding="utf-8").replace("</main>", f"{smuggled}</main>"))
    browser.open(page.as_uri())
    assert browser.value("window.hit") is None
    assert any("Content Security Policy" in json.dumps(one) for one in browser.problems())
    assert browser.value("document.querySelectorAll('[role=tab]').length") == 4


def test_names_of_runs_are_text_in_tables_and_figures(make, tmp_path):
    name = "<script>hit()"
    for suffix in ("", ".summary.json"):
        hostile = tmp_path / f"{name}.jsonl{suffix}"
        hostile.write_text((RESULTS / f"ende_t0.jsonl{suffix}").read_text())
    page = make(str(hostile)).read_text(encoding="utf-8")
    assert page.count("<script>") == 1 and page.count("&lt;script&gt;hit()") > 3


def test_texts_without_probabilities(make):
    """Of `specdec decode` as ever and of `specdec bench`, whose other lines are passed over."""
    plain = line(4)
    del plain["explained"]
    bench = {"mode": "speculative", "text": 5, "repeat": 1, "seconds": 0.25, "calls": 1}
    bench |= {"tokens": [30, 31], "drafted": [3], "accepted": [1]}
    others = [
        {**bench, "mode": "alone"},
        {"part": "target 8", "text": 5, "repeat": 0, "seconds": 0.1, "steps": 1},
    ]
    page = make(lines=[plain, bench, *others]).read_text(encoding="utf-8")
    names = re.findall(r"<h3>(.*)</h3>", page)
    assert names == ["Text 4", "Text 5, repeat 1"]
    assert page.count("No probabilities were recorded") == 2 and "p, target" not in page
    assert "#30" in page and "250.0 ms" in page


def test_another_temperature_and_a_drafter_without_q(make):
    one = line(0)
    one["explained"] |= {"softmax": [[0.4, 0.1], [0.7, 0.4], [0.2, 0.9]], "q": [[None] * 2] * 3}
    page = make(lines=[one]).read_text(encoding="utf-8")
    assert "target at temperature 1" in page and "0.7000" in page
    assert "There is no q" in page
    assert "target at temperature 1" not in make(lines=[line(0)]).read_text(encoding="utf-8")


def test_so_many_texts_and_no_more(make, monkeypatch):
    html = pytest.importorskip("specdec.report.html")
    monkeypatch.setattr(html, "TEXTS", 2)
    page = make(lines=[line(i) for i in range(5)]).read_text(encoding="utf-8")
    assert (
        page.count('<section class="text"') == 2
        and "The first 2 texts; 3 more are left out." in page
    )


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--generations=x"], "--generations are shown in a page; give --html=FILE as well"),
        (["--html={}", "--headline", "x"], "--html has tables and figures in it; leave --out"),
        (["--html={}", "--generations={}/no"], "/no cannot be read: No such file or directory"),
        (["--html={}", "--generations={}/tsv"], "tsv, line 1, is not JSON"),
        (["--html={}", "--generations={}/json"], "json has no generations; give what `specdec"),
        (["--html={}", "--generations={}/short"], "short has no generations; give what `specdec"),
        (["--html={}", "--generations={}/good"], "cannot be written: Is a directory; give an"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(tmp_path, capsys, arguments, message):
    pytest.importorskip("jinja2")
    short = {**line(0), "tokens": None}
    for name, one in {"json": {"a": 1}, "short": short, "good": line(0)}.items():
        (tmp_path / name).write_text(f"{json.dumps(one)}\n")
    (tmp_path / "tsv").write_text("a\tb\n")
    assert cli.main(["report", *(one.replace("{}", str(tmp_path)) for one in arguments)]) == 2
    captured = capsys.readouterr()
    assert message in captured.err and captured.err.count("\n") == 1 and not captured.out


def test_without_jinja2(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    monkeypatch.delitem(sys.modules, "specdec.report.html", raising=False)
    monkeypatch.delattr(report, "html", raising=False)
    assert cli.main(["report", f"--html={tmp_path / 'page.html'}", SUMMARIES[0]]) == 2
    captured = capsys.readouterr()
    assert "--html needs jinja2 and matplotlib; pip install jinja2 matplotlib\n" in captured.err
    assert captured.err.count("\n") == 1 and not captured.out
