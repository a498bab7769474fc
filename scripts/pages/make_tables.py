"""Writes the tables of docs/ anew, each by the command that stands before it.

python scripts/pages/make_tables.py
"""

from __future__ import annotations

import contextlib
import glob
import io
import re
import shlex
from pathlib import Path

from specdec import cli

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("docs/log/performance-log.md", "docs/reference/gpu-tables.md")
REPORT = re.compile(r"(<!-- specdec (report .*?) -->\n)(.*?)(<!-- end of report -->)", re.S)


def printed(command: str) -> str:
    """What a specdec command prints; file names may have wildcards."""
    out = io.StringIO()
    found = (sorted(glob.glob(word, root_dir=ROOT)) for word in shlex.split(command))
    words = [each or [word] for each, word in zip(found, shlex.split(command), strict=True)]
    with contextlib.chdir(ROOT), contextlib.redirect_stdout(out):
        if cli.main([name for names in words for name in names]):
            raise SystemExit(f"specdec {command} failed")
    return out.getvalue()


def main() -> None:
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        made = REPORT.sub(lambda mark: f"{mark[1]}{printed(mark[2])}{mark[4]}", text)
        (ROOT / page).write_text(made, encoding="utf-8")


if __name__ == "__main__":
    main()
