"""Applies a checkpoint's generation settings to a plan, or rejects them.

transformers' `generate` decodes as `generation_config.json` says. A plan with the same logits
processors writes the same tokens. Settings without a counterpart here are rejected, because
otherwise the output would silently differ.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeAlias

from specdec import tasks
from specdec.checkpoints import CheckpointError, TextModel
from specdec.checkpoints import generation as names
from specdec.checkpoints.generation import Setting
from specdec.checkpoints.transcription import Transcribed
from specdec.common.values import fields_of, is_integer, is_number
from specdec.decoding.beam_rules import BeamRule, HuggingFaceBeams
from specdec.drafters import Autoregressive, EarlyExit
from specdec.models.contract.model import Model
from specdec.models.t5 import T5Config
from specdec.plan import Plan
from specdec.sampling import (
    ForcedTokens,
    MinLength,
    NoRepeatNGram,
    RepetitionPenalty,
    Sampling,
    check_ids,
    filled_in,
    in_order,
    looks_back,
    ordered,
    unprocessed,
    with_processors,
)
from specdec.types import LogitsProcessor

# What a run does with a checkpoint's settings other than ids.
Word: TypeAlias = Literal["obey", "ignore"]
Choice: TypeAlias = Word | Transcribed
_IGNORE = "leave out the checkpoint's settings with --generation_settings=ignore"
_FLAGS = {"temperature": 1.0, "top_k": None, "top_p": None}  # the flags' defaults
# Settings with the same name and meaning in `sampling.in_order`.
_SAME = ("repetition_penalty", "no_repeat_ngram_size", "suppress_tokens", "begin_suppress_tokens")
_TOP_K = 50  # transformers' own, where tokens are drawn and no file says otherwise


def stop_ids(text: TextModel | None, vocabulary: tasks.LoadedVocabulary) -> tuple[int, ...]:
    """Returns the ids that end an output: those of the checkpoint, or else the vocabulary's."""
    return (text and text.stop_ids) or (vocabulary.eos_id,)


def check_start(plan: Plan, text: TextModel) -> None:
    """Raises CheckpointError if the target's start or padding id is not that of its checkpoint.

    Both ids are equal if the model was read from the checkpoint. A preset has T5's by default.
    """
    target = plan.models()["target"]
    config = target.config if isinstance(target, Model) else None
    if not isinstance(config, T5Config):
        return
    for name, what, stated in (
        ("decoder_start_id", "outputs start from", text.start_id),
        ("pad_id", "texts are padded with", text.pad_id),
    ):
        id = getattr(config, name)
        if stated not in (None, id):
            raise CheckpointError(
                f"{text.directory} says that {what} id {stated}, and for the run's model it is "
                f"{id}; set T5Config.{name}, or take the model from the checkpoint "
                "(models/from_checkpoint.gin)"
            )


def taking_part(plan: Plan, text: TextModel, num_beams: int = 0) -> dict[str, Setting]:
    """Returns the settings of a checkpoint that can change the tokens of a run, without ids.

    `obeyed` applies or rejects each of them.
    """
    idle = {*(names.DRAWING if plan.sampling.greedy else ()), *(() if num_beams else names.BEAMS)}
    return {name: setting for name, setting in text.in_effect.items() if name not in idle}


def obeyed(
    plan: Plan,
    text: TextModel,
    chosen: Transcribed | None = None,
    *,
    prefix: bool = False,
    num_samples: int = 1,
    num_beams: int = 0,
) -> Plan:
    """Returns the plan with the settings of its target's checkpoint; rejects unsupported ones.

    A setting of the plan that is not its default replaces the checkpoint's, as arguments of
    `generate` do. Lengths are always the plan's. `searched` applies settings of a beam search.
    """
    size = plan.models()["target"].vocab_size
    text.check_ids(size)
    refusals = _Refusals(text, _IGNORE if chosen is None else "take it out of the file")
    in_effect = taking_part(plan, text, num_beams)
    refusals.check_taken(in_effect, chosen is not None, num_samples, num_beams)
    refusals.check_drawing(plan)
    refusals.check_ends()
    if text.is_prompts:
        refusals.check_prompts()
    if prefix and chosen is None:
        refusals.check_prefix("min_new_tokens", "begin_suppress_tokens")
    if chosen is not None:
        refusals.check_prefix("min_new_tokens", "forced_bos_token_id")
    if plan.target.decoder_only:
        refusals.check_prompt()
    try:
        processors = _processors(plan, text, chosen)
        check_ids(with_processors(unprocessed(plan.sampling), processors), size)
    except CheckpointError:
        raise
    except ValueError as error:
        raise CheckpointError(f"{text.directory}: {error}; correct it, or {_IGNORE}") from error
    refusals.check_lengths(plan, processors)
    return _with(plan, processors)


def searched(rule: BeamRule, text: TextModel, opened: int = 0) -> BeamRule:
    """Returns the rule of a beam search with the settings of the target's checkpoint.

    A setting replaces only a field that has its default. The first `opened` tokens of an output do
    not count in its length, as if they were a prefix.
    """
    stated = {x: setting.value for x, setting in text.in_effect.items() if x in names.BEAMS}
    for name, value in stated.items():
        if not isinstance(rule, HuggingFaceBeams):
            why = f"which the search of {type(rule).__name__} does not have"
            _Refusals(text).refuse(name, why, "give --beam_rule=huggingface")
        if getattr(rule, name) in names.BEAMS[name]:
            try:
                rule = dataclasses.replace(rule, **{name: value})
            except ValueError as error:
                raise CheckpointError(f"{text.directory}: {error}; or {_IGNORE}") from error
    if isinstance(rule, HuggingFaceBeams):
        rule = dataclasses.replace(rule, opened=opened)
    return rule


def replaced(
    plan: Plan, chosen: Choice, rule: BeamRule | None, num_beams: int
) -> dict[str, object]:
    """Returns a run's values of settings that also occur in checkpoints, by transformers' names."""
    sampling = unprocessed(plan.sampling)
    values: dict[str, object] = {"num_beams": num_beams} if num_beams else {}
    for part, wanted in ((sampling, _FLAGS), (rule, names.BEAMS)):
        values |= {name: getattr(part, name) for name in wanted if hasattr(part, name)}
    processors = plan.sampling.processors if looks_back(plan.sampling) else ()
    for processor in processors:
        if isinstance(processor, RepetitionPenalty):
            values["repetition_penalty"] = processor.penalty
        if isinstance(processor, NoRepeatNGram):
            values["no_repeat_ngram_size"] = processor.size
    if isinstance(chosen, Transcribed):
        values |= {name: value for name, value in fields_of(chosen).items() if value is not None}
        values["return_timestamps"] = values.pop("timestamps", True)
    return values


def with_timestamps(plan: Plan, text: TextModel, chosen: Transcribed) -> Plan:
    """Returns a Whisper's plan from `obeyed`, changed so that texts have timestamps."""
    transcribing = chosen.processors(text.directory)
    others = plan.sampling.processors if looks_back(plan.sampling) else ()
    others = tuple(x for x in others if x not in transcribing)
    sampling = with_processors(unprocessed(plan.sampling), others)
    drafter = plan.drafter
    if isinstance(drafter, Autoregressive | EarlyExit) and drafter.sampling == plan.sampling:
        drafter = dataclasses.replace(drafter, sampling=sampling)
    plan = dataclasses.replace(plan, sampling=sampling, drafter=drafter)
    stamped = dataclasses.replace(chosen, timestamps=True)
    return _with(plan, stamped.processors(text.directory))


@dataclasses.dataclass(frozen=True)
class _Refusals:
    """Checks of a checkpoint's settings. Errors name the setting, its value and its file."""

    text: TextModel
    instead: str = _IGNORE

    def refuse(self, name: str, why: str, remedy: str = "") -> None:
        """Raises CheckpointError about one setting, with the reason `why` and the remedy."""
        value, file = self.text.settings[name]
        shown = repr(value) if len(repr(value)) < 60 else f"{repr(value)[:57]}..."
        raise CheckpointError(
            f"{self.text.directory / file} has {name} {shown}, {why}; "
            f"{f'{remedy}, or ' if remedy else ''}{self.instead}"
        )

    def check_taken(
        self, in_effect: Mapping[str, Setting], is_sound: bool, num_samples: int, num_beams: int
    ) -> None:
        """Rejects the settings in effect that this run cannot apply."""
        taken = {*names.PROCESSORS, *names.DRAWING, *names.BEAMS, "do_sample"}
        taken |= names.TRANSCRIBED if is_sound else set()
        taken |= {"num_beams"} if num_beams else set()
        for name, (value, _) in in_effect.items():
            if name == "return_timestamps" and is_sound and value is not True:
                self.refuse(name, "which is not supported")
            if name in taken or (name == "num_return_sequences" and value == num_samples):
                continue
            if name == "num_beams":
                remedy = f"search with `specdec decode --num_beams={value} --beam_rule=huggingface`"
                self.refuse(name, "and this run does no beam search", remedy)
            if name in names.OF_SOUND:
                remedy = "give --gin_file=transcribe.gin"
                self.refuse(name, "which is a setting for sound", remedy)
            if name in names.MISSING:
                self.refuse(name, "which is not supported")
            self.refuse(name, "which is an unknown setting")

    def check_drawing(self, plan: Plan) -> None:
        """Rejects sampling settings of the checkpoint that the plan lacks."""
        in_effect = self.text.in_effect
        stated = {name: in_effect[name].value for name in names.DRAWING if name in in_effect}
        if "do_sample" in in_effect:
            stated_in_files = _values(self.text.settings, names.DRAWING)
            wanted = {"temperature": 1.0, "top_k": _TOP_K} | stated_in_files
            stated = {name: value for name, value in wanted.items() if names.changes(name, value)}
            if plan.sampling.greedy:
                flags = [f"--{name}={value}" for name, value in stated.items() if name in _FLAGS]
                remedy = f"draw with {' '.join(flags) or '--temperature=1'}"
                self.refuse("do_sample", "and this run is greedy", remedy)
        sampling = unprocessed(plan.sampling)
        if isinstance(sampling, Sampling):
            ours = {name: getattr(sampling, name) for name in _FLAGS}
            for name, value in stated.items():
                self._check_drawn(name, value, ours)

    def _check_drawn(self, name: str, value: object, ours: Mapping[str, object]) -> None:
        """Rejects a sampling setting, unless the plan has the same value or chose another one."""
        if name not in _FLAGS:
            self.refuse(name, "which is not supported")
        if ours[name] not in (_FLAGS[name], value):
            return  # the run's choice, which replaces the checkpoint's
        if ours[name] != value:
            stated = name in self.text.settings
            why = "" if stated else f"with which transformers has {name} {value}, "
            why += f"and this run has {ours[name]}"
            self.refuse(name if stated else "do_sample", why, f"give --{name}={value}")

    def check_ends(self) -> None:
        """Rejects a generation_config.json without EOS: transformers would never end a text."""
        settings = self.text.settings
        has_file = any(setting.file == names.FILE for setting in settings.values())
        if has_file and names.ENDS not in settings:
            raise CheckpointError(
                f"{self.text.directory / names.FILE} has no {names.ENDS}, without which "
                f"transformers never ends a text; add it, or {self.instead}"
            )

    def check_prompts(self) -> None:
        """Rejects settings in which transformers counts the tokens of the prompt."""
        remedies = {"min_length": "set min_new_tokens", "forced_bos_token_id": "drop that"}
        for name, remedy in remedies.items():
            if name in self.text.in_effect:
                self.refuse(name, "which counts from the start of a prompt", remedy)

    def check_prefix(self, *counting: str) -> None:
        """Rejects settings that count tokens from the end of a decoder prefix, or of the tokens
        that a transcript opens with, such as its language."""
        for name in counting:
            if name in self.text.in_effect:
                self.refuse(name, "which counts from the end of a decoder prefix", "drop that")

    def check_prompt(self) -> None:
        """Rejects settings whose effect depends on the length of a decoder-only model's prompt."""
        for name in ("min_length", "forced_bos_token_id"):
            if name in self.text.in_effect:
                self.refuse(name, "which counts the tokens of the prompt")

    def check_lengths(self, plan: Plan, processors: tuple[LogitsProcessor, ...]) -> None:
        """Rejects a minimum length that leaves no room, and outputs longer than a series may be."""
        longest = names.of_series(self.text.directory).get(names.LONGEST)
        if longest is not None and plan.max_length > longest.value:
            raise CheckpointError(
                f"{self.text.directory} predicts {longest.value} values (prediction_length), and "
                f"outputs hold {plan.max_length}; give --max_length={longest.value}"
            )
        for processor in processors:
            if isinstance(processor, MinLength) and processor.length >= plan.max_length:
                key = "min_length" if "min_length" in self.text.in_effect else "min_new_tokens"
                why = f"and outputs hold {plan.max_length} tokens"
                self.refuse(key, why, "raise --max_length")


def _values(settings: Mapping[str, Setting], wanted: Iterable[str]) -> dict[str, Any]:  # of JSON
    return {name: settings[name].value for name in wanted if name in settings}


def _processors(
    plan: Plan, text: TextModel, chosen: Transcribed | None
) -> tuple[LogitsProcessor, ...]:
    """Returns the logits processors of a checkpoint's settings; raises ValueError if one is bad."""
    settings = _values(text.in_effect, names.PROCESSORS)
    transcribing = () if chosen is None else chosen.processors(text.directory)
    for name, value in settings.items():
        _check_kind(name, value)
    ends = text.stop_ids or plan.stop_ids
    if chosen is not None:  # their processors are in `transcribing`
        settings = {
            name: value for name, value in settings.items() if name not in names.TRANSCRIBED
        }
    options = {name: settings[name] for name in _SAME if name in settings}
    # transformers leaves out a sequence that is one end.
    rows = [tuple(row) for row in settings.get("bad_words_ids", ())]
    options["bad_words_ids"] = [row for row in rows if row not in [(end,) for end in ends]]
    # min_length counts the start token.
    shortest = settings.get("min_length", 1) - 1, settings.get("min_new_tokens", 0)
    options["min_length"] = max(shortest)
    if "forced_bos_token_id" in settings:
        options["forced_prefix_ids"] = (settings["forced_bos_token_id"],)
    forced = settings.get("forced_eos_token_id", [])
    forced = forced if isinstance(forced, list) else [forced]
    if both := set(forced) & set(settings.get("suppress_tokens", ())):
        raise ValueError(f"token {min(both)} is in forced_eos_token_id and in suppress_tokens")
    last = [ForcedTokens((id,), plan.max_length - 1) for id in forced]
    if len(forced) > 1 and set(forced) != set(ends):
        raise ValueError(f"forced_eos_token_id is {forced}, and outputs end in {list(ends)}")
    if set(forced) == set(ends):
        options["forced_eos_length"], last = plan.max_length, []
    return ordered((*in_order(**options), *last, *transcribing))


def _check_kind(name: str, value: object) -> None:
    """Raises ValueError for a value of the wrong type."""
    kinds: dict[str, tuple[Callable[[object], bool], str]] = {
        "repetition_penalty": (is_number, "a number"),
        "bad_words_ids": (lambda rows: _is_list(rows, lambda row: _is_list(row, _is_id)), "lists"),
        "suppress_tokens": (lambda ids: _is_list(ids, _is_id), "a list of token ids"),
        "begin_suppress_tokens": (lambda ids: _is_list(ids, _is_id), "a list of token ids"),
        "forced_eos_token_id": (lambda ids: _is_id(ids) or _is_list(ids, _is_id), "token ids"),
    }
    is_right, kind = kinds.get(name, (_is_id, "an integer, not negative"))
    if not is_right(value):
        raise ValueError(f"{name} is {value!r}, which is not {kind}")


def _is_id(value: object) -> bool:
    return is_integer(value, 0)


def _is_list(value: object, is_right: Callable[[object], bool]) -> bool:
    return isinstance(value, list) and bool(value) and all(map(is_right, value))


def _with(plan: Plan, processors: tuple[LogitsProcessor, ...]) -> Plan:
    """Returns the plan with these processors, also in its drafter if both had equal sampling."""
    if not processors:
        return plan
    present = plan.sampling.processors if looks_back(plan.sampling) else ()
    sampling = with_processors(unprocessed(plan.sampling), filled_in(present, processors))
    drafter = plan.drafter
    samples = isinstance(drafter, Autoregressive | EarlyExit)
    if samples and drafter.sampling == plan.sampling:
        drafter = dataclasses.replace(drafter, sampling=sampling)
    return dataclasses.replace(plan, sampling=sampling, drafter=drafter)
