"""Makes the documentation as static pages: README, the pages of docs/, and every public module.

  pip install -e ".[docs]"
  python scripts/pages/make_site.py site

Fails on a warning and on a link that leads nowhere.
"""

from __future__ import annotations

import argparse
import html.parser
import pkgutil
import re
import shutil
import sys
import types
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pdoc
from flax import linen as nn
from pdoc import render

import specdec

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
PICTURES = ROOT / "docs" / "figures"
TEMPLATES = ROOT / "scripts" / "pages" / "site"
# For the terminal, where `specdec COMMAND --help` says more; and for T5X, see docs/how-to/t5x.md.
INNER = {"__main__", "cli", "integrations"}
DEEPER = ("specdec.models.t5", "specdec.models.contract.cache")
# The kinds of pages in the order of the navigation, each with its folder of docs/.
KINDS = {
    "Tutorials": "tutorials",
    "How-to": "how-to",
    "Reference": "reference",
    "Explanation": "explanation",
    "Log": "log",
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes the reference as static pages.")
    parser.add_argument("folder", type=Path, help="gets the pages")
    folder = parser.parse_args().folder
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Types that a module names for the type checker alone are shown as they are spelt.
        warnings.filterwarnings("ignore", "Error parsing type annotation")
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        write(folder, modules())
    if wrong := list(broken_links(folder)):
        sys.exit("\n".join(wrong))
    print(f"{folder / 'index.html'}: {len(list(folder.rglob('*.html')))} pages")


def write(folder: Path, names: Sequence[str]) -> None:
    """Renders the pages of the guide, and one for each module."""
    footer = f"specdec {specdec.__version__}"
    render.configure(docformat="google", footer_text=footer, template_directory=TEMPLATES)
    nn.Module.setup.__doc__ = "Names the parts."  # not of methods that no page of ours shows
    for name in specdec.__all__:  # also what is imported on use
        setattr(specdec, name, getattr(specdec, name))
    pages = {name: pdoc.doc.Module.from_name(name) for name in names}
    listed = reference(pages)
    pages |= {page.stem: pdoc.doc.Module(guide(page, listed)) for page in PAGES}
    render.env.globals["titles"] = {page.stem: title(page) for page in PAGES} | {
        x: x for x in names
    }
    render.env.globals["navigation"] = navigation(names)
    for name, module in pages.items():
        file = folder / f"{name.replace('.', '/')}.html"
        file.parent.mkdir(parents=True, exist_ok=True)
        text = render.html_module(module, pages)
        file.write_text(without_hidden(text) if name in names else text, encoding="utf-8")
    (folder / "search.js").write_text(render.search_index(pages), encoding="utf-8")
    shutil.copy(folder / "README.html", folder / "index.html")
    for pictures in (folder / "figures", folder / "docs" / "figures"):
        shutil.copytree(PICTURES, pictures, dirs_exist_ok=True)


def modules() -> list[str]:
    """The public modules, of which a package shows what its `__all__` has."""
    found = [f"specdec.{module.name}" for module in pkgutil.iter_modules(specdec.__path__)]
    inner = {f"specdec.{name}" for name in INNER}
    return ["specdec", *(name for name in found if name not in inner), *DEEPER]


def navigation(names: Sequence[str]) -> dict[str, list[str]]:
    """Returns the names of pages by kind, in the order in which README ends with their links.

    The pages of a folder such as explanation/methods/ follow explanation/methods.md.
    """
    readme = (ROOT / "README.md").read_text(encoding="utf-8")

    def place(page: Path) -> tuple[int, str]:
        own = page.parent.parent.name == "docs"
        found = readme.rfind(f"/{page.name if own else page.parent.name + '.md'})")
        return (len(readme) if found < 0 else found, "" if own else page.stem)

    found = {}
    for kind, folder in KINDS.items():
        pages = [page for page in PAGES if ROOT / "docs" / folder in page.parents]
        found[kind] = [page.stem for page in sorted(pages, key=place)]
    found["Project"] = ["CHANGELOG", "CONTRIBUTING"]
    return found | ({"Modules": [*names]} if names else {})


def title(page: Path) -> str:
    """Returns the first heading of a page, without marks."""
    first = page.read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("# ").replace("`", "")


def reference(pages: Mapping[str, pdoc.doc.Module]) -> str:
    """Returns the modules' pages as a list in Markdown, each with its first line."""
    lines = (
        f"- [`{name}`]({name.replace('.', '/')}.html): {module.docstring.splitlines()[0]}"
        for name, module in pages.items()
    )
    return "\n".join(("\n## Modules\n", *lines)) + "\n"


def guide(page: Path, listed: str) -> types.ModuleType:
    """Returns a document as the docstring of a module; README's ends with the list of modules."""
    module = types.ModuleType(page.stem)
    text = page.read_text(encoding="utf-8") + listed * (page.stem == "README")
    text = re.sub(r"\]\([\w./-]*?([\w-]+)\.md(#[\w-]*)?\)", r"](\1.html\2)", text)
    module.__doc__ = re.sub(r"\]\((?:\.\./|docs/)*(figures/)", r"](\1", text)
    module.__all__ = []
    return module


def without_hidden(text: str) -> str:
    """Returns a module's page without links to names that it does not show.

    pdoc links every name of a docstring that the class has, also one inherited from a class without
    a page.
    """
    shown = Links(text).names
    link = r'<a href="#([\w.-]+)">(.*?)</a>'
    return re.sub(link, lambda found: found[0] if found[1] in shown else found[2], text)


class Links(html.parser.HTMLParser):
    """Collects what a page links to, and the places in it that have names."""

    def __init__(self, text: str):
        super().__init__()
        self.links: list[str] = []
        self.names: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        for key, value in attrs:
            if key in ("href", "src") and value:
                self.links.append(value)
            if key in ("id", "name") and value:
                self.names.add(value)


def broken_links(folder: Path) -> Iterator[str]:
    """One line for each link to a file, or a place in one, that is not there."""
    found = {file.resolve(): Links(file.read_text("utf-8")) for file in folder.rglob("*.html")}
    for file, page in found.items():
        for link in sorted(set(page.links)):
            url = urlsplit(link)
            if url.scheme or url.netloc:
                continue
            to = (file.parent / unquote(url.path)).resolve() if url.path else file
            names = found[to].names if to in found else set()
            if not to.exists() or (url.fragment and unquote(url.fragment) not in names):
                yield f"{file.relative_to(folder.resolve())}: {link} leads nowhere"


if __name__ == "__main__":
    main()
