"""Growth: a trained T5 at a larger size that computes the same.

It has the speed of the large model, and the texts and the acceptance rate of the small one. It is a
stand-in for trained models that cannot be downloaded.

Each dimension of the old residual stream is repeated. New dimension r holds w_r times old dimension
o(r), with random w, and the sum of w_r^2 over o(r) = i is D'/D. Let R [D', D] be this map. Then R^T
R = (D'/D) I, and

  mean of squares of R x = that of x     RMSNorm divides by the same, epsilon included, and its
                                         scales, one for each dimension, are repeated with it
  what writes to the stream              W R^T, also the table of tokens
  what reads from it                     (D/D') R W
  logits through the table               R twice, 1/sqrt(D') and not 1/sqrt(D): what is left,
                                         sqrt(D'/D), is taken off the decoder's last scale

A random rotation would not work. It turns a norm's scales into a full matrix. That matrix can be
merged into the next one, but not into a table that is both read and written with.

All other weights keep T5's initialisation, and come in twins: the same random input, and random
outputs that cancel. Unit j of an MLP and its twin have equal columns of `wi` and opposite rows of
`wo`. A head's value dimension and its twin have equal columns of `value` and opposite rows of
`out`. An added head, and each head of an added layer, therefore contributes zero whatever it
attends to. An added dimension of an old head's logits and its twin have equal columns of `query`
and opposite columns of `key`. If the number of added entries is odd, the last one's twin is entry
0, from which its contribution is subtracted. No matrix has zeros, so no work can be skipped: every
product takes the time of the large model's.

Two models grown with one key, from one width to another, have the same R, so that a drafter still
fits its target. A drafter that reads the target's outputs (`encoded_dim`, `states_dim`) reads them
through the R of that width.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import traverse_util
from jax.sharding import PartitionSpec

from specdec.models.sizes.growing import Difference, Growth, Stream, alike, key_of_streams, opposed
from specdec.models.t5.config import SIZES, T5Config
from specdec.models.t5.drafting import T5Draft, T5DraftConfig
from specdec.types import Array, PyTree

Path = tuple[str, ...]

_STREAMS = ("emb_dim", "encoded_dim", "states_dim")  # the fields that are widths of streams
_LOG_ODDS = ("exit_classifier", "confidence_head")  # read the decoder's last state
_OF_INPUTS = {("encoder_decoder_attention", name) for name in ("key", "value")}


class T5Growth(Growth[T5Config]):
    """The growth of a T5, with or without additions for drafting.

    Added layers are spread evenly before the old layers, so that the first half of the layers, for
    example, computes the same as the first half before.

    The logit of an added id is a random mean of the old ids' logits. It is never the largest, so
    greedy outputs do not change. A mean is at most log(mean of exp). At a temperature, an added id
    therefore gets up to about 1.5 / V of the probability of all V old ids. To sample, keep the
    vocabulary.
    """

    growing: ClassVar[tuple[str, ...]] = ("vocab_size", *SIZES, *_STREAMS)

    def grow(self, params: PyTree, config: T5Config, to: T5Config, key: Array) -> PyTree:
        self.check_growth(config, to)
        config, to = T5DraftConfig.of(config), T5DraftConfig.of(to)
        model = T5Draft(to)
        _, fresh_key, ids_key = jax.random.split(key, 3)
        streams = _streams(config, to, key)
        axes = _flat(model.axes())
        old = {_moved(path, config, to): leaf for path, leaf in _flat(params).items()}
        grown = _flat(model.init(fresh_key))  # changed in place: two may have no room
        shapes = {path: leaf.shape for path, leaf in grown.items()}
        for path in grown:
            grown[path] = _by_head(grown[path], axes[path], to)
        for path, leaf in old.items():
            leaf = _by_head(jnp.asarray(leaf, jnp.float32), axes[path], config)
            leaf = _widened(leaf, path, axes[path], streams)
            grown[path] = grown[path].at[tuple(map(slice, leaf.shape))].set(leaf)
        for path in grown:
            if path[-2] == "out":
                _cancel_attention(grown, path[:-2], config if path in old else None)
            elif path[-2] == "wo":
                _cancel_mlp(grown, path[:-2], config.mlp_dim if path in old else 0)
        if config.logits_via_embedding:
            _take_off_scale(grown, config, to)
        _fill_vocabulary(grown, config, ids_key)
        dtype = params["token_embedder"]["embedding"].dtype
        for path, shape in shapes.items():
            grown[path] = grown[path].reshape(shape).astype(dtype)
        return traverse_util.unflatten_dict(grown)

    def check_growth(self, config: T5Config, to: T5Config) -> None:
        draft = T5DraftConfig.of(config)
        if draft.head_ids is not None:
            raise ValueError(
                f"T5DraftConfig.head_ids names {len(draft.head_ids)} of {draft.vocab_size} ids; "
                "let a model with the whole head grow, and trim the head afterwards"
            )
        super().check_growth(config, to)
        layers = any(getattr(to, name) > getattr(config, name) for name in SIZES[-2:])
        if to.head_dim == 1 and (layers or to.num_heads > config.num_heads):
            raise ValueError("T5Config.head_dim is 1, and twins in an added head need two; give 2")
        if to.mlp_dim == 1 and layers:
            raise ValueError("T5Config.mlp_dim is 1, and twins in an added layer need two; give 2")
        if draft.markov_rank and to.vocab_size != config.vocab_size:
            raise ValueError(
                f"T5DraftConfig.vocab_size is {config.vocab_size} and would become "
                f"{to.vocab_size}; a model that fills in masks must keep it, because its last ids "
                f"are the masks; grow to a config with vocab_size = {config.vocab_size}"
            )

    def resized(self, config: T5Config, to: T5Config) -> T5Config:
        """Returns a config with the sizes of `to`, the config of another model.

        A drafter that reads its target's encoder output or states keeps its number of layers; its
        target is then taken to grow to the same sizes.
        """
        draft = T5DraftConfig.of(config)
        sizes = {name: getattr(to, name) for name in SIZES}
        if read := {name: to.emb_dim for name in _STREAMS[1:] if getattr(draft, name)}:
            sizes |= {name: getattr(config, name) for name in SIZES[-2:]}
        return dataclasses.replace(config, **sizes, **read)

    def logit_difference(
        self,
        params: PyTree,
        config: T5Config,
        others: PyTree,
        other: T5Config,
        key: Array,
        *,
        grown_by: Array | None = None,
    ) -> Difference:
        """Compares the logits of two models on random texts, over the ids of the first model.

        `grown_by`, the key of the second model's growth, is needed if the models read another
        model's outputs.
        """
        config, other = T5DraftConfig.of(config), T5DraftConfig.of(other)
        inputs, tokens = jax.random.randint(key, (2, *_TEXTS), 1, config.vocab_size)
        read = {
            name: jax.random.normal(jax.random.fold_in(key, width), (*_TEXTS, width))
            for name in _STREAMS[1:]
            if (width := getattr(config, name))
        }
        first = _logits(config, params, inputs, tokens, read)
        if grown_by is not None:
            streams = _streams(config, other, grown_by)
            read = {name: streams[name].of(x) for name, x in read.items()}
            if config.states_dim and config.logits_via_embedding:
                read["states_dim"] *= _shrunk(config, other)
        second = _logits(other, others, inputs, tokens, read)[..., : config.vocab_size]
        return Difference.between(first, second)


_TEXTS = (4, 32)  # how many texts are compared, and their tokens


@functools.partial(jax.jit, static_argnums=0)
def _logits(
    config: T5DraftConfig, params: PyTree, inputs: Array, tokens: Array, read: dict[str, Array]
) -> Array:
    model = T5Draft(config)
    if config.encoded_dim:
        cache = model.attach(params, read["encoded_dim"], inputs != config.pad_id, tokens.shape[1])
    else:
        cache = model.prefill(params, inputs, tokens.shape[1])
    return model.decode(params, tokens, cache, states=read.get("states_dim"))[0].logits


def _flat(tree: PyTree) -> dict[Path, PyTree]:
    return traverse_util.flatten_dict(tree)


def _streams(config: T5DraftConfig, to: T5DraftConfig, key: Array) -> dict[str, Stream]:
    """Returns the maps of the residual streams of a model and of those that it reads, by field."""
    widths = {name: (getattr(config, name), getattr(to, name)) for name in _STREAMS}
    stream_key = key_of_streams(key)
    return {name: Stream.create(stream_key, *both) for name, both in widths.items() if both[0]}


def _widened(x: Array, path: Path, axes: PartitionSpec, streams: dict[str, Stream]) -> Array:
    """Returns a parameter for the wider streams that it reads and writes."""
    stream = streams["emb_dim"]
    if path[-2] in _LOG_ODDS:
        return stream.of(x) * stream.ratio if x.ndim else x
    if path[-3:-1] in _OF_INPUTS and "encoded_dim" in streams:
        return streams["encoded_dim"].widen(x, 0)
    if axes[0] == "states":
        x = streams["states_dim"].widen(x, 0)
    if axes[0] == "embed":
        return stream.widen(x, 0)
    return stream.widen(x, x.ndim - 1) if axes[-1] == "embed" else x


def _take_off_scale(grown: dict[Path, PyTree], config: T5DraftConfig, to: T5DraftConfig) -> None:
    """Divides the decoder's last norm by the factor by which growth has increased tied logits."""
    grown["decoder", "decoder_norm", "scale"] *= math.sqrt(config.emb_dim / to.emb_dim)
    if config.states_dim:
        grown["decoder", "states_dense", "kernel"] /= _shrunk(config, to)
    for path in grown:
        if path[-2] in _LOG_ODDS and path[-1] == "weight":
            grown[path] *= math.sqrt(to.emb_dim / config.emb_dim)


def _shrunk(config: T5DraftConfig, to: T5DraftConfig) -> float:
    """Returns the factor by which growth multiplies the states of a target with tied logits."""
    assert config.states_dim and to.states_dim, "growth keeps it"
    return math.sqrt(config.states_dim / to.states_dim)


def _moved(path: Path, config: T5Config, to: T5Config) -> Path:
    """Returns the path of a layer's parameter in the larger model."""
    stack, layer, *rest = path
    number = layer.removeprefix("layers_")
    if number == layer:
        return path
    before, after = (getattr(size, f"num_{stack}_layers") for size in (config, to))
    return stack, f"layers_{(int(number) + 1) * after // before - 1}", *rest


def _by_head(x: Array, axes: PartitionSpec, config: T5Config) -> Array:
    """Reshapes [.., H * head_dim, ..] to [.., H, head_dim, ..], if there is such an axis."""
    if "joined_kv" not in axes:
        return x
    axis = tuple(axes).index("joined_kv")
    heads = (config.num_heads, config.head_dim)
    return x.reshape(*x.shape[:axis], *heads, *x.shape[axis + 1 :])


def _cancel_attention(grown: dict[Path, PyTree], module: Path, trained: T5Config | None) -> None:
    """Makes added parts of attention cancel: the added dimensions of old heads, and new heads."""
    heads, dims = (trained.num_heads, trained.head_dim) if trained else (0, 0)

    def apply(rule, name: str, axis: int, added: bool) -> None:
        path, by_head = (*module, name, "kernel"), axis - 1
        old, new = jnp.split(grown[path], [heads], axis=by_head)
        new = rule(new, 0, axis) if added else new
        grown[path] = jnp.concatenate([rule(old, dims, axis), new], axis=by_head)

    apply(alike, "query", 2, added=False)  # an added head may attend as it likes
    apply(opposed, "key", 2, added=False)
    apply(alike, "value", 2, added=True)
    apply(opposed, "out", 1, added=True)


def _cancel_mlp(grown: dict[Path, PyTree], module: Path, units: int) -> None:
    for path in grown:
        if path[:-2] == module:
            rule, axis = (opposed, 0) if path[-2] == "wo" else (alike, 1)
            grown[path] = rule(grown[path], units, axis)


def _fill_vocabulary(grown: dict[Path, PyTree], config: T5Config, key: Array) -> None:
    """Makes the projections of added ids random means of those of the old ids."""
    tied = config.logits_via_embedding
    path = ("token_embedder", "embedding") if tied else ("decoder", "logits_dense", "kernel")
    table = grown[path] if tied else grown[path].T
    old, added = jnp.split(table, [config.vocab_size])
    shares = jax.random.uniform(key, (len(added), len(old)), jnp.float32, 0.5, 1.5)
    shares = shares / jnp.sum(shares, axis=1, keepdims=True)
    table = jnp.concatenate([old, jnp.matmul(shares, old, precision=jax.lax.Precision.HIGHEST)])
    grown[path] = table if tied else table.T
