"""The help of `specdec`: its commands in groups, and hints for flags that do not exist."""

from __future__ import annotations

import argparse
import ast
import itertools
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from specdec.cli import gin_files
from specdec.cli.table import TABLE
from specdec.common.environment import version
from specdec.common.terminal import visible
from specdec.common.values import did_you_mean


class OneLine(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        hint = "" if "; " in message else f"; see {self.prog} --help"
        print(f"specdec: {visible(message + hint)}", file=sys.stderr)
        sys.exit(2)

    def refuse_unknown(self, flags: Iterable[str]) -> None:
        """Ends the program at an unknown flag, with a similar known flag as a hint."""
        known = ["--help", *re.findall(r"--[\w.]+", self.format_usage())]
        for flag in flags:
            if re.fullmatch(r"--[\w.-]+", flag) and flag not in known:
                hint = self.instead(flag, known) or did_you_mean(flag, known)
                self.error(f"{self.prog} has no flag {flag}{hint}")

    def instead(self, flag: str, known: Sequence[str]) -> str:
        """Returns what to use instead of a flag that does not exist, '' if there is nothing."""
        return ""


class Parser(OneLine):
    """The parser of one command's flags."""

    def parse_known_args(
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ):
        self._given = list(itertools.takewhile(lambda arg: arg != "--", args or ()))
        self.refuse_unknown(arg.partition("=")[0] for arg in self._given)
        takes_gin = "--gin_file " in self.format_usage()
        for before, word in itertools.pairwise(["", *self._given]) if takes_gin else ():
            of_flag = before.startswith("--") and "=" not in before  # its value
            if word.endswith(".gin") and not word.startswith("-") and not of_flag:
                self._refuse_word(word, f"--gin_file={word}")
        namespace, others = super().parse_known_args(args, namespace)
        if others:
            flags = dict(zip(others, ("--target", "--draft"), strict=False))
            suggested = " ".join(f"{flag}={word}" for word, flag in flags.items())
            self._refuse_word(" ".join(others), suggested)
        return namespace, others

    def _refuse_word(self, words: str, suggested: str) -> None:
        """Ends with the flags that words without a flag were probably meant for, if it has them."""
        known = self.format_usage()
        flags = [word.partition("=")[0] for word in suggested.split(" ")]
        fits = all(f"{flag} " in known for flag in flags) and len(words.split()) == len(flags)
        if "--target" in flags:  # a run that is described already lacks no target
            fits &= not any(arg.startswith(("--gin_file", "--target")) for arg in self._given)
        hint = f"; did you mean {self.prog} {suggested}?" if fits else ""
        self.error(f"{self.prog} takes no {words}{hint}")

    def instead(self, flag: str, known: Sequence[str]) -> str:
        name = flag.removeprefix("--")
        if "--gin.NAME" not in known:
            return ""
        if name in TABLE["nowhere"]:
            return f"; {TABLE['nowhere'][name]}"
        ours = TABLE["elsewhere"].get(name, name)
        if f"--{ours}" in known:
            return f"; use --{ours}"
        files = (arg.partition("=")[2] for arg in self._given if arg.startswith("--gin_file="))
        if ours.upper() not in gin_files.all_macros(files):
            return ""
        return f"; use --gin.{ours.upper()}={self._value(flag)}"

    def _value(self, flag: str) -> str:
        """Returns the value given with a flag, in gin's syntax."""
        index = next(i for i, arg in enumerate(self._given) if arg.partition("=")[0] == flag)
        _, equals, value = self._given[index].partition("=")
        following = self._given[index + 1 : index + 2]
        if not equals and following and not following[0].startswith("--"):
            value = following[0]
        try:
            ast.literal_eval(value)
        except (ValueError, SyntaxError):
            return f"\"'{value}'\"" if value else "VALUE"
        return value


class Overview(OneLine):
    """The parser of `specdec` itself and of its commands, which the help shows in groups."""

    def __init__(self):
        super().__init__(prog="specdec", allow_abbrev=False)
        installed = version("specdec") or "(not installed)"
        self.add_argument("--version", action="version", version=f"specdec {installed}")
        self.commands = self.add_subparsers(metavar="COMMAND", parser_class=Parser)
        self._groups: dict[str, dict[str, str]] = {}  # group title -> command -> its purpose

    def add_command(self, group: str, name: str, about: str, **options: Any) -> Parser:
        """Adds a command to a group; its flags cannot be abbreviated."""
        self._groups.setdefault(group, {})[name] = about
        return self.commands.add_parser(name, help=about, allow_abbrev=False, **options)

    def parse_known_args(
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ):
        known = self.commands.choices
        first = args[0] if args else ""
        self.refuse_unknown([first])
        if first == "help":
            word = next((arg for arg in (args or ())[1:] if arg in known), "")
            command = f"specdec {word} --help" if word else "specdec --help"
            self.error(f"there is no command 'help'; did you mean {command}?")
        if first and not first.startswith("-") and first not in known:
            self.error(f"there is no command {first!r}{did_you_mean(first, known)}")
        return super().parse_known_args(args, namespace)

    def format_usage(self) -> str:
        return "usage: specdec COMMAND [FLAGS], specdec --help, specdec --version\n"

    def format_help(self) -> str:
        width = max(len(name) for commands in self._groups.values() for name in commands)
        lines = [
            self.format_usage(),
            "Exact speculative decoding for T5: a small model drafts, a large one decides.",
        ]
        for title, commands in self._groups.items():
            lines += ["", f"{title}:"]
            lines += [f"  {name:<{width}}  {text}" for name, text in commands.items()]
        lines += ["", "examples:"]
        for command, text in TABLE["examples"].items():
            lines += [f"  {command}", f"      {text}"]
        lines += [
            "",
            "specdec COMMAND --help lists the flags of a command.",
        ]
        return "\n".join([*lines, ""])
