"""Series of numbers as texts, and bins of their values as a vocabulary, as in Chronos.

A series is divided by the mean of its absolute values, and each value becomes the id of its bin
(Ansari et al. 2024, 2403.07815). An output can therefore be decoded only with its input, which
determines the scale.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, TypedDict, get_type_hints

import numpy as np
from msgspec import Meta

from specdec.common.json_values import JsonObject, check_kind, parsed
from specdec.common.values import Rule, is_word
from specdec.tasks import pieces
from specdec.tasks.loading import Definition, TaskError, read
from specdec.tasks.plain import PlainVocabulary

if TYPE_CHECKING:
    from seqio import Vocabulary

SERIES_KEY = "chronos_config"  # of a `config.json`
SERIES_FILE = f"{SERIES_KEY}.json"  # in checkpoints of other formats
BINS = "MeanScaleUniformBins"
_NO_IDS = ("prediction_length", "num_samples", "model_type")  # fields that change no id
FURTHEST = 1e20  # the outer limits of the first and the last bin
_Count = Annotated[int, Meta(ge=1, lt=2**24)]


class _Limits(TypedDict):
    low_limit: float
    high_limit: float


class _Record(TypedDict):
    """A `chronos_config`; the digest of a vocabulary depends on the order of these fields."""

    tokenizer_class: str
    model_type: str
    tokenizer_kwargs: _Limits
    use_eos_token: bool
    context_length: _Count
    prediction_length: _Count
    n_tokens: _Count
    n_special_tokens: _Count
    num_samples: _Count
    pad_token_id: pieces.Id
    eos_token_id: pieces.Id


_FIELDS = tuple(get_type_hints(_Record))


def values_of(text: str) -> list[float]:
    """Returns the values of a series, NaN where one is missing.

    Args:
      text: a JSON array, an object with the array "target", or numbers with commas between them. A
        missing value is null, nan or nothing.

    Raises:
      TaskError: it is none of these, or has no or infinite values.
    """
    try:
        if not text.strip():
            raise ValueError
        if (kind := {"[": list, "{": dict}.get(text.lstrip()[0])) is not None:
            series = parsed(text, kind, nan=True)
            series = series["target"] if isinstance(series, dict) else series
            values = [float("nan") if value is None else value for value in series]
            if not all(type(value) in (int, float) for value in values):
                raise ValueError
        elif "_" in text or not text.isascii():  # Python's own digits are more than these
            raise ValueError
        else:
            values = [float(value.strip() or "nan") for value in text.split(",")]
        with np.errstate(over="ignore"):
            if not values or np.isinf(np.array(values, np.float32)).any():
                raise ValueError
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise TaskError(
            f"series {text[:40]!r} is not one of finite numbers; give [1.5, null, 2], or 1.5,nan,2"
        ) from error
    return [float(value) for value in values]


def text_of(values: Iterable[float]) -> str:
    """Returns the text of a series, numbers with commas between them."""
    return ", ".join(map(str, values))


class Series(PlainVocabulary):
    """The bins of a Chronos model.

    The id of padding also stands for a missing value. EOS follows a context if `use_eos_token`.

    Args:
      record: the fields of `chronos_config`.
      file: the file that they were read from.

    Raises:
      ValueError: a field is missing or has a value that is not supported.
    """

    extra_ids = 0

    def __init__(self, record: JsonObject, file: str):
        check_series(record)
        self.record, self.file = record, file
        self.vocab_size, self._special = record["n_tokens"], record["n_special_tokens"]
        self.pad_id, self.eos_id = record["pad_token_id"], record["eos_token_id"]
        self.unk_id = record["pad_token_id"]
        self.ends = record["use_eos_token"]
        self.context_length = record["context_length"]
        self.prediction_length = record["prediction_length"]
        limits, number = record["tokenizer_kwargs"], self.vocab_size - self._special - 1
        self.centers = _evenly_spaced(limits["low_limit"], limits["high_limit"], number)
        middles = (self.centers[1:] + self.centers[:-1]) / np.float32(2)
        self.boundaries = np.array([-FURTHEST, *middles, FURTHEST], np.float32)
        fields = repr([record[name] for name in _FIELDS if name not in _NO_IDS])
        self.digest = hashlib.sha256(fields.encode()).hexdigest()

    def context(self, text: str) -> np.ndarray:
        """Returns the last `context_length` values of a series, float32."""
        return np.array(values_of(text)[-self.context_length :], np.float32)

    def scale(self, text: str) -> np.float32:
        """Returns the mean of the context's absolute values; 1 if they are 0 or missing."""
        values = np.abs(self.context(text))
        there = values[~np.isnan(values)]
        mean = there.sum(dtype=np.float64) / max(len(there), 1)
        return np.float32(mean) if np.float32(mean) > 0 else np.float32(1)

    def bins(self, values: np.ndarray, scale: np.float32) -> list[int]:
        """Returns the ids of the bins of values, after division by `scale`."""
        scaled = values / scale
        ids = np.searchsorted(self.boundaries, scaled, side="right") + self._special
        ids = np.where(np.isnan(values), self.pad_id, np.clip(ids, 0, self.vocab_size - 1))
        return [int(id) for id in ids]

    def encode(self, text: str) -> list[int]:
        """Raises TaskError: a series has no ids without its input, which determines the scale."""
        raise TaskError(
            f"{text[:40]!r} has no ids of its own, since a series is scaled by its input; leave it "
            "out, outputs of series cannot begin with given values"
        )

    def decode(self, ids: Iterable[int]) -> str:
        """Raises TaskError: ids have no values without their input, which determines the scale."""
        raise TaskError(
            "ids of a series have no values without the text of their input, which determines the "
            "scale; give both to `output_text`"
        )

    def input_ids(self, text: str, length: int | None = None) -> list[int]:
        """Returns the ids of a context and EOS if `use_eos_token`: the last `length` of them.

        Missing values before the first value are left out: they would be padding.
        """
        values = self.context(text)
        there = np.flatnonzero(~np.isnan(values))
        ids = self.bins(values[there[0] if len(there) else len(values) :], self.scale(text))
        end = [self.eos_id] if self.ends else []
        room = len(ids) if length is None else max(length - len(end), 0)
        return [*ids[max(len(ids) - room, 0) :], *end]

    def output_ids(self, text: str, source: str) -> list[int]:
        return self.bins(np.array(values_of(text), np.float32), self.scale(source))

    def output_text(self, ids: Sequence[int], source: str) -> str:
        return text_of(self.values(ids, self.scale(source)))

    def values(self, ids: Sequence[int], scale: np.float32) -> np.ndarray:
        """Returns the values of ids up to the first EOS, float32: the centers of their bins."""
        ids = list(ids)
        bins = np.array(ids[: ids.index(self.eos_id)] if self.eos_id in ids else ids, int)
        places = np.clip(bins - self._special - 1, 0, len(self.centers) - 1)
        return self.centers[places] * scale

    def pieces(self) -> list[str]:
        return [*map(str, range(self._special + 1)), *map(str, self.centers)]


@dataclasses.dataclass(frozen=True)
class SeriesBins(Definition):
    """The bins of a Chronos model, whose texts are series; see `series.values_of`.

    Args:
      path: a Chronos model's `config.json`, or a file with its `chronos_config` alone.
    """

    path: Annotated[str, Rule(is_word, f"a Chronos model's config.json, or {SERIES_FILE}")]

    def plain(self) -> Series:
        return _read(self.path)

    def load(self) -> Vocabulary:
        """Raises TaskError: seqio's tasks have no place for a scale."""
        raise TaskError(
            f"{self} is for series, and seqio's tasks are of texts; use a task over files "
            "(tasks/series.gin)"
        )


@functools.cache
def _read(path: str) -> Series:
    try:
        return Series(series_record(read(path, "Chronos model's config.json")), path)
    except (ValueError, TypeError, KeyError) as error:
        if isinstance(error, TaskError):
            raise
        raise TaskError(f"vocabulary {path}: {error}; give a Chronos-T5's config.json") from error


def series_record(content: bytes) -> JsonObject:
    """Returns the `chronos_config` in a JSON file: all of it, or a key of a `config.json`.

    Args:
      content: the bytes of the file.

    Raises:
      ValueError: the file is not a JSON object.
    """
    record = parsed(content)
    return record.get(SERIES_KEY, record)


def is_series(path: str | os.PathLike | None) -> bool:
    """Returns whether a vocabulary's file has the bins of a series model, by its name.

    Args:
      path: the file; None for no file.
    """
    return os.path.basename(path or "") in (SERIES_FILE, "config.json")


def check_series(record: JsonObject) -> None:
    """Raises ValueError for the settings of a Chronos model that is not supported.

    Args:
      record: the `chronos_config`.

    Raises:
      ValueError: a field is missing or has a wrong value, or the model is a Chronos-Bolt.
    """
    if "input_patch_size" in record:
        raise ValueError(
            f"{SERIES_KEY} is of a Chronos-Bolt, which reads patches of values and is not read here"
        )
    missing = [name for name in _FIELDS if name not in record]
    if missing:
        raise ValueError(f"{SERIES_KEY} has no {', '.join(missing)}")
    for name, supported in (("tokenizer_class", BINS), ("model_type", "seq2seq")):
        if record[name] != supported:
            raise ValueError(
                f"{SERIES_KEY} has {name} {record[name]!r}, and {supported!r} alone is read"
            )
    try:
        check_kind(record, _Record)
    except ValueError as error:
        raise ValueError(f"{SERIES_KEY} {error}") from error
    special, limits = record["n_special_tokens"], record["tokenizer_kwargs"]
    right = {name: record[name] < special for name in ("pad_token_id", "eos_token_id")}
    right["n_tokens"] = record["n_tokens"] > special + 2
    right["tokenizer_kwargs"] = limits["low_limit"] < limits["high_limit"]
    if wrong := [name for name, holds in right.items() if not holds]:
        raise ValueError(f"{SERIES_KEY} has {wrong[0]} {record[wrong[0]]!r}, which cannot be")


def _evenly_spaced(low: float, high: float, number: int) -> np.ndarray:
    """Returns numbers as PyTorch's `linspace` does: from both ends, each rounded once."""
    first, last = np.float64(np.float32(low)), np.float64(np.float32(high))
    step, index = np.float64(np.float32((last - first) / (number - 1))), np.arange(number)
    falling = last - step * (number - 1 - index)
    return np.where(index < number // 2, first + step * index, falling).astype(np.float32)
