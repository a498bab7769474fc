"""Docstrings, messages and pages are plain sentences: pytest tests/test_prose.py

tests/prose_allowed.txt lists the places that break a rule, one "RULE PLACE" a line. A place may be
a pattern such as docs/*. The list only shrinks: an entry that nothing needs fails the test, and

  python tests/test_prose.py

removes such entries, and replaces each pattern by the places that still need it. It adds nothing.

  head      a docstring starts with a verb in the third person, or with the name of the thing
  phrase    a word or phrase of PHRASES stands in a docstring, a message or a page
  long      a sentence of a public docstring or of a page has more than 25 words
  coined    a noun of COINED stands there, and the table "Words" in the documentation lacks it
  sections  a public function lacks "Args:", or says nowhere what it returns
"""

from __future__ import annotations

import ast
import fnmatch
import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from specdec.common import schemas

ROOT = Path(__file__).resolve().parents[1]
ALLOWED = Path(__file__).parent / "prose_allowed.txt"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LIMIT = 25  # words of a sentence
FIGURES = 5  # a sentence with this many numbers is a list of figures, and is not measured

HEAD = re.compile(
    r"(As|Asked|At|Behind|Between|By|For|From|Given|Has|He|How|In|It|Its|Like|Likewise|Not|Of|On"
    r"|Over|See|Some(?:body|one|thing)|That|Their|Then|These|They|This|Those|Through|To|Told|Under"
    r"|What|Whatever|When|Where|Which|Who|Whoever|Whom|Whose|Why|With|Within|Without)\b|[\[(]"
)
PHRASES = re.compile(
    r"\b(so many|so much|by turns|likewise|beside|at once|(?:the )?other way (?:round|around)"
    r"|nobody|somebody|someone|anybody|everybody|whoever|whomever"
    r"|as (?:it is|they are)(?=[.,;:)]|$)|(?:is|are) worth|what (?:it|they|he) takes"
    r"|who (?:asks|drafts|knows|reads|refuses|says)|(?:is|are|was|were) told|(?-i:he|his))\b",
    re.IGNORECASE,
)
COINED = {
    "law": r"laws?",
    "opinion": r"opinions?",
    "pass": r"(?:a|the|each|every|this|one|two|first|second|its|same) pass(?:es)?",
    "taught": r"taught",
    "turn": r"(?:a|the|each|every|per|one|its) turns?|turns (?:of|are|is)",
    "exit": r"(?:an|the|each|every|early) exit(?! code)|exits(?! with)",
    "depth": r"depths?",
    "part": r"parts? of (?:a|the) plan|a part's",
}


class Doc(NamedTuple):
    """A docstring: the definition that has it, and whether a package's `__all__` has that."""

    place: str  # FILE::NAME, or FILE for that of a module
    node: ast.AST
    text: str
    public: bool


def definitions(tree: ast.AST, name: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Yields the definitions of a module, with their names after those of what holds them."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield f"{name}{node.name}", node
            yield from definitions(node, f"{name}{node.name}.")
        elif isinstance(node, ast.stmt | ast.excepthandler | ast.match_case):
            yield from definitions(node, name)


@functools.cache
def modules() -> dict[str, ast.Module]:
    """Returns the parsed modules by their path below the root."""
    files = sorted((ROOT / "specdec").rglob("*.py"))
    return {str(f.relative_to(ROOT)): ast.parse(f.read_text(encoding="utf-8")) for f in files}


def file_of(module: str) -> str:
    """Returns the file of a module or of a package."""
    path = module.replace(".", "/")
    return f"{path}.py" if f"{path}.py" in modules() else f"{path}/__init__.py"


def exported(file: str) -> list[str]:
    """Returns the names of a module's `__all__`."""
    for node in modules()[file].body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    return []


def home_of(file: str, name: str) -> str | None:
    """Returns FILE::NAME of what a module defines or imports; None for what is not ours."""
    for node in ast.walk(modules()[file]):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return f"{file}::{name}"
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("specdec"):
            for alias in node.names:
                if name == (alias.asname or alias.name):
                    return home_of(file_of(str(node.module)), alias.name)
    return None


@functools.cache
def public() -> frozenset[str]:
    """Returns FILE::NAME of every class and function of an `__all__`."""
    homes = (home_of(file, name) for file in modules() for name in exported(file))
    return frozenset(home for home in homes if home)


@functools.cache
def docs() -> list[Doc]:
    """Returns the docstrings of the package."""
    found = []
    for file, tree in modules().items():
        for name, node in [("", tree), *definitions(tree)]:
            if text := ast.get_docstring(node):  # type: ignore[arg-type]
                names = name.split(".")
                own = f"{file}::{names[0]}" in public() and not any(x[:1] == "_" for x in names)
                place = f"{file}::{name}" if name else file
                found.append(Doc(place, node, text, own and len(names) < 3))
    return found


@functools.cache
def messages(file: str) -> list[str]:
    """Returns the texts of several words in a module, but for docstrings."""
    found, firsts = [], set()
    for node in ast.walk(modules()[file]):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            firsts |= {one.value for one in node.body[:1] if isinstance(one, ast.Expr)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in firsts:
            found += [node.value] * (" " in node.value.strip())
    return found


def without_code(text: str) -> str:
    """Returns a text in which each span of code is the one word `x`."""
    return re.sub(r"``.*?``|`[^`]*`", "`x`", text, flags=re.S)


def page_prose(path: Path) -> str:
    """Returns a page's paragraphs: no code, tables, headings, comments, or addresses of links."""
    text = re.sub(r"^```.*?^```|<!--.*?-->", "\n", path.read_text("utf-8"), flags=re.M | re.S)
    text = text.split("\n## Words\n")[0] + text.partition("\n## Words\n")[2].partition("\n## ")[2]
    text = re.sub(r"^ *(\||#|!\[|\[!|<).*$", "", text, flags=re.M)
    return re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", without_code(text))


def doc_prose(doc: str) -> str:
    """Returns a docstring's paragraphs: no examples, headings of sections or indented blocks."""
    doc = re.sub(r"^ *>>>.*?(?:\n\s*\n|\Z)|^ *```.*?^ *```", "\n\n", doc, flags=re.M | re.S)
    section = False
    kept = []
    for line in doc.splitlines():
        section = bool(re.match(r"\w[\w ]*:$", line)) or (section and line[:1] in ("", " "))
        if re.match(r"\w[\w ]*:$", line):
            kept.append("")
        elif section:  # each argument is a paragraph of its own, without its name
            text, names = re.subn(r"^  \*{0,2}[\w.]+(?:, [\w.]+)*: ", "", line)
            kept += [""] * names + [text.strip()]
        else:
            kept.append("" if line.startswith("  ") else line)
    return without_code("\n".join(kept))


def sentences(text: str) -> Iterator[str]:
    """Yields the sentences of paragraphs, of which an item of a list is one."""
    for paragraph in re.split(r"\n\s*\n|\n(?= *(?:[-*+]|\d+\.) )", text):
        flat = " ".join(paragraph.split())
        flat = re.sub(r"\b(e\.g|i\.e|et al|vs|cf|Fig|Sec|App|Eq|No)\.", r"\1", flat)
        yield from re.split(r"(?<=[.!?])[\"')*_\]]*\s+(?=[^a-z])", flat)


def words(sentence: str) -> int:
    """Counts the words of a sentence; a list of figures has none."""
    found = [x for x in sentence.split() if re.search(r"[^\W_]", x)]
    numbers = sum(bool(re.fullmatch(r"\W*\d[\d.,]*\W*", x)) for x in found)
    return 0 if numbers >= FIGURES else len(found)


def long(text: str) -> bool:
    return any(words(sentence) > LIMIT for sentence in sentences(text))


@functools.cache
def glossary() -> str:
    """Returns the table of words, from whichever page has it."""
    tables = [page.read_text("utf-8").partition("\n## Words\n")[2] for page in PAGES]
    return "".join(table.partition("\n## ")[0] for table in tables)


def coined(text: str) -> bool:
    """Returns whether a text has a coined noun that the table of words does not explain."""
    missing = {x: rule for x, rule in COINED.items() if not re.search(rf"\| *{x}\b", glossary())}
    return any(re.search(rf"\b(?:{rule})\b", text, re.I) for rule in missing.values())


def lacks_sections(doc: Doc) -> bool:
    """Returns whether a public function does not describe its arguments or its result."""
    if not isinstance(doc.node, ast.FunctionDef) or doc.place not in public():
        return False
    arguments, returns = doc.node.args, doc.node.returns
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    if named and "Args:\n" not in doc.text:
        return True
    nothing = returns is None or ast.unparse(returns) in ("None", "NoReturn")
    return not nothing and not re.search(r"\A(Returns|Yields) |^(Returns|Yields):$", doc.text, re.M)


def broken() -> Iterator[tuple[str, str]]:
    """Yields the rule and the place of everything that breaks a rule."""
    for doc in docs():
        prose = doc_prose(doc.text)
        checks = {
            "head": bool(HEAD.match(doc.text)),
            "phrase": bool(PHRASES.search(without_code(doc.text))),
            "long": doc.public and long(prose),
            "coined": coined(prose),
            "sections": lacks_sections(doc),
        }
        yield from ((rule, doc.place) for rule, wrong in checks.items() if wrong)
    for file in modules():
        if any(PHRASES.search(text) for text in messages(file)):
            yield "phrase", f"{file}::messages"
    for page in PAGES:
        place, prose = str(page.relative_to(ROOT)), page_prose(page)
        if place.startswith("docs/log/"):
            continue
        yield from [("phrase", place)] * bool(PHRASES.search(prose))
        yield from [("coined", place)] * coined(prose)
        if not place.startswith("docs/reference/"):
            yield from [("long", place)] * long(prose)


def allowed() -> list[tuple[str, str]]:
    """Returns the entries of the list: rules and places."""
    lines = ALLOWED.read_text("utf-8").splitlines()
    return [(rule, place) for rule, _, place in (line.partition(" ") for line in lines)]


def covers(entry: tuple[str, str], found: tuple[str, str]) -> bool:
    return entry[0] == found[0] and fnmatch.fnmatchcase(found[1], entry[1])


@functools.cache
def found() -> frozenset[tuple[str, str]]:
    return frozenset(broken())


@pytest.mark.parametrize("rule", ["head", "phrase", "long", "coined", "sections"])
def test_prose_is_plain(rule):
    entries = [entry for entry in allowed() if entry[0] == rule]
    new = [x for x in found() if x[0] == rule and not any(covers(entry, x) for entry in entries)]
    assert sorted(place for _, place in new) == []


def test_no_entry_is_left_that_nothing_needs():
    unneeded = [entry for entry in allowed() if not any(covers(entry, x) for x in found())]
    assert unneeded == []  # `python tests/test_prose.py` removes them


@pytest.mark.parametrize(
    "text, wrong",
    [
        ("Of the first token.", "head"),
        ("[B] the lengths.", "head"),
        ("Returns so many tokens.", "phrase"),
        ("Returns the row as it is.", "phrase"),
        ("Returns the row as it is stored.", None),
        ("Returns the opinion of a drafter.", "coined"),
        (f"Returns {'one ' * 25}token.", "long"),
        (f"Returns `{'one ' * 25}` tokens.", None),
        (f"Returns {'one ' * 15}. Then {'two ' * 15}.", None),
        (f"Returns.\n\nArgs:\n  a: {'one ' * 15}\n  b: {'one ' * 15}", None),
        (f"Returns.\n\n  {'one ' * 30}\n", None),
        (f"Returns {'1, ' * 30} ms.", None),
    ],
)
def test_the_rules_see_what_they_are_for(text, wrong):
    seen = {
        "head": bool(HEAD.match(text)),
        "phrase": bool(PHRASES.search(without_code(text))),
        "long": long(doc_prose(text)),
        "coined": coined(text),
    }
    assert [rule for rule, is_seen in seen.items() if is_seen] == [wrong] * (wrong is not None)


RETIRED = re.compile(
    r"\b(forecasts?|foretold|foretells?|promis(?:es?|ed)|calc|block efficiency|tau)\b", re.I
)
# A command, its flag and its file of texts have the word in their names.
NAMES = re.compile(r"specdec forecast|--forecast_split")


def retired(text: str) -> list[str]:
    """Returns the retired words of a text in their places."""
    text = NAMES.sub("", text)
    return [text[max(0, x.start() - 40) : x.end() + 20] for x in RETIRED.finditer(text)]


def names_of(page: Path) -> tuple[str, str]:
    """Returns a page without code, comments, addresses of links and the table of the names, and
    that table."""
    text, _, after = page.read_text("utf-8").partition("\n## Words\n")
    table, _, rest = after.partition("\n## ")
    text = re.sub(r"^```.*?^```|<!--.*?-->", "", text + rest, flags=re.M | re.S)
    return re.sub(r"`[^`\n]*`|\]\([^)]*\)", "", text), table


def test_a_quantity_has_one_name_in_what_users_read():
    """docs/reference/words.md has the names. Code keeps the fields of files, such as `tau`."""
    texts = {page.stem: names_of(page)[0] for page in [*PAGES, ROOT / "CONTRIBUTING.md"]}
    texts |= {file: " ".join(messages(file)) for file in modules()}
    for command in schemas.KINDS:
        schema = json.dumps(schemas.schema(command))
        texts[command] = " ".join(re.findall(r'"description": "((?:[^"\\]|\\.)*)"', schema))
    assert {place: found for place, text in texts.items() if (found := retired(text))} == {}
    assert all(texts[command] for command in schemas.KINDS)
    _, table = names_of(ROOT / "docs" / "reference" / "words.md")
    for name in ("tokens per call", "predicted", "block efficiency, tau", "`forecast` in files"):
        assert name in table


def shrink() -> None:
    """Rewrites the list without what is not needed; patterns become the places that need them."""
    kept = {x for x in found() if any(covers(entry, x) for entry in allowed())}
    text = "".join(f"{rule} {place}\n" for rule, place in sorted(kept))
    print(f"{len(allowed())} entries before, {len(kept)} after")
    ALLOWED.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    shrink()
