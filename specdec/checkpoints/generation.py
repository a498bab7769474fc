"""The generation settings of a checkpoint, read from the same files as by transformers.

`generation_config.json` holds them. Checkpoints without that file may have some in `config.json`.
A Chronos model has its settings in its `chronos_config`, as for the package chronos-forecasting.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from specdec import tasks
from specdec.checkpoints.cloud_storage import Location
from specdec.checkpoints.errors import CheckpointError
from specdec.checkpoints.huggingface_files import CONFIG, read_json
from specdec.common.json_values import JsonObject
from specdec.models import families
from specdec.models.bases.prompts import PromptReader
from specdec.models.contract.family import Family

FILE = "generation_config.json"
START, BEGIN, ENDS, PADDING = (
    "decoder_start_token_id",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
)
LONGEST = "max_new_tokens"
IDS = (START, BEGIN, ENDS, PADDING)

_OWN_IDS = {  # transformers' name: our config's field, and its meaning in error messages
    START: ("decoder_start_id", "outputs start from"),
    PADDING: ("pad_id", "texts are padded with"),
}

# The settings by what they affect, each with the values that have no effect.
TABLE: JsonObject = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
NO_EFFECT, OF_SOUND = (frozenset(TABLE[kind].split()) for kind in ("no_effect", "of_sound"))
TRANSCRIBED = OF_SOUND | frozenset(TABLE["transcribed"].split())
_KINDS = ("drawing", "beams", "missing", "processors")
DRAWING, BEAMS, MISSING, PROCESSORS = (TABLE[kind] for kind in _KINDS)
NAMES = frozenset({*IDS, *NO_EFFECT, *DRAWING, *BEAMS, *MISSING, *PROCESSORS, "do_sample"})
NEUTRAL: Mapping[str, Sequence[object]] = {
    "do_sample": (False,),
    "return_timestamps": (False,),
    **DRAWING,
    **BEAMS,
    **MISSING,
    **PROCESSORS,
}


class Setting(NamedTuple):
    """The value of a setting, and the name of the file that has it."""

    value: Any  # of JSON
    file: str

    def __str__(self) -> str:
        return f"{self.value} ({self.file})"


def read(directory: Location) -> dict[str, Setting]:
    """Returns the settings of a checkpoint's directory that are not null, by name."""
    return _of_texts(directory) | of_series(directory)


def of_series(directory: Location) -> dict[str, Setting]:
    """Returns the generation settings of a Chronos model; {} for other models.

    EOS is suppressed, so every output has the full prediction length.
    """
    for file in (directory / tasks.SERIES_FILE, directory / CONFIG):
        record = read_json(file) if file.is_file() else {}
        if file.name == CONFIG and tasks.SERIES_KEY not in record:
            continue
        if record:
            try:
                return _of_record(record.get(tasks.SERIES_KEY, record), file.name)
            except ValueError as error:
                raise CheckpointError(f"{file}: {error}; give a Chronos-T5") from error
    return {}


def _of_record(record: JsonObject, file: str) -> dict[str, Setting]:
    tasks.check_series(record)
    values = {name: record[name] for name in ("temperature", "top_k", "top_p") if name in record}
    values |= {"do_sample": True, "suppress_tokens": [record["eos_token_id"]]}
    values[LONGEST] = record["prediction_length"]
    return {name: Setting(value, file) for name, value in values.items() if value is not None}


def _of_texts(directory: Location) -> dict[str, Setting]:
    file, config = directory / FILE, directory / CONFIG
    record = read_json(config) if config.is_file() else {}
    if "model_type" not in record:
        in_file = read_json(file) if file.is_file() else {}
        in_file = {k: Setting(v, FILE) for k, v in in_file.items() if v is not None}
        return _with_ids(_checked(in_file, directory), record, directory)
    in_config = {k: v for k, v in record.items() if k in NAMES and v is not None}
    if not file.is_file():
        return _checked({k: Setting(v, CONFIG) for k, v in in_config.items()}, directory)
    in_file = {k: v for k, v in read_json(file).items() if v is not None}
    if in_file.get("_from_model_config") is True:
        _refuse_contradiction(in_file, in_config, directory)
    settings = {k: Setting(v, FILE) for k, v in in_file.items()}
    if record["model_type"] == "whisper" and "forced_decoder_ids" in in_config:
        settings.setdefault("forced_decoder_ids", Setting(in_config["forced_decoder_ids"], CONFIG))
    return _checked(settings, directory)


def continues_prompts(record: JsonObject) -> bool:
    """Returns whether a `config.json` is that of a decoder-only model."""
    kind, name = record.get("model_type"), record.get("family", families.DEFAULT)
    return any(
        isinstance(family.model, type) and issubclass(family.model, PromptReader)
        for family in families.FAMILIES.values()
        if (family.name == name if kind is None else kind in _types(family))
    )


def _types(family: Family) -> tuple[str, ...]:
    return () if family.huggingface is None else family.huggingface.MODEL_TYPES


def _with_ids(
    settings: dict[str, Setting], record: JsonObject, directory: Location
) -> dict[str, Setting]:
    """Returns the settings with the ids in our own `config.json` that differ from T5's.

    Its start and padding ids must not contradict the settings. Its stop ids may: those of the
    settings then apply. A decoder-only model has stop ids alone.
    """
    model = record.get("model", record)
    model, ids = model if isinstance(model, dict) else {}, {}
    if continues_prompts(record):
        ends = model.get("stop_ids")
        return ({} if ends is None else {ENDS: Setting(ends, CONFIG)}) | settings
    padding = settings.get(PADDING)
    stated = {START: start_of(settings), PADDING: None if padding is None else padding.value}
    for name, (key, what) in _OWN_IDS.items():
        recorded = model.get(key, 0)
        if stated[name] not in (None, recorded) and record:
            raise CheckpointError(
                f"{directory} contradicts itself: {what} {recorded} by {CONFIG} ({key}) and "
                f"{stated[name]} by {FILE}; correct one of them"
            )
        if recorded:
            ids[name] = Setting(recorded, CONFIG)
    if (ends := model.get("stop_ids", [1])) != [1]:
        ids[ENDS] = Setting(ends, CONFIG)
    return ids | settings


def start_of(settings: Mapping[str, Setting]) -> int | None:
    """Returns the id that outputs start from, or None if the settings do not say.

    transformers uses `bos_token_id` if there is no `decoder_start_token_id`.
    """
    start = settings.get(START) or settings.get(BEGIN)
    return None if start is None else start.value


def changes(name: str, value: object) -> bool:
    """Returns whether a setting of this name and value changes generated tokens."""
    return name not in NO_EFFECT and value not in NEUTRAL.get(name, ())


def _refuse_contradiction(in_file: JsonObject, in_config: JsonObject, directory: Location) -> None:
    """Raises CheckpointError for settings that two versions of transformers read differently.

    `_from_model_config` says that the file repeats `config.json`. Version 4 then prefers the
    settings in `config.json`, and version 5 those in the file.
    """
    for name in NEUTRAL:
        value, configured = in_file.get(name), in_config.get(name)
        if configured is not None and changes(name, configured) and configured != value:
            raise CheckpointError(
                f"{directory} contradicts itself: {name} is {configured!r} in {CONFIG} and "
                f"{value!r} in {FILE}, which claims to repeat it (_from_model_config); "
                "correct one of them"
            )


def _checked(settings: dict[str, Setting], directory: Location) -> dict[str, Setting]:
    if PADDING in settings and settings[PADDING].value == -1:
        del settings[PADDING]  # means no padding, in LLaMA's first configs
    for name in IDS:
        if name not in settings:
            continue
        value, file = settings[name]
        ids = value if name == ENDS and isinstance(value, list) else [value]
        if not ids or not all(type(x) is int and x >= 0 for x in ids):
            raise CheckpointError(
                f"{directory / file} has {name} {value!r}; give a token id"
                f"{', or a list of them' if name == ENDS else ''}"
            )
    return settings
