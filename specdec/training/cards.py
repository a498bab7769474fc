"""Model cards of trained checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from specdec import checkpoints
from specdec.checkpoints.model_card import ModelCard
from specdec.common import hosts
from specdec.common.records import Lines
from specdec.models import families

ABOUT = (
    "A model with {parameters:,} parameters, trained for {steps:,} steps. As a drafter of "
    "speculative decoding it proposes tokens, and its target decides which of them are kept."
)


def write(
    folder: Path,
    name: str,
    sources: Mapping[str, str | None],
    command: Sequence[str],
    settings: str,
    figures: Mapping[str, str] | None = None,
) -> None:
    """Writes the card of each checkpoint that a training run exported.

    Args:
      folder: the directory of the run. Figures of the exported step are taken from its log.
      name: the heading. The card of a part of a model has the name of the part's folder.
      sources, command, settings: the fields of `ModelCard`.
      figures: more figures, by name.
    """
    if not hosts.is_first():
        return
    log = Lines(folder / "log.jsonl", dict[str, float | None])
    for checkpoint in sorted((folder / "export").glob("**/checkpoint_*")):
        step, config = int(checkpoint.name.split("_")[1]), checkpoints.config_from(checkpoint)
        parameters = checkpoints.parameter_count(families.model_of(config))
        records = [record for record in log if record.get("step") == step]
        measured = {
            key.replace("_", " "): f"{value:.4f}"
            for record in records
            for key, value in record.items()
            if value is not None and key not in ("step", "rate")
        }
        ModelCard(
            name if checkpoint.parent.name == "export" else checkpoint.parent.name,
            ABOUT.format(parameters=parameters, steps=step),
            families.family_of(config).name,
            sources,
            command,
            settings,
            {**measured, **(figures or {})},
        ).write(checkpoint)
