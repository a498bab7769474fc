"""The steps by which `Engine.open` resolves a plan: vocabulary, settings, fit and eight bits."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from os import PathLike

from specdec import checkpoints, tasks
from specdec.checkpoints import generation_settings as generation
from specdec.checkpoints import tables, vocabulary_fit
from specdec.checkpoints.transcription import Transcribed
from specdec.common.values import check_is
from specdec.models.bases.prompts import PromptModel
from specdec.models.contract.model import Model
from specdec.plan import Plan
from specdec.sampling import check_ids
from specdec.tasks import LoadedVocabulary


def saved_vocabulary(path: str | PathLike) -> tasks.VocabularyDefinition:
    """Returns the vocabulary that was saved with a checkpoint.

    Args:
      path: the directory of the checkpoint.

    Raises:
      ValueError: no vocabulary was saved.
    """
    recorded = checkpoints.vocabulary_from(path)
    if recorded is None:
        raise ValueError(
            f"no vocabulary was saved with {path}; give one, "
            "vocabulary=tasks.SentencePiece('FILE') or tasks.Bytes()"
        )
    return tasks.recorded_vocabulary(*recorded)


def obeying(
    plan: Plan,
    text: checkpoints.TextModel | None,
    settings: generation.Choice = "obey",
    prefix: bool = False,
    num_samples: int = 1,
    num_beams: int = 0,
) -> Plan:
    """Returns the plan with the generation settings of its target's checkpoint.

    Args:
      plan: the plan.
      text: the ids and generation settings in the checkpoint; None leaves the plan unchanged.
      settings: "obey", "ignore", or a `Transcribed` for a Whisper.
      prefix: whether outputs are given a prefix.
      num_samples: outputs per text.
      num_beams: beams of a search, 0 for none.

    Raises:
      ValueError: the settings do not suit the plan.
    """
    if text is None:
        return plan
    generation.check_start(plan, text)
    if settings == "ignore":
        return plan
    chosen = settings if isinstance(settings, Transcribed) else None
    more = {"prefix": prefix, "num_samples": num_samples, "num_beams": num_beams}
    return generation.obeyed(plan, text, chosen, **more)


def padding_alike(plan: Plan) -> Plan:
    """Returns the plan with the target's padding id in all decoder-only models of its drafter.

    A run pads its prompts once, for all models. No parameter depends on the padding id, and
    checkpoints with one vocabulary may state different ones.
    """
    pad_id = plan.target.pad_id
    changed = {
        role: dataclasses.replace(model, config=dataclasses.replace(model.config, pad_id=pad_id))
        for role, model in plan.models().items()
        if role != "target" and isinstance(model, PromptModel) and model.pad_id != pad_id
    }
    return plan.with_models(changed) if changed else plan


def check_fit(
    plan: Plan, weights: Mapping[str, str | PathLike], vocabulary: LoadedVocabulary
) -> None:
    """Raises for models and tables of another vocabulary, and for ids outside the vocabulary."""
    spare = plan.drafter.spare_ids()
    for role, model in plan.models().items():
        if role not in weights:
            continue
        if role != "target" and "target" in weights:
            checkpoints.check_pair(weights["target"], weights[role])
        vocabulary_fit.check_fit(vocabulary, model, role, weights[role], spare.get(role, 0))
    for role, table in plan.tables().items():
        tables.check_vocabulary(weights[role], table, vocabulary)
    size = vocabulary.vocab_size
    if "target" in weights:  # some ids of the model have no text
        size = max(size, plan.models()["target"].vocab_size)
    check_ids(plan.sampling, size)


def check_eight_bits(plan: Plan, roles: Sequence[str], tokens: bool) -> None:
    """Raises ValueError unless `in_eight_bits` supports these arguments.

    Args:
      plan: the plan.
      roles: the models' roles.
      tokens: whether the activations that these kernels multiply are rounded as well.
    """
    models = plan.models()
    check_is("int8_tokens", tokens, bool, "True or False")
    if not isinstance(roles, list | tuple) or not set(roles) <= models.keys():
        raise ValueError(
            f"int8 is {roles!r}; give roles, of {', '.join(models)}, as in ('target',)"
        )
    for role in roles:
        model = models[role]
        if not (isinstance(model, Model) and model.has_int8):
            family = type(model).__name__
            raise ValueError(f"int8 names the {role}, but {family} has no int8 kernels")
    if tokens and not roles:
        raise ValueError(
            "int8_tokens is True, but int8 names no model; give both, as in "
            "--gin.INT8=\"('target',)\" --gin.INT8_TOKENS=True"
        )


def in_eight_bits(plan: Plan, roles: Sequence[str], tokens: bool = False) -> Plan:
    """Returns the plan with int8 kernels in the models of these roles.

    Args:
      plan: the plan.
      roles: the models' roles.
      tokens: whether the activations that these kernels multiply are rounded as well.
    """
    models, weights = plan.models(), "int8_tokens" if tokens else "int8"
    rounded = {role: dataclasses.replace(models[role], weights=weights) for role in roles}
    return plan.with_models(rounded)
