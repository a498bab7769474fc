"""Trimming: a part of a trained T5 as its own T5, from which a drafter is trained.

Kept parts do not change, and nothing replaces the others: the remaining layers read the stream from
one another. The last layers of a decoder therefore read embeddings that they have never seen. The
first layers leave a stream that the final norm and the head have never seen.

A head may keep only the ids that are likely at all (VocabTrim, Goel et al. 2025, 2506.22694;
FR-Spec, Zhao et al. 2025, 2502.14856). A step then reads D K numbers of it instead of D V. The
drafter gives the other ids probability 0, and only the target can produce them.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from specdec.models.kept_parts import Trim
from specdec.models.layouts import logits_from_table
from specdec.models.t5.config import T5Config
from specdec.models.t5.drafting import T5DraftConfig, config_of
from specdec.types import Array, PyTree


def trimmed(config: T5Config, trim: Trim) -> T5Config:
    """Returns the config of the kept parts.

    Raises:
      ValueError: there are no such parts.
    """
    changes: dict[str, Any] = {}
    config = T5DraftConfig.of(config)  # in which nothing may be set
    if config.encoded_dim and (trim.shared_encoder or trim.encoder_layers is not None):
        asked = "shared_encoder" if trim.shared_encoder else "encoder_layers"
        raise ValueError(
            f"Trim.{asked} is about an encoder, and the model reads another one's (encoded_dim); "
            "leave it out"
        )
    for stack in ("decoder", "encoder"):
        kept, there = getattr(trim, f"{stack}_layers"), getattr(config, f"num_{stack}_layers")
        if kept is None:
            continue
        if kept[-1] >= there:
            raise ValueError(
                f"Trim.{stack}_layers is {kept} and the last of the model's layers is number "
                f"{there - 1}; give some of those"
            )
        changes[f"num_{stack}_layers"] = len(kept)
    if trim.shared_encoder:
        changes |= {"num_encoder_layers": 0, "encoded_dim": config.emb_dim}
    if trim.head_ids is not None:
        if config.head_ids is not None and not set(trim.head_ids) <= set(config.head_ids):
            raise ValueError(
                f"Trim.head_ids has {len(set(trim.head_ids) - set(config.head_ids))} ids that the "
                "model's head lacks (head_ids); trim a whole one"
            )
        changes["head_ids"] = trim.head_ids
    return config_of(**dataclasses.asdict(config) | changes)


def trim(params: PyTree, config: T5Config, trim: Trim) -> PyTree:
    """Returns the parameters of the kept parts of T5X's tree; only a head's are copied.

    Raises:
      ValueError: as `trimmed` does.
    """
    trimmed(config, trim)
    found = dict(params)
    if trim.shared_encoder:
        del found["encoder"]
    for stack in ("decoder", "encoder"):
        if (kept := getattr(trim, f"{stack}_layers")) is not None:
            found[stack] = _of_layers(params[stack], kept)
    if trim.head_ids is not None:
        head = {"logits_dense": {"kernel": _head(params, config, trim.head_ids)}}
        found["decoder"] = found["decoder"] | head
    return found


def _head(params: PyTree, config: T5Config, ids: tuple[int, ...]) -> Array:
    """Returns [D, K], the columns of these ids."""
    if logits_from_table(config, "checkpoint"):
        return jnp.take(params["token_embedder"]["embedding"], jnp.asarray(ids), axis=0).T
    known = T5DraftConfig.of(config).head_ids
    places = ids if known is None else np.searchsorted(known, ids)
    return jnp.take(params["decoder"]["logits_dense"]["kernel"], jnp.asarray(places), axis=1)


def _of_layers(stack: PyTree, kept: tuple[int, ...]) -> PyTree:
    others = {name: leaf for name, leaf in stack.items() if not name.startswith("layers_")}
    return others | {f"layers_{new}": stack[f"layers_{old}"] for new, old in enumerate(kept)}
