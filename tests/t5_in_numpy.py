"""T5 a second time, in float64 NumPy: what T5X's float32 logits and ours are roundings of.

Follows Raffel et al. 2020 (arXiv:1910.10683, section 2.1) and, for gated MLPs, Shazeer 2020
(arXiv:2002.05202), with T5X's parameter names. Shares no code with specdec, and has no cache: all
positions are computed at once.

Axes: B rows, S input positions, T decoder positions, C keys, D model width, H heads, K head width,
N buckets, V ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

PADDING = 0
EPSILON = 1e-6  # of the norms
DEFAULTS = {
    "logits_via_embedding": False,
    "relative_bias_per_layer": False,
    "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128,
}


def logits(
    params: Mapping[str, Any],
    config: Mapping[str, Any],
    inputs: np.ndarray,
    tokens: np.ndarray,
    visible: np.ndarray | None = None,
    positions: np.ndarray | None = None,
    states: np.ndarray | None = None,
) -> np.ndarray:
    """Logits [B, T, V] of decoder tokens [B, T], given padded inputs [B, S].

    `config` is a golden checkpoint's `config.json`. Tokens that are not a text have their own
    `positions` [T], and `visible` [T, T] says which sees which; `states` [B, T, E] of another
    model are fed with them.
    """
    params, config = in_float64(params), DEFAULTS | dict(config)
    x = hidden(params, config, inputs, tokens, visible, positions, states)
    if config["logits_via_embedding"]:
        return x @ params["token_embedder"]["embedding"].T / np.sqrt(config["emb_dim"])
    return x @ params["decoder"]["logits_dense"]["kernel"]


def hidden(params, config, inputs, tokens, visible=None, positions=None, states=None) -> np.ndarray:
    """States [B, T, D] that `logits` are projected from; arguments as there."""
    params, config = in_float64(params), DEFAULTS | dict(config)
    embedding = params["token_embedder"]["embedding"]
    real = (inputs != PADDING)[:, None, None]  # [B, 1, 1, S]
    causal = np.tri(tokens.shape[1], dtype=bool) if visible is None else visible
    order = np.arange(tokens.shape[1]) if positions is None else positions
    encoded = stack("encoder", params, config, embedding[inputs], real)
    x = embedding[tokens]
    if states is not None:
        x = x + states @ params["decoder"]["states_dense"]["kernel"]
    return stack("decoder", params, config, x, causal, order, encoded, real)


def stack(side, params, config, x, visible, position=None, encoded=None, encoded_visible=None):
    """Layers of one side and the norm after them: [B, T, D] -> [B, T, D]."""
    params = params[side]
    position = np.arange(x.shape[1]) if position is None else position
    own = "attention" if side == "encoder" else "self_attention"
    for i in range(config[f"num_{side}_layers"]):
        layer = params[f"layers_{i}"]
        table = (layer if config["relative_bias_per_layer"] else params)["relpos_bias"]
        bias = relative_bias(table["rel_embedding"], config, position, both=side == "encoder")
        y = norm(layer[f"pre_{own}_layer_norm"], x)
        x = x + attention(layer[own], config, y, y, visible, bias)
        if encoded is not None:
            y = norm(layer["pre_cross_attention_layer_norm"], x)
            cross = layer["encoder_decoder_attention"]
            x = x + attention(cross, config, y, encoded, encoded_visible)
        y = norm(layer["pre_mlp_layer_norm"], x)
        x = x + mlp(layer["mlp"], config["mlp_activations"], y)
    return norm(params[f"{side}_norm"], x)


def attention(params, config, x, over, visible, bias=0.0):
    """Attention of x [B, T, D] over [B, C, D], to the keys that are visible.

    Scores are not divided by sqrt(K): T5 has that in its initial query kernels.
    """
    queries, keys, values = (
        (a @ params[name]["kernel"]).reshape(*a.shape[:2], config["num_heads"], config["head_dim"])
        for name, a in (("query", x), ("key", over), ("value", over))
    )
    scores = np.einsum("bthk,bchk->bhtc", queries, keys, optimize=True) + bias
    scores = np.where(visible, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    mixed = np.einsum("bhtc,bchk->bthk", weights, values, optimize=True)
    return mixed.reshape(*x.shape[:2], -1) @ params["out"]["kernel"]


def relative_bias(table, config, position, both):
    """Bias of each head, query and key [H, T, T] at positions [T], from a table [H, N].

    If keys on both sides are seen, those ahead of the query have the second half of the buckets.
    """
    count = config["relative_attention_num_buckets"]
    maximum = config["relative_attention_max_distance"]
    behind = position[:, None] - position  # how far the key is behind the query
    if not both:
        return table[:, buckets(np.maximum(behind, 0), count, maximum)]
    half = count // 2
    return table[:, half * (behind < 0) + buckets(np.abs(behind), half, maximum)]


def buckets(distance, count, maximum):
    """Bucket of each distance d: d if d < E, else E + floor(F log(d / E) / log(maximum / E)).

    E = count // 2 have one distance each, the other F grow, and the last holds all that is left.
    Growing bucket i begins where (d / E)^F = (maximum / E)^i. That is in integers, because a
    rounded logarithm can fall on either side of a border. T5X adds an epsilon against that.
    """
    exact = count // 2
    grow = count - exact
    begins = np.arange(count)
    for i in range(grow):
        border = maximum**i * exact ** (grow - i)
        begins[exact + i] = next(d for d in range(exact, maximum + 1) if d**grow >= border)
    return np.searchsorted(begins, distance, side="right") - 1


def mlp(params, activations, x):
    """Hidden layer: relu(x wi) wo, or (gelu(x wi_0) * x wi_1) wo."""
    if list(activations) == ["relu"]:
        return np.maximum(x @ params["wi"]["kernel"], 0) @ params["wo"]["kernel"]
    if list(activations) != ["gelu", "linear"]:
        raise ValueError(f"activations are {activations}; use ['relu'] or ['gelu', 'linear']")
    gate = gelu(x @ params["wi_0"]["kernel"])
    return (gate * (x @ params["wi_1"]["kernel"])) @ params["wo"]["kernel"]


def gelu(x):
    """Product of x and its normal probability, in tanh form (Hendrycks and Gimpel 2016)."""
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def norm(params, x):
    """Quotient of x and its root mean square, times a scale; without mean and bias."""
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + EPSILON) * params["scale"]


def in_float64(params):
    """Copy of a tree, with float64 leaves."""
    if isinstance(params, Mapping):
        return {name: in_float64(value) for name, value in params.items()}
    return np.asarray(params, np.float64)
