"""T5X's `scalable_t5`, whose parameters have other names and shapes than the same ones of `t5`.

Layers that were trained in a scan are one array for a whole stack: `decoder/decoder/mlp/wo/kernel
[mlp, layers, embed]` holds what `decoder/layers_<i>/mlp/wo/kernel` is elsewhere. The axis of layers
is 1, or 0 if the training set `param_scan_axis` so. Attention kernels, scanned or not, are
[embed, heads, head_dim] (`out`: [heads, head_dim, embed]) instead of [embed, heads * head_dim].
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from specdec.checkpoints import arrays
from specdec.checkpoints.arrays import Opened, Stored
from specdec.models.t5 import T5Config

_RELATIVE_BIAS = "relpos_bias/rel_embedding"


def unstack(opened: Mapping[str, Opened], config: T5Config | None) -> list[Stored]:
    """The parameters in each array: the one of its name, or one for each layer of a stack.

    Every scanned layer has its own relative-position biases. Where they are all the same, they are
    also the one that T5's layers share, and are taken for it unless the config says otherwise.
    """
    per_layer = config is not None and config.relative_bias_per_layer
    axis = _axis(opened)
    stored = []
    for name, data in opened.items():
        match = re.fullmatch(r"(encoder|decoder)/\1/(.+)", name)
        if match is None:
            stored.append(Stored(data, (name,), _joined(name, data.shape)))
            continue
        stack, parameter = match.groups()
        names = [f"{stack}/layers_{i}/{parameter}" for i in range(data.shape[axis])]
        if parameter == _RELATIVE_BIAS and not per_layer and _same_in_all(data, axis):
            names = [f"{stack}/{_RELATIVE_BIAS}"]
        shape = _joined(name, data.shape[:axis] + data.shape[axis + 1 :])
        stored.append(Stored(data, tuple(names), shape, axis))
    return stored


def _axis(opened: Mapping[str, Opened]) -> int:
    """Told by a layer norm: [embed, layers] or [layers, embed]."""
    norm = opened.get("decoder/decoder/pre_mlp_layer_norm/scale")
    embedding = opened.get("token_embedder/embedding")
    if norm is None or embedding is None:
        return 1
    return 1 if norm.shape[0] == embedding.shape[1] else 0


def _joined(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape with heads and head_dim as one side."""
    if len(shape) != 3:
        return shape
    return (math.prod(shape[:2]), shape[2]) if "/out/" in name else (shape[0], math.prod(shape[1:]))


def _same_in_all(data: Opened, axis: int) -> bool:
    layers = arrays.fetch(data)
    return bool((layers == layers.take([0], axis)).all())
