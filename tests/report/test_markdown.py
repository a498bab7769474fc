"""Names and texts in Markdown pages are only text: pytest tests/report/test_markdown.py"""

import json
from pathlib import Path

import pytest

from specdec import cli
from specdec.common import notebook
from specdec.common.tables import PageTable, row
from specdec.report.replicate.page import Page

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results" / "amd_epyc_avx512_2_cores"
BAD = "<script>alert(1)</script> ![x](http://there/x.png) a|b\n\n# Another"
SHOWN = r"&lt;script&gt;alert(1)&lt;/script&gt; ![x]\(http://there/x.png) a|b  # Another"


def worse(value, name=""):
    """Returns JSON whose texts are bad; those that the page looks up stay."""
    if isinstance(value, dict):
        return {key: worse(one, key) for key, one in value.items()}
    if isinstance(value, list):
        return [worse(one, name) for one in value]
    return f"{value} {BAD}" if isinstance(value, str) and name != "kind" else value


def test_a_text_is_shown_as_it_is():
    assert notebook.markdown(BAD) == SHOWN
    assert notebook.markdown("**2.64** [2.50, 2.80]") == "**2.64** [2.50, 2.80]"


@pytest.mark.parametrize("flag", [(), ("--headline",)])
def test_a_report_of_summaries(tmp_path, flag):
    for name in ("ende_t0.jsonl", "ende_t0.alpha.jsonl"):
        if (found := RESULTS / f"{name}.summary.json").exists():
            text = json.dumps(worse(json.loads(found.read_text())))
            (tmp_path / f"<b>.{name}.summary.json").write_text(text)
    files = [str(path) for path in tmp_path.iterdir()]
    assert cli.main(["report", *files, *flag, f"--output_file={tmp_path / 'page.md'}"]) == 0
    page = (tmp_path / "page.md").read_text()
    assert "&lt;script&gt;" in page and "&lt;b&gt;" in page
    assert "<script" not in page and "<b>" not in page and "](http" not in page
    assert "# Another" not in [line.strip() for line in page.splitlines()]


def test_a_page_of_a_study():
    one = PageTable(BAD, ("name", BAD), [[BAD, BAD]], BAD)
    page = Page(BAD, BAD, {BAD: [BAD]}, [one], [BAD], {BAD: "rows.png"}, {"row": ["a\n```\n<b>"]})
    written = "\n\n".join(page.markdown())
    before, commands = written.split("````bash\n")
    assert commands == "a\n```\n<b>\n````"
    assert before.count("&lt;script&gt;") == 11
    assert "<" not in before and "](http" not in before and "\n# Another" not in before


def test_a_row_of_a_compiled_program():
    escaped = SHOWN.replace("|", r"\|")
    assert row("v4", BAD) == f"| v4 | {escaped} |"
