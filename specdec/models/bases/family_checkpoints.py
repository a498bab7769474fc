"""The base class of families' checkpoints in transformers' format, and functions for them."""

from __future__ import annotations

import abc
import dataclasses
import re
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from specdec.models.bases.architecture import NO_PAD, Architecture
from specdec.models.contract.family import Arrays, Record

TABLE, HEAD = "token_embedder/embedding", "decoder/logits_dense/kernel"
_CROSS = re.compile("(pre|post)_cross_attention|encoder_decoder_attention")
_START, _PAD, _ENDS = "bos_token_id", "pad_token_id", "eos_token_id"


class FamilyCheckpoints(abc.ABC):
    """The base of `models.contract.family.HuggingFace`, which converts a family's checkpoints.

    Below, "their" names are those in transformers' checkpoints.

    Attributes:
      MODEL_TYPES: the `model_type` of the family's records.
      architecture: the class of transformers that has these arrays.
      fields: {our field: their field} of the config.
      prefix: the beginning of their names, which checkpoints without an output layer may lack.
      anchor: their name of the token table. A wrapper's checkpoint has another prefix before it.
      head: their name of the output layer.
      written: the kind of models that can be written, for messages; "" for `architecture`.
      layers: their name of the layers of a "{stack}".
      parts: {our name: their name} in each decoder layer, without biases and their ".weight". If
        several have one name of theirs, it is of one array that joins them in this order.
      others: {our name: their name} outside of layers.
      unused: a pattern of their names of arrays that are not read.
    """

    MODEL_TYPES: tuple[str, ...] = ()
    architecture: ClassVar[str]
    fields: ClassVar[Mapping[str, str]]
    prefix: ClassVar[str] = "model."
    anchor: ClassVar[str]
    head: ClassVar[str] = "lm_head.weight"
    written: ClassVar[str] = ""
    layers: ClassVar[str]
    parts: ClassVar[Mapping[str, str]]
    others: ClassVar[Mapping[str, str]]
    unused: ClassVar[re.Pattern[str]] = re.compile(r"(?!)")

    @abc.abstractmethod
    def described(self, record: Record) -> Architecture:
        """Returns the config that a record describes, with logits tied if the record says so.

        Raises:
          ValueError: the record names something that the family lacks here, or is incomplete.
        """

    def to_record(self, config: Architecture) -> dict[str, object]:
        """Returns the contents of transformers' `config.json` for a model of this config.

        Raises:
          ValueError: no record can describe the model.
        """
        refuse_part(config, self.written or f"a {self.architecture}")
        encoder = {"is_encoder_decoder": True} if config.num_encoder_layers else {}
        return {
            "architectures": [self.architecture],
            "model_type": self.MODEL_TYPES[0],
            **encoder,
            **{hf_name: getattr(config, ours) for ours, hf_name in self.fields.items()},
            **record_of_ids(config),
        }

    def names(self, config: Architecture) -> dict[str, str]:
        """Returns {our name: their name} of all parameters that a model may have."""
        modules = dict(self.others)
        depths = config.num_encoder_layers, config.num_decoder_layers
        for stack, depth in zip(("encoder", "decoder"), depths, strict=True):
            layers, parts = self.layers.format(stack=stack), self.parts_of(stack)
            for layer in range(depth):
                for ours, hf_name in parts.items():
                    modules[f"{stack}/layers_{layer}/{ours}"] = f"{layers}.{layer}.{hf_name}"
        hf_names = {TABLE: self.anchor, HEAD: self.head}
        for ours, hf_name in modules.items():
            hf_names[ours] = f"{hf_name}.weight"
            module = ours.rpartition("/")[0]
            if config.has_bias(module.rpartition("/")[2]):
                hf_names[f"{module}/bias"] = f"{hf_name}.bias"
        return hf_names

    def parts_of(self, stack: str) -> Mapping[str, str]:
        """Returns the `parts` of a stack's layers; by default an encoder lacks cross-attention."""
        if stack == "decoder":
            return self.parts
        return {ours: hf_name for ours, hf_name in self.parts.items() if not _CROSS.match(ours)}

    def to_config(self, record: Record, arrays: Arrays) -> Architecture:
        """Returns the config that a record describes, together with its arrays.

        Logits are tied if the record says so and no other output layer is stored.

        Raises:
          ValueError: the arrays are those of another model, or `described` raises.
        """
        arrays = self._prefixed(arrays)
        self._check(record, arrays)
        config = self.described(record)
        table, head = arrays[self.anchor], arrays.get(self.head)
        if head is None and not config.logits_via_embedding:
            raise ValueError(
                f"the logits are not tied to the embedding (tie_word_embeddings), but there is no "
                f"{self.head}; save the model as {self.architecture}"
            )
        tied = config.logits_via_embedding and (head is None or np.array_equal(head, table))
        return dataclasses.replace(config, logits_via_embedding=tied)

    def parameters(
        self, record: Record, config: Architecture, arrays: Arrays
    ) -> dict[str, np.ndarray]:
        """Returns a checkpoint's arrays by our names, as views."""
        ours: dict[str, list[str]] = {}
        for name, hf_name in self.names(config).items():
            ours.setdefault(hf_name, []).append(name)
        parameters = {}
        for hf_name, array in self._prefixed(arrays).items():
            if self.unused.fullmatch(hf_name) or (
                hf_name == self.head and config.logits_via_embedding
            ):
                continue
            names = ours.get(hf_name, [hf_name])
            array = array.T if self.is_transposed(names[0]) else array
            if len(names) == 1:
                parameters[names[0]] = array
            elif array.shape[-1] % len(names):
                parameters[hf_name] = array  # is refused later, because the model lacks the name
            else:
                parameters |= zip(names, np.split(array, len(names), axis=-1), strict=True)
        return parameters

    def is_transposed(self, name: str) -> bool:
        """Returns whether the checkpoint's array is [out, in] where ours is [in, out]."""
        return name.endswith("kernel")

    def has_bytes(self, record: Record) -> bool:
        """Returns False: no decoder has ByT5's vocabulary."""
        return False

    def extra_ids(self, record: Record, tokenizer: str) -> int:
        """Returns 0: no decoder has sentinels."""
        return 0

    def tokenizer_record(self, config: Architecture, pieces: int) -> dict[str, object]:
        """Returns transformers' record of a tokenizer that has only a vocabulary."""
        return {"tokenizer_class": "PreTrainedTokenizerFast"}

    def _prefixed(self, arrays: Arrays) -> Arrays:
        """Returns the arrays by names that begin with `prefix`, also if the checkpoint lacks it."""
        if self.anchor.removeprefix(self.prefix) not in arrays:
            return arrays
        return {
            name if name == self.head else f"{self.prefix}{name}": array
            for name, array in arrays.items()
        }

    def _check(self, record: Record, arrays: Arrays) -> None:
        refuse_quantised(record)
        if self.anchor in arrays:
            return
        wrapped = next((name for name in arrays if name.endswith(f".{self.anchor}")), None)
        if wrapped:
            raise ValueError(
                f"the names of its arrays begin with {wrapped.removesuffix(self.anchor)!r}, as a "
                f"wrapper writes them; save the {self.architecture} in it"
            )
        what = ", ".join(record.get("architectures") or ["no architecture"])
        raise ValueError(
            f"there is no {self.anchor} ({what} by its record); give a {self.architecture}"
        )


def attention_parts(
    ours: str, theirs: str, products: str = "q_proj k_proj v_proj o_proj"
) -> dict[str, str]:
    """Returns the entries of `FamilyCheckpoints.parts` for an attention; `products` has their names
    of its kernels of queries, keys, values and outputs."""
    names = zip(("query", "key", "value", "out"), products.split(), strict=True)
    return {f"{ours}/{name}/kernel": f"{theirs}.{hf_name}" for name, hf_name in names}


def fields_of_record(record: Record, fields: Mapping[str, str], required: int) -> dict[str, Any]:
    """Returns the fields of our config that a record has, with `pad_id` and `stop_ids`.

    Args:
      record: a checkpoint's record.
      fields: {our field: the record's field}.
      required: the number of `fields`, from the first one on, that a record has to have.

    Raises:
      ValueError: the record lacks a required field.
    """
    missing = [name for name in list(fields.values())[:required] if record.get(name) is None]
    if missing:
        raise ValueError(f"{', '.join(missing)} missing; copy config.json again")
    known = {ours: record[name] for ours, name in fields.items() if record.get(name) is not None}
    return known | ids_of_record(record)


def ids_of_record(record: Record) -> dict[str, object]:
    """Returns `pad_id` and `stop_ids` of a record, or {} if the record has no stop ids.

    If the padding id also begins or ends texts, `pad_id` is -1, because prompts may contain it.
    """
    ends = record.get(_ENDS)
    if ends is None:
        return {}
    stop_ids = tuple(ends) if isinstance(ends, list) else (ends,)
    pad = record.get(_PAD)
    if not isinstance(pad, int) or pad < 0 or pad in (*stop_ids, record.get(_START)):
        pad = NO_PAD
    return {"pad_id": pad, "stop_ids": stop_ids}


def record_of_ids(config: Architecture) -> dict[str, int | list[int]]:
    """Returns the entries of a record for a config's `pad_id` and `stop_ids`."""
    ends = config.stop_ids
    pad = {} if config.pad_id == NO_PAD else {_PAD: config.pad_id}
    return {_ENDS: ends[0] if len(ends) == 1 else list(ends)} | pad


def refuse_other(record: Record, known: Mapping[str, tuple[object, ...]]) -> None:
    """Raises ValueError for a setting of a record that changes logits and is not supported.

    Args:
      record: a checkpoint's record.
      known: {setting: the values that are supported}.
    """
    for name, values in known.items():
        if name in record and record[name] not in values:
            raise ValueError(
                f"{name} is {record[name]!r}, and supported is {values[0]!r}; use another model"
            )


def refuse_quantised(record: Record) -> None:
    """Raises ValueError if a record is that of a quantised model."""
    if quantised := record.get("quantization_config"):
        method = quantised.get("quant_method") if isinstance(quantised, dict) else quantised
        raise ValueError(
            f"the model is quantised (quantization_config, {method}), and its arrays are not the "
            "parameters; save it dequantised"
        )


def refuse_part(config: Architecture, complete: str) -> None:
    """Raises ValueError if a model's head lacks ids, or it reads another model's encoder output."""
    if config.head_ids is not None:
        raise ValueError(
            f"the head has {len(config.head_ids)} of {config.vocab_size} ids (head_ids), and that "
            f"of {complete} has all; choose another format"
        )
    if config.encoded_dim is not None:
        raise ValueError(
            f"the model has no encoder (encoded_dim), and {complete} has one; choose another format"
        )


def refuse_own_heads(config: Architecture) -> None:
    """Raises ValueError unless the number of query heads determines all sizes of attention."""
    heads = config.num_heads
    if (config.num_kv_heads, config.head_dim * heads) != (heads, config.emb_dim):
        raise ValueError(
            f"num_kv_heads is {config.num_kv_heads} and head_dim {config.head_dim}, and with "
            f"{heads} heads of width {config.emb_dim} transformers has {heads} and "
            f"{config.emb_dim // heads}; choose another format"
        )
