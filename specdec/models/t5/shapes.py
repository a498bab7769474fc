"""Infers a T5's config from its parameters' shapes, and the parameters that each array holds.

T5X's `scalable_t5` has parameters with other names and shapes than those of `t5`.

If layers were trained in a scan, one array has a parameter of all of them:
`decoder/decoder/mlp/wo/kernel [mlp, layers, embed]` holds all `decoder/layers_<i>/mlp/wo/kernel`.
The axis of layers is 1, or 0 by the training's `param_scan_axis`. Attention kernels, scanned or
not, are [embed, heads, head_dim] (`out`: [heads, head_dim, embed]) instead of [embed, heads *
head_dim].
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from specdec.common.values import integers
from specdec.models.contract.family import Shape, Shapes, Stack
from specdec.models.t5.config import SIZES, T5Config

PRESETS = {  # the scopes of gin/models/ by their SIZES; Flan-T5 and mT5 are t5_1_1
    (512, 8, 64, 2048, 6, 6): "t5_1_0_small",
    (768, 12, 64, 3072, 12, 12): "t5_1_0_base",
    (1024, 16, 64, 4096, 24, 24): "t5_1_0_large",
    (1024, 32, 128, 16384, 24, 24): "t5_1_0_3b",
    (1024, 128, 128, 65536, 24, 24): "t5_1_0_11b",
    (512, 6, 64, 1024, 8, 8): "t5_1_1_small",
    (768, 12, 64, 2048, 12, 12): "t5_1_1_base",
    (1024, 16, 64, 2816, 24, 24): "t5_1_1_large",
    (2048, 32, 64, 5120, 24, 24): "t5_1_1_xl",
    (4096, 64, 64, 10240, 24, 24): "t5_1_1_xxl",
    (1472, 6, 64, 3584, 12, 4): "byt5_small",
    (1536, 12, 64, 3968, 18, 6): "byt5_base",
    (1536, 16, 64, 3840, 36, 12): "byt5_large",
    (2560, 32, 64, 6720, 36, 12): "byt5_xl",
    (4672, 64, 64, 12352, 36, 12): "byt5_xxl",
}

_RELATIVE_BIAS = "relpos_bias/rel_embedding"


def misfit(shapes: Shapes, expected: Shapes) -> str:
    """Explains by T5Config's fields why a checkpoint's shapes are not those expected."""
    if not shapes.keys() & expected.keys():
        return "these are not the parameters of a T5"
    ours, stored = fields(expected), fields(shapes)
    wrong = [name for name, value in stored.items() if value not in (None, ours[name])]
    if not wrong:
        return "an incomplete or altered checkpoint"
    version = "v1.0" if len(stored["mlp_activations"]) == 1 else "v1.1"
    preset = PRESETS.get(tuple(stored[name] for name in SIZES))
    of_size = f" of size {preset}" if preset else ""
    differences = ", ".join(f"{name}={stored[name]}, not {ours[name]}" for name in wrong)
    return f"these are the parameters of a {version} T5{of_size}: {differences}"


def fields(shapes: Shapes) -> dict[str, Any]:
    """Returns the fields of T5Config that shapes imply; a field is None if its array is missing."""
    unknown = (None, None)
    vocab_size, emb_dim = shapes.get("token_embedder/embedding", unknown)
    per_layer, shared = f"decoder/layers_0/{_RELATIVE_BIAS}", f"decoder/{_RELATIVE_BIAS}"
    heads, buckets = shapes.get(per_layer, shapes.get(shared, unknown))
    _, joined = shapes.get("decoder/layers_0/self_attention/query/kernel", unknown)
    gated = any(name.endswith("mlp/wi_0/kernel") for name in shapes)
    return {
        "mlp_activations": ("gelu", "linear") if gated else ("relu",),
        "logits_via_embedding": "decoder/logits_dense/kernel" not in shapes,
        "num_encoder_layers": _depth(shapes, "encoder"),
        "num_decoder_layers": _depth(shapes, "decoder"),
        "vocab_size": vocab_size,
        "emb_dim": emb_dim,
        "num_heads": heads,
        "head_dim": joined // heads if joined and heads else None,
        "mlp_dim": shapes.get("decoder/layers_0/mlp/wo/kernel", unknown)[0],
        "relative_attention_num_buckets": buckets,
        "relative_bias_per_layer": per_layer in shapes,
    }


def _depth(names: Shapes, stack: str) -> int | None:
    layers = {name.split("/")[1] for name in names if name.startswith(f"{stack}/layers_")}
    return len(layers) or None


def stacks(
    shapes: Shapes, config: T5Config | None, repeats: Callable[[str, int], bool]
) -> dict[str, Stack]:
    """Returns the parameters in each array: the one of its name, or one per layer of a stack.

    Every scanned layer has its own relative-position biases. If those of all layers are equal, they
    are read as the biases that T5's layers share, unless `config.relative_bias_per_layer`.
    """
    per_layer = config is not None and config.relative_bias_per_layer
    axis = _axis(shapes)

    def stack(name: str, shape: Shape) -> Stack:
        match = re.fullmatch(r"(encoder|decoder)/\1/(.+)", name)
        if match is None or len(shape) <= axis:
            return Stack((name,), _joined(name, shape))
        integers(1, 1000).check(f"the number of layers in {name}", shape[axis])
        side, parameter = match.groups()
        layer_shape = _joined(name, shape[:axis] + shape[axis + 1 :])
        if parameter == _RELATIVE_BIAS and not per_layer and repeats(name, axis):
            return Stack((f"{side}/{_RELATIVE_BIAS}",), layer_shape, axis)
        layers = (f"{side}/layers_{i}/{parameter}" for i in range(shape[axis]))
        return Stack(tuple(layers), layer_shape, axis)

    return {name: stack(name, shape) for name, shape in shapes.items()}


def _axis(shapes: Shapes) -> int:
    """Returns the axis of layers in a layer norm of shape [embed, layers] or [layers, embed]."""
    norm = shapes.get("decoder/decoder/pre_mlp_layer_norm/scale")
    embedding = shapes.get("token_embedder/embedding")
    if norm is None or embedding is None:
        return 1
    return 1 if norm[:1] == embedding[1:] else 0


def _joined(name: str, shape: Shape) -> Shape:
    """Returns the shape with heads and head_dim joined."""
    if len(shape) != 3:
        return shape
    return (math.prod(shape[:2]), shape[2]) if "/out/" in name else (shape[0], math.prod(shape[1:]))
