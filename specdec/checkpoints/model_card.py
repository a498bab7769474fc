"""Model cards: the README.md of a checkpoint, with metadata for the Hugging Face Hub."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from specdec.checkpoints import hub
from specdec.checkpoints.directory import Location
from specdec.common import records, resources

FILE = "README.md"
_LICENSE = re.compile(r"---\n(?:(?!---).*\n)*?license: *(\S+)")


@dataclasses.dataclass(frozen=True)
class ModelCard:
    """The contents of the model card of a checkpoint that a command wrote."""

    name: str  # the heading
    about: str  # one paragraph
    family: str  # of the model
    sources: Mapping[str, str | None]  # paths or names by role; None for what was not used
    command: Sequence[str]  # the command's words; () if the checkpoint was made in Python
    settings: str = ""  # the text of a gin file
    figures: Mapping[str, str] = dataclasses.field(default_factory=dict)  # measured, by name

    def write(self, checkpoint: Path) -> None:
        """Writes the card into the folder of a checkpoint, in place of an earlier one."""
        records.write(checkpoint / FILE, self.text())

    def text(self) -> str:
        """Returns the card as Markdown."""
        return "\n".join([*self._metadata(), "", f"# {self.name}", "", self.about, *self._body()])

    def _used(self) -> dict[str, str]:
        return {role: path for role, path in self.sources.items() if path is not None}

    def _license(self) -> str | None:
        """Returns the license of the sources; None if their cards name none or different ones."""
        named = {license_of(path) for path in self._used().values()} - {None}
        return named.pop() if len(named) == 1 else None

    def _metadata(self) -> Iterator[str]:
        yield from ("---", "library_name: specdec", f"license: {self._license() or 'unknown'}")
        if bases := [base for path in self._used().values() if (base := hub.repository(path))]:
            yield from ("base_model:", *(f"- {base}" for base in bases))
        yield from ("tags:", "- jax", "- speculative-decoding", f"- {self.family}", "---")

    def _body(self) -> Iterator[str]:
        sources = [f"- {role}: `{path}`" for role, path in self._used().items()]
        figures = [f"- {name}: {figure}" for name, figure in self.figures.items()]
        for title, lines in (("Made from", sources), ("Figures", figures)):
            if lines:
                yield from ("", f"## {title}", "", *lines)
        for title, language, code in (
            ("Command", "bash", shlex.join(self.command)),
            ("Settings", "gin", self.settings.strip("\n")),
        ):
            if code:
                yield from ("", f"## {title}", "", f"```{language}", code, "```")
        if known := self._license():
            line = f"{known}, which the cards of its sources name."
        else:
            line = "unknown. Write it into `license` above before you publish this checkpoint."
        yield from ("", "## License", "", f"The license is {line}", "")


def license_of(path: str) -> str | None:
    """Returns the license in the card of a checkpoint on this machine, None without one."""
    file = Path(resources.shipped(path)) / FILE
    found = _LICENSE.match(file.read_text(encoding="utf-8")) if file.is_file() else None
    return found and found[1]


def copy(source: Location, checkpoint: Path) -> None:
    """Copies the card of the checkpoint `source`, if it has one, to the folder `checkpoint`."""
    if isinstance(source, Path) and (file := source / FILE).is_file():
        records.write(checkpoint / FILE, file.read_text(encoding="utf-8"))
