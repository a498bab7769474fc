"""`specdec list`: everything that can be run, set and read."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from specdec import checkpoints
from specdec.cli import gin_files
from specdec.common import gin_text, resources
from specdec.common.values import one_line
from specdec.models.placement import device as devices

_SIZES = " and ".join(f"{s.emb_dim} x {s.mlp_dim}" for s in devices.SIZES)
SKELETONS = ("decode.gin", "train.gin")
# The topic of the macros in a file or folder of gin/; decode.gin has several.
TOPICS = {
    "given.gin": "Texts",
    "tasks": "Texts",
    "models": "Models",
    "drafters": "Drafters",
    "schedules": "Schedules",
    "verifiers": "Verifiers",
    "sampling": "Outputs",
    "distill.gin": "Distillation",
    "train.gin": "Training",
    "objectives": "Training",
    "integrations": "T5X",
}


class Item(NamedTuple):
    """A name and its description, perhaps under a heading."""

    name: str
    text: str
    topic: str = ""


class Kind(NamedTuple):
    """A kind of item, listed together."""

    rows: Callable[[], Iterator[Item]]
    about: str
    use: str


def add_command(subparsers) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "list",
        help="what can be run, set and read: runs, fragments, models, macros, formats, ...",
        description="Lists what comes with specdec; without a KIND, which kinds there are.",
        command=_command,
    )
    parser.add_argument(
        "kind", nargs="?", choices=tuple(KINDS), metavar="KIND", help=", ".join(KINDS)
    )
    return parser


def _command(args: argparse.Namespace) -> None:
    if args.kind is None:
        _print(Item(f"specdec list {name}", kind.about) for name, kind in KINDS.items())
        return
    kind = KINDS[args.kind]
    _print(kind.rows())
    print()
    _print([Item("", kind.use)])


def runs() -> Iterator[Item]:
    """Yields the gin files that a command reads without others; their header has the command."""
    folder = resources.folder("configs")
    for name in gin_files.names([folder]):
        text = (folder / name).read_text(encoding="utf-8")
        if command := re.search(r"^#   (specdec \w+) --gin_file=", text, re.MULTILINE):
            yield Item(name, f"{gin_files.summary(folder / name)} ({command[1]})")


def fragments() -> Iterator[Item]:
    """Yields the gin files that runs are made of."""
    folder = resources.folder("gin")
    for name in gin_files.names([folder]):
        yield Item(name, gin_files.summary(folder / name))


def models() -> Iterator[Item]:
    """Yields the presets of gin/models, each a scope."""
    folder = resources.folder("gin")
    for name in gin_files.names([folder], "models"):
        yield from _presets(folder / name)


def _presets(file: Path) -> Iterator[Item]:
    sizes: dict[str, str] = {}
    for setting in gin_text.statements(file.read_text(encoding="utf-8")):
        scope, slash, _ = setting.name.partition("/")
        if slash and setting.value.startswith("@"):
            sizes[scope] = f"as {setting.value[1:].partition('/')[0]}"
        elif slash and setting.value.isdigit():
            before = f"{sizes[scope]}, " if scope in sizes else ""
            sizes[scope] = f"{before}{setting.field} {setting.value}"
    for scope, described in sizes.items():
        yield Item(scope, f"{described} (models/{file.name})")


def tasks() -> Iterator[Item]:
    """Yields the fragments that set TASK."""
    folder = resources.folder("gin")
    for name in gin_files.names([folder], "tasks"):
        set_to = {macro.name: macro.value for macro in gin_files.macros(folder / name)}
        lengths = set_to.get("TASK_FEATURE_LENGTHS", "")
        shown = f"; {lengths}" if lengths.startswith("{") else ""
        yield Item(name, f"{gin_files.summary(folder / name)}{shown}")


def macros() -> Iterator[Item]:
    """Returns every macro of runs and of training by topic, with its default and meaning."""
    items = list(_macros())
    topics = dict.fromkeys(item.topic for item in items)
    return (item for topic in topics for item in items if item.topic == topic)


def _macros() -> Iterator[Item]:
    folder, seen = resources.folder("gin"), set()
    others = [name for name in gin_files.names([folder]) if name not in SKELETONS]
    for name in (SKELETONS[0], *others, SKELETONS[1]):
        skeleton = name in SKELETONS
        headings = gin_files.headings(folder / name)
        listed = [macro for macro in gin_files.macros(folder / name) if macro.meaning]
        listed = [macro for macro in listed if skeleton or macro.name not in seen]
        for macro in listed:
            required = macro.value == "%gin.REQUIRED"
            default = "required" if required else f"default {macro.value}"
            topic = TOPICS.get(name.partition("/")[0]) or headings[macro.name]
            yield Item(macro.name, f"{macro.meaning} ({default}; {name})", topic)
        seen |= {macro.name for macro in listed}


def formats() -> Iterator[Item]:
    """Yields the formats of checkpoints, vocabularies and texts."""
    written = ", ".join(f"--format={name}" for name in checkpoints.FORMATS)
    for name, text in _CHECKPOINTS.items():
        yield Item(name, text, f"Checkpoints (`specdec convert` writes {written})")
    for name, text in _VOCABULARIES.items():
        yield Item(name, text, "Vocabularies, next to a checkpoint or as --vocabulary")
    for name, text in _TEXTS.items():
        yield Item(name, text, "Texts, in UTF-8")


_CHECKPOINTS = {
    "huggingface": "A directory as transformers saves it, or OWNER/NAME[@REVISION] of its hub: "
    "config.json, model.safetensors or pytorch_model.bin, in one file or in shards",
    "orbax": "A directory of our own: config.json, params/ and the vocabulary",
    "t5x": "A checkpoint_STEP of T5X, with the fields of its T5Config in a config.json",
    "t5x_orbax": "A checkpoint that T5X saved with Orbax; it is read, and not written",
    "gs://": "Any of these in a bucket; it is read, and not written",
}
_VOCABULARIES = {
    "spiece.model": "A SentencePiece model (vocabulary.model in our own format)",
    "tokenizer.json": "A tokenizer of Hugging Face, where there is no spiece.model",
    "tokenizer.model": "LLaMA's SentencePiece model, where there is neither",
    "vocab.json": "The pieces of OPT and GPT-2, where there is none of these; with merges.txt",
    "chat_template.jinja": "The prompt that a user's message becomes with --chat",
    "added_tokens.json": "Added tokens, also those of tokenizer_config.json and of "
    "special_tokens_map.json",
    "generation_config.json": "Settings of generation, the ids of start and ends included",
    "bytes": "UTF-8 bytes, the vocabulary of ByT5; there is no file",
}
_TEXTS = {
    "--input_file": "One text a line; with references: input TAB reference",
    "TASK_FILES": "The same in a file for each split, input TAB target (tasks/local.gin)",
    "--pairs": "Lines of input TAB output, for `specdec score`",
    "--output_file": "JSON lines; docs/reference/formats.md describes each field",
}


def device() -> Iterator[Item]:
    """Yields the milliseconds of products of a few tokens on this device; the least is marked."""
    with one_line():
        measured = devices.this(int8=devices.file(int8=True).is_file())  # if a run has needed it
    if measured is None:
        yield Item("not measured", "kernels stay as checkpoints have them")
        return
    about = (f"{name} {value}" for name, value in measured.about.items() if value not in ("", []))
    yield Item("device", ", ".join(about))
    file = devices.file(measured.in_int8() is not None)
    yield Item("kept in", os.environ.get(devices.SETTING) or str(file))
    if measured.busy:
        yield Item(
            "load then", f"{measured.load} of a core; at {devices.BUSY} it is measured again"
        )
    for size, times in measured.milliseconds.items():
        for tokens in devices.TOKENS:
            known = {order: times[order][tokens] for order in times if tokens in times[order]}
            shown = (f"{o} {ms:.3f}{'*' * (ms == min(known.values()))}" for o, ms in known.items())
            yield Item(f"{size}, {tokens} token{'s' * (tokens > 1)}", "  ".join(shown))


KINDS = {
    "runs": Kind(
        runs,
        "complete: a command needs no other file; in configs/",
        "Give one with --gin_file, as in specdec decode --gin_file=demo.gin.",
    ),
    "fragments": Kind(
        fragments,
        "what runs are made of, in gin/",
        "Give one with --gin_file behind the run's, or include it in a gin file. Those of "
        "drafters/, verifiers/ and schedules/ have flags too, as in --verifier=coupled.",
    ),
    "models": Kind(
        models,
        "the sizes of released models",
        "With --gin_file=models/t5.gin behind the run's: MODEL = @t5_1_1_xxl/t5.T5Target(). A "
        "checkpoint with a config.json needs none: models/from_checkpoint.gin.",
    ),
    "tasks": Kind(
        tasks,
        "what texts there are, in gin/tasks/",
        "Give one with --gin_file behind the run's. TASK may also name any seqio task whose module "
        "a gin file imports; texts of your own: --text, or tasks/local.gin.",
    ),
    "macros": Kind(
        macros,
        "what can be set by name",
        "Set one with NAME = VALUE in a gin file, or with --gin.NAME=VALUE; strings need quotes "
        "that reach gin: --gin.SPLIT=\"'test'\".",
    ),
    "formats": Kind(
        formats,
        "files that commands read and write",
        "`specdec check DIR` describes a checkpoint; docs/reference/formats.md has the rest.",
    ),
    "device": Kind(
        device,
        "what products take on this device, by which layouts are chosen",
        f"Milliseconds, the least one marked; sizes are those of {_SIZES}, float32. Measured once; "
        f"remove the file to measure again. {devices.SETTING} in the environment names another "
        f"file, or is {devices.STORED!r} for kernels as checkpoints have them.",
    ),
}


def _print(rows: Iterable[Item]) -> None:
    """Prints two columns under their headings.

    On a terminal the second column is wrapped. It is below the first one if that takes more than
    half of the width.
    """
    rows = list(rows)
    terminal = sys.stdout.isatty() or "COLUMNS" in os.environ
    width = max(shutil.get_terminal_size().columns, 40) if terminal else sys.maxsize
    names = max(len(row.name) for row in rows)
    below = 2 * names > width
    indent = 4 if below else names + 2 * (names > 0)
    topic = ""
    for row in rows:
        if row.topic != topic:
            print("\n" * bool(topic) + row.topic)
            topic = row.topic
        lines = textwrap.wrap(row.text, max(width - indent, 20), break_on_hyphens=False)
        first = f"{row.name}\n{' ' * indent}" if below else f"{row.name:<{indent}}"
        print(first + f"\n{' ' * indent}".join(lines))
