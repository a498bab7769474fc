"""`specdec list`: lists gin files, models, tasks, macros, file formats and device timings."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from specdec import checkpoints
from specdec.cli import flags, gin_files
from specdec.cli.table import TABLE
from specdec.common import gin_text, resources
from specdec.common.values import one_line
from specdec.models.placement import device as devices

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
    "transcribe.gin": "Sound",
    "distill.gin": "Distillation",
    "train.gin": "Training",
    "objectives": "Training",
    "integrations": "T5X",
}


class Item(NamedTuple):
    """One line of a list: a name and its description, under the heading `topic` if it has one."""

    name: str
    text: str
    topic: str = ""


def command(args: argparse.Namespace) -> None:
    kinds = TABLE["kinds"]
    if args.kind is None:
        _print(Item(f"specdec list {name}", kinds[name]["about"]) for name in KINDS)
        return
    _print(KINDS[args.kind]())
    print()
    sizes = " and ".join(f"{size.emb_dim} x {size.mlp_dim}" for size in devices.SIZES)
    values = {"SIZES": sizes, "SETTING": devices.SETTING, "STORED": devices.STORED}
    _print([Item("", flags.filled(kinds[args.kind]["use"], values))])


def runs() -> Iterator[Item]:
    """Yields the complete gin files in configs/, whose header names the command that reads them."""
    folder = resources.folder("configs")
    for name in gin_files.names([folder]):
        text = (folder / name).read_text(encoding="utf-8")
        if command := re.search(r"^#   (specdec \w+) --gin_file=", text, re.MULTILINE):
            yield Item(name, f"{gin_files.summary(folder / name)} ({command[1]})")


def fragments() -> Iterator[Item]:
    """Yields the gin files in gin/, of which runs are composed."""
    folder = resources.folder("gin")
    for name in gin_files.names([folder]):
        yield Item(name, gin_files.summary(folder / name))


def models() -> Iterator[Item]:
    """Yields the model sizes that the files in gin/models define; each is a gin scope."""
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
    """Yields the gin files in gin/tasks, each of which sets TASK."""
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
    written = [f"--format={name}" for name in checkpoints.FORMATS]
    for topic, known in TABLE["formats"].items():
        for name, text in known.items():
            yield Item(name, text, flags.filled(topic, {"WRITTEN": written}))


def device() -> Iterator[Item]:
    """Yields the milliseconds of matrix products on this device by layout; * marks the fastest."""
    with one_line():
        measured = devices.this(int8=devices.file(int8=True).is_file())  # if a run measured it
    if measured is None:
        yield Item("not measured", "kernels keep the layout of checkpoints")
        return
    about = (f"{name} {value}" for name, value in measured.about.items() if value not in ("", []))
    yield Item("device", ", ".join(about))
    file = devices.file(measured.in_int8() is not None)
    yield Item("kept in", os.environ.get(devices.SETTING) or str(file))
    if measured.busy:
        yield Item(
            "load while measured",
            f"{measured.load} of a core; at {devices.BUSY} it is measured again",
        )
    for size, times in measured.milliseconds.items():
        for tokens in devices.TOKENS:
            known = {order: times[order][tokens] for order in times if tokens in times[order]}
            shown = (f"{o} {ms:.3f}{'*' * (ms == min(known.values()))}" for o, ms in known.items())
            yield Item(f"{size}, {tokens} token{'s' * (tokens > 1)}", "  ".join(shown))


KINDS: Mapping[str, Callable[[], Iterator[Item]]] = {
    "runs": runs,
    "fragments": fragments,
    "models": models,
    "tasks": tasks,
    "macros": macros,
    "formats": formats,
    "device": device,
}


def _print(rows: Iterable[Item]) -> None:
    """Prints items in two columns, names and texts, under their topics.

    On a terminal the second column is wrapped. It is printed below the first column if that takes
    more than half of the width.
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
