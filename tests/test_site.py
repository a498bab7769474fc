"""The reference as static pages: pytest tests/test_site.py -m "ci or not ci" """

import subprocess
import sys
import time
from pathlib import Path

import chromium
import pytest

pytest.importorskip("pdoc")

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def make_site(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "pages"))
    import make_site

    return make_site


@pytest.mark.ci
def test_the_site_is_made_without_a_warning_or_a_broken_link(tmp_path):
    command = [
        sys.executable,
        str(ROOT / "scripts" / "pages" / "make_site.py"),
        str(tmp_path / "site"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {page.relative_to(tmp_path / "site").as_posix() for page in tmp_path.rglob("*.html")}
    assert {"index.html", "how-it-works.html", "formats.html"} <= pages
    assert {"specdec.html", "specdec/verifiers.html", "specdec/models/t5.html"} <= pages
    index = (tmp_path / "site" / "index.html").read_text()
    assert 'href="specdec/verifiers.html"' in index and 'href="docs/' not in index
    assert "autoregressive_decode" in (tmp_path / "site" / "specdec.html").read_text()


@pytest.mark.ci
def test_no_link_of_the_guide_is_broken(make_site, tmp_path):
    """Checks README and docs/ in the default suite; the modules' pages take longer to render."""
    make_site.write(tmp_path, [])
    assert list(make_site.broken_links(tmp_path)) == []


@pytest.mark.ci
@pytest.mark.skipif(chromium.path() is None, reason="there is no browser")
def test_no_page_of_the_guide_is_wider_than_a_telephone(make_site, tmp_path):
    make_site.write(tmp_path / "site", [])
    size = {"width": 400, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    with chromium.Chromium(tmp_path / "profile") as browser:
        browser.call("Emulation.setDeviceMetricsOverride", **size)
        for page in sorted((tmp_path / "site").glob("*.html")):
            browser.open(page.as_uri())
            assert browser.value("document.documentElement.scrollWidth") <= 400, page.name


def test_a_module_does_not_link_to_what_its_page_hides(make_site):
    shown = '<p id="Here"><a href="#Here">Here</a> '
    hidden = '<a href="#Here.hidden">hidden</a>'
    assert make_site.without_hidden(shown + hidden) == shown + "hidden"


@pytest.mark.parametrize(
    "link, whole",
    [
        ("other.html", True),
        ("other.html#there", True),
        ("#here", True),
        ("https://example.org/x", True),
        ("missing.html", False),
        ("other.html#gone", False),
        ("#gone", False),
    ],
)
def test_a_link_that_leads_nowhere_is_seen(make_site, tmp_path, link, whole):
    (tmp_path / "page.html").write_text(f'<a id="here" href="{link}">x</a>')
    (tmp_path / "other.html").write_text('<p id="there">')
    wrong = list(make_site.broken_links(tmp_path))
    assert wrong == ([] if whole else [f"page.html: {link} leads nowhere"])


@pytest.mark.ci
@pytest.mark.skipif(chromium.path() is None, reason="there is no browser")
def test_the_search_finds_a_page(make_site, tmp_path):
    make_site.write(tmp_path / "site", [])
    found = "[...document.querySelectorAll('.search-result a.attr')].map(x => x.textContent)"
    with chromium.Chromium(tmp_path / "profile") as browser:
        browser.open(f"{(tmp_path / 'site' / 'index.html').as_uri()}?search=penalties")
        end = time.monotonic() + 30
        while not (pages := browser.value(found)) and time.monotonic() < end:
            time.sleep(0.1)
    assert "use-penalties" in pages


def test_every_page_is_in_the_navigation(make_site):
    """A page outside the folders of the four kinds and the log would have no way to it."""
    kinds = make_site.navigation([])
    pages = [page.stem for page in make_site.PAGES if page.stem != "README"]
    assert sorted(stem for stems in kinds.values() for stem in stems) == sorted(pages)
