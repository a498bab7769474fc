"""Compares docs/reference/first-hour.md with a user's first hour in an environment of its own.

Each row of the page is a command that once failed. It runs here on the embedded pair, as folders of
transformers, and the row has the line that it prints. Prints the rows, and ends with 1 if the page
has others: python scripts/checks/first_hour.py
"""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from specdec.common import demo

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference" / "first-hour.md"
TOKENIZER = ROOT / "tests" / "golden" / "tokenizer" / "tokenizer.json"
ABSENT = ("seqio", "tensorflow", "tensorflow_datasets", "tensorflow_text", "t5", "t5x", "clu")
SIZE = 2048  # of the embedded pair's vocabulary
PREFIX = "translate English to German: "
SENTENCES = {"The cat sleeps.": "Die Katze schläft.", "The students sing.": "Die Studenten singen."}
PAIR = "--target=my-t5 --draft=my-draft"
TEXT = f"--text='{PREFIX}The cat sleeps.'"
LOCAL = (
    "--gin_file=decode.gin --gin_file=models/from_checkpoint.gin --gin_file=tasks/local.gin "
    "--gin.CHECKPOINT_PATH=\"'my-t5'\" --gin.TASK_FILES=\"{'test': 'pairs.tsv'}\" "
    "--gin.TASK_FEATURE_LENGTHS=\"{'inputs': 64, 'targets': 64}\""
)


class User:
    """A folder to work in and an environment without the extra seqio, in which specdec was
    installed once."""

    def __init__(self, folder: Path):
        self.folder, self.bin = folder, folder.parent / "environment" / "bin"
        kept = {name: x for name, x in os.environ.items() if name != "PYTHONPATH"}
        kept |= {"XDG_CACHE_HOME": str(folder.parent / "cache"), "COLUMNS": "100"}
        self.environment = kept | {"PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}"}
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "venv", self.bin.parent], check=True)
        self.run(f"pip install -q '{ROOT}'", code=0)
        self.install_seconds = time.perf_counter() - start

    def run(self, command: str, code: int | None = None) -> str:
        """Returns what a command prints, stdout first."""
        done = subprocess.run(
            command,
            shell=True,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=self.environment,
        )
        assert code is None or done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr, done.stderr
        return done.stdout + done.stderr

    def on_terminal(self, command: str, interrupt: str | None = None) -> tuple[float, str]:
        """Returns the seconds until a terminal shows something, and what is on it at the end.

        interrupt: pattern at which Ctrl-C is pressed.
        """
        start, first, shown = time.perf_counter(), 0.0, ""
        child, terminal = pty.fork()
        if child == 0:
            os.chdir(self.folder)
            os.execvpe("sh", ["sh", "-c", f"exec {command}"], self.environment)
        while data := _read(terminal):
            first = first or time.perf_counter() - start
            shown += data
            if interrupt and re.search(interrupt, shown):
                os.write(terminal, b"\x03")
                interrupt = None
        os.waitpid(child, 0)
        os.close(terminal)
        return first, _screen(shown)


def _read(terminal: int) -> str:
    try:
        return os.read(terminal, 65_536).decode(errors="replace")
    except OSError:  # the other side is closed
        return ""


def _screen(shown: str) -> str:
    """Returns the lines of a terminal: what a carriage return lets be written over is gone."""
    lines = []
    for line in re.sub(r"\x1b\[[\d;]*m", "", shown).replace("\r\n", "\n").split("\n"):
        found = ""
        for part in line.split("\r"):
            cleared, _, rest = part.rpartition("\x1b[K")
            found = rest if "\x1b[K" in part else part + found[len(part) :]
        lines.append(found)
    return "\n".join(lines)


class Row(NamedTuple):
    """A command of the page, what it used to print, and the pattern of the line to show."""

    command: str
    used: str
    shows: str
    now: Callable[[User, str], str] | None = None


def install(user: User, _: str) -> str:
    files = [x for x in user.bin.parent.rglob("*") if x.is_file() and not x.is_symlink()]
    packages = {x.name for x in (user.bin.parent / "lib").glob("python*/site-packages/*")}
    megabytes = sum(x.stat().st_size for x in files) / 1e6
    print(f"\n{megabytes:.0f} MB, installed in {user.install_seconds:.0f} s")
    assert megabytes < 1000 and not packages & set(ABSENT)
    return "less than 1 GB, without TensorFlow"


def quick_start(user: User, command: str) -> str:
    """README's first commands; the second run finds the compiled programs."""
    for _ in range(2):
        first, shown = user.on_terminal(command)
        assert first < 5 and not re.search(r"specdec: (starting|reading|compiling)", shown)
        assert shown.count("Drei Bäcker müssen") == 2, shown
    return f"in its first 5 s: specdec: starting ...; at the end: {_line(shown, 'identical')}"


def measured(user: User, command: str) -> str:
    shown = user.run(command, code=0)
    assert not re.search(r"(^|\s)-\d", shown), "a negative time"
    return _line(shown, "as fast as the target alone")


def interrupted(user: User, command: str) -> str:
    _, shown = user.on_terminal(command, interrupt=r"checking greedy \.\.\.\r?\n")
    said = _line(shown, "to go on")
    again = user.run(command, code=1)
    assert "checking algebra" not in again and "checking greedy" in again
    return f"{said}; then: {_line(again, 'NOT ENOUGH TEXTS')}"


def has_no_prefix(user: User, command: str) -> str:
    return _line(user.run(command, code=0), "names prefixes")


def in_python(user: User, command: str) -> str:
    return _line(user.run(command, code=0), "as fast")


ROWS = (
    Row("pip install .", "3.3 GB, with TensorFlow", "", install),
    Row(
        "specdec decode --gin_file=demo.gin --compare",
        "an empty screen for 13 s; then a bar in the line that the first text began in",
        "",
        quick_start,
    ),
    Row("specdec decode --gin_file=demo.gin --limit=1", "1 texts, 29 tokens, 7 target calls", "1 "),
    Row(
        f"specdec decode {PAIR} --input_file=inputs.txt",
        "specdec decode has no flag --input_file; did you mean --gin_file?",
        "2 texts",
    ),
    Row(
        f"specdec decode {PAIR} {TEXT} --batch_size=2",
        "specdec decode has no flag --batch_size; see specdec decode --help",
        "1 text",
    ),
    Row(
        f"specdec bench {PAIR} --input_file=inputs.txt --repeats=2",
        "specdec bench has no flag --target; see specdec bench --help. At a load of 13 a time was "
        "negative",
        "",
        measured,
    ),
    Row(
        f"specdec acceptance {PAIR} --input_file=inputs.txt --tokens=10",
        "inputs.txt, line 1: 1 TAB-separated columns, not 2 (inputs, targets); write one example "
        "per line",
        "tokens of",
    ),
    Row(
        f"specdec eval {PAIR} --input_file=inputs.txt --output_dir=outputs",
        "specdec eval has no flag --target; see specdec eval --help",
        "references",
    ),
    Row(
        "specdec bench --gin_file=demo.gin --num_samples=8",
        "specdec bench has no flag --num_samples; see specdec bench --help",
        "use --gin",
    ),
    Row(
        f"specdec decode {PAIR} {TEXT} --num_beams=4",
        "specdec decode has no flag --num_beams; did you mean --num_samples?",
        "4 beams",
    ),
    Row(
        "specdec list formats",
        "argument KIND: invalid choice: 'formats'",
        "huggingface  ",
    ),
    Row(
        f"specdec decode {LOCAL} --gin.VOCABULARY=None",
        "TASK: vocabulary of task 'local' is None; give SentencePiece(path), TokenizerJson(path) "
        "or Bytes()",
        "2 texts",
    ),
    Row(
        "specdec decode --target=with-prefixes --text='The cat sleeps.'",
        "nothing; the text was decoded without the prefix",
        "",
        has_no_prefix,
    ),
    Row(
        "specdec decode --target=my-t5 --input_file=long.txt",
        "text 1 is 1006 tokens long but inputs hold 512; raise 'inputs' in the feature lengths, or "
        "shorten the text",
        "give --gin",
    ),
    Row(
        f"specdec verify {PAIR} --input_file=inputs.txt --max_length=8",
        "interrupted; if repeated, the command starts over",
        "",
        interrupted,
    ),
    Row(
        "specdec distill --target=tokenizer-alone --inputs=many.txt --max_length=8",
        "specdec distill has no flag --target; its gin files took a SentencePiece model alone",
        "checks passed",
    ),
    Row(
        "specdec tune --target=my-draft --draft=my-t5 --input_file=many.txt --output_dir=tuned "
        "--tokens=300 --longest=2 --max_length=8",
        "a tuned.gin that drafts, although the target alone is faster",
        "^DRAFTER",
    ),
    Row(
        "python -c \"import specdec; model = specdec.InteractiveModel('my-t5', 'my-draft'); "
        f"print(model.bench(['{PREFIX}The cat sleeps.']))\"",
        "AttributeError: 'InteractiveModel' object has no attribute 'bench'",
        "",
        in_python,
    ),
)


def user_in(folder: Path) -> User:
    """A user's environment and files: folders as transformers saves them, texts, and references."""
    folder.mkdir()
    user = User(folder)
    for ours, name in (("target", "my-t5"), ("draft", "my-draft")):
        user.run(f"specdec convert {demo.path(ours)} {name} --format=huggingface", code=0)
    for name, of in (("tokenizer-alone", "my-draft"), ("with-prefixes", "my-t5")):
        shutil.copytree(folder / of, folder / name)
    (folder / "tokenizer-alone" / "spiece.model").unlink()
    tokenizer = json.loads(TOKENIZER.read_text())
    tokenizer["added_tokens"] = [x for x in tokenizer["added_tokens"] if x["id"] < SIZE]
    del tokenizer["model"]["vocab"][SIZE:]  # the sentinels
    (folder / "tokenizer-alone" / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = json.loads((folder / "with-prefixes" / "config.json").read_text())
    config["task_specific_params"] = {"translation_en_to_de": {"prefix": PREFIX}}
    (folder / "with-prefixes" / "config.json").write_text(json.dumps(config))
    pairs = [f"{PREFIX}{text}\t{reference}\n" for text, reference in SENTENCES.items()]
    (folder / "pairs.tsv").write_text("".join(pairs))
    (folder / "inputs.txt").write_text("".join(f"{PREFIX}{text}\n" for text in SENTENCES))
    (folder / "long.txt").write_text(f"{PREFIX}{'the cat sleeps and ' * 200}\n")
    nouns, verbs = "cat dog cook baker gardener".split(), "sleeps sings reads eats".split()
    many = [f"{PREFIX}The {x} and the {y} {z}.\n" for x in nouns for y in nouns for z in verbs]
    (folder / "many.txt").write_text("".join(many[:60]))
    return user


def _line(shown: str, pattern: str) -> str:
    """Returns the first line that has a pattern, without what one machine alone prints."""
    found = [line.strip() for line in shown.splitlines() if re.search(pattern, line)]
    assert found, f"no line has {pattern!r}:\n{shown}"
    line = found[0].removeprefix("^C").removeprefix("specdec: ")
    line = re.sub(r" on \d+ cores? of .*", " on this machine", line)
    return re.sub(r"\d+\.\d+", "N", line)


def _printed(user: User, row: Row) -> str:
    if row.now:
        return row.now(user, row.command)
    return _line(user.run(row.command), row.shows)


def _cell(text: str) -> str:
    return f"`{text.replace('`', chr(39)).replace('|', chr(92) + '|')}`"


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        user = user_in(Path(folder) / "hour")
        rows = [
            f"| {_cell(row.command)} | {row.used} | {_cell(_printed(user, row))} |" for row in ROWS
        ]
    table = "\n".join(rows)
    print(table)
    return int(table not in PAGE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    sys.exit(main())
