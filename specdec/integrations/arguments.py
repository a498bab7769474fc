"""The checks of the arguments of `InteractiveModel`, which name them as a caller does."""

from __future__ import annotations

import dataclasses
import operator
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from specdec import tasks
from specdec.common.values import SEEDS, did_you_mean, is_number
from specdec.drafters.drafter import Drafter
from specdec.engine import Settings
from specdec.integrations.pair import Search
from specdec.models.partitioning import Partitioner
from specdec.schedules.schedule import Schedule
from specdec.types import SamplingRule
from specdec.verifiers.decide import Verifier

T = TypeVar("T")

DTYPES = "float32", "bfloat16"
SIDES = "inputs", "targets"
_PARTS: Mapping[str, tuple[type, str]] = {
    "drafter": (Drafter, "a drafter, such as specdec.drafters.PromptLookup()"),
    "schedule": (Schedule, "a schedule, such as specdec.schedules.Fixed(4), or gamma=4"),
    "sampling": (SamplingRule, "a rule, such as specdec.sampling.Sampling(temperature=1.0)"),
    "verifier": (Verifier, "a verifier, such as specdec.verifiers.Block()"),
    "partitioner": (Partitioner, "specdec.models.partitioning.Partitioner(num_partitions=2)"),
}
_INSTEAD = {
    "temperature": "sampling=specdec.sampling.Sampling(temperature), or temperature to predict",
    "max_length": "lengths={'inputs': 512, 'targets': N}, or max_length to predict",
    "num_beams": "num_beams to the method beams",
    "seed": "seed to predict",
}


def check_parts(**parts: object) -> None:
    """Raises ValueError for a part that is neither None nor of its class."""
    for name, value in parts.items():
        kind, remedy = _PARTS[name]
        if value is not None and not isinstance(value, kind):
            raise ValueError(f"{name} is {value!r}; give {remedy}")


def check_vocabulary(vocabulary: object) -> None:
    """Raises ValueError for a vocabulary that cannot be loaded."""
    if vocabulary is not None and not hasattr(vocabulary, "load"):
        raise ValueError(f"vocabulary is {vocabulary!r}; give {tasks.VOCABULARIES}, or None")


def check_computing(dtype: object, **truths: object) -> None:
    """Raises ValueError for a dtype that models do not compute in, or for no truth value."""
    if isinstance(dtype, str) and dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype!r}; give {' or '.join(map(repr, DTYPES))}, or None")
    for name, value in truths.items():
        if not isinstance(value, bool):
            raise ValueError(f"{name} is {value!r}; give True or False")


def check_directories(target: object, draft: object, drafter: object, table: object) -> None:
    """Raises ValueError for no directories, or if the default drafter's is not among them."""
    of_draft = draft if isinstance(draft, Mapping) else {"": draft}
    paths = {"target": target, "schedule_table": table}
    paths |= {f"draft[{role!r}]" if role else "draft": path for role, path in of_draft.items()}
    for name, path in paths.items():
        if not isinstance(path, str | os.PathLike) and (path is not None or name == "target"):
            raise ValueError(f"{name} is {path!r}; give the directory of a checkpoint")
    if drafter is None and isinstance(draft, Mapping) and "draft" not in draft:
        raise ValueError(f"draft is {draft!r}; give {{'draft': DIR}}, or a drafter of these roles")


def lengths_of(lengths: object) -> dict[str, int]:
    """Returns the longest inputs and targets, in tokens; raises ValueError for anything else."""
    remedy = "both in tokens, as in lengths={'inputs': 512, 'targets': 128}"
    if not isinstance(lengths, Mapping) or set(lengths) != set(SIDES):
        raise ValueError(f"lengths is {lengths!r}; give {remedy}")
    return {side: integer(f"lengths[{side!r}]", lengths[side], 1) for side in SIDES}


def integer(name: str, value: object, least: int, most: int | None = None) -> int:
    """Returns an integer of Python's or NumPy's; raises ValueError for anything else."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)  # type: ignore
    except TypeError:
        number = None
    if number is None or number < least or (most is not None and number > most):
        end = f"from {least} on" if most is None else f"from {least} to {most}"
        raise ValueError(f"{name} is {value!r}; give an integer {end}")
    return number


def seed_of(seed: object) -> int:
    """Returns a seed; raises ValueError for anything else."""
    return integer("seed", seed, 0, SEEDS - 1)


def text_of(name: str, text: object) -> str:
    """Returns a text; raises TypeError for anything else."""
    if not isinstance(text, str):
        raise TypeError(f"{name} is {text!r:.60}; give a text")
    return text


def texts_of(texts: Iterable[str], name: str = "texts") -> list[str]:
    """Returns a list of texts; raises TypeError for one text, or for other values in the list."""
    if isinstance(texts, str):
        raise TypeError(f"{name} is one text, {texts[:30]!r}; give a list of {name}")
    try:
        every = list(texts)
    except TypeError:
        raise TypeError(f"{name} is {texts!r:.60}; give a list of {name}") from None
    return [text_of(f"{name}[{number}]", text) for number, text in enumerate(every)]


def files_of(files: Iterable[str | os.PathLike]) -> list[str]:
    """Returns the names of files; raises TypeError for anything else."""
    if isinstance(files, os.PathLike):
        files = [files]
    paths = files if isinstance(files, str) else list(files)
    return texts_of([os.fspath(x) for x in paths] if isinstance(paths, list) else paths, "files")


def check_search(search: Iterable[str]) -> None:
    """Raises TypeError for a setting that a beam search does not have."""
    for name in search:
        if name not in Search.__annotations__:
            hint = did_you_mean(name, Search.__annotations__)
            raise TypeError(f"a beam search has no argument {name}{hint}")


def temperature_of(temperature: object) -> float:
    """Returns a temperature; raises ValueError for anything but a number from 0 on."""
    if not is_number(temperature) or temperature < 0:
        raise ValueError(f"temperature is {temperature!r}; give a number from 0 on, 0 for greedy")
    return float(temperature)


def settings_of(settings: Mapping[str, object]) -> Settings:
    """Returns the other settings; raises TypeError for a name that nothing reads."""
    known = [field.name for field in dataclasses.fields(Settings)]
    for name in settings.keys() - set(known):
        hint = did_you_mean(name, [*_PARTS, *known, "gamma", "lengths", "batch_size", "dtype"])
        hint = f"; give {_INSTEAD[name]}" if name in _INSTEAD else hint
        raise TypeError(f"InteractiveModel has no argument {name}{hint}")
    return Settings(**settings)  # type: ignore[arg-type]


def pairs_of(inputs: Sequence[str], targets: Sequence[str]) -> list[tuple[str, str]]:
    """Returns inputs with their targets; raises ValueError if there are not as many of both."""
    inputs, targets = texts_of(inputs, "inputs"), texts_of(targets, "targets")
    if len(inputs) != len(targets):
        raise ValueError(f"{len(inputs)} inputs but {len(targets)} targets; give pairs")
    return list(zip(inputs, targets, strict=True))
