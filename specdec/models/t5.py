"""T5 (v1.0, v1.1 and their descendants) with T5X's parameter tree, as a `Target`."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, cast

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import traverse_util
from flax.core import meta

from specdec.models.cache import KVCache
from specdec.models.layers import (
    ACTIVATIONS,
    MASKED,
    MLP,
    Attention,
    Embedding,
    Logits,
    RelativeBias,
    RMSNorm,
    constrain,
)
from specdec.models.serving import (
    Layout,
    best_layout,
    check_layout,
    logits_from_table,
    read_in_step,
    to_checkpoint,
    to_serving,
)
from specdec.types import Array, ModelOutput, PyTree


@dataclasses.dataclass(frozen=True)
class T5Config:
    """The architecture. Fields have T5X's names and meaning; the defaults are those of v1.1.

    v1.0: mlp_activations=('relu',), logits_via_embedding=True (logits are then scaled by
    1/sqrt(emb_dim)). `dtype` is that of matrix products and of the KV cache, 'float32' or
    'bfloat16'; parameters may be stored in another one. With `relative_bias_per_layer` every layer
    has relative-position biases of its own, as in models trained with T5X's scalable_t5.
    """

    vocab_size: int
    emb_dim: int
    num_heads: int
    head_dim: int
    mlp_dim: int
    num_encoder_layers: int
    num_decoder_layers: int
    mlp_activations: tuple[str, ...] = ("gelu", "linear")
    logits_via_embedding: bool = False
    dtype: str = "float32"
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    relative_bias_per_layer: bool = False
    layer_norm_epsilon: float = 1e-6

    def __post_init__(self):
        # gin and JSON hand over lists and dtype objects; a static argument must be hashable.
        object.__setattr__(self, "mlp_activations", tuple(self.mlp_activations))
        object.__setattr__(self, "dtype", jnp.dtype(self.dtype).name)
        if self.dtype not in ("float32", "bfloat16"):
            raise ValueError(f"T5Config.dtype is {self.dtype!r}; use 'float32' or 'bfloat16'")
        for activation in self.mlp_activations:
            if activation not in ACTIVATIONS:
                raise ValueError(
                    f"T5Config.mlp_activations has {activation!r}; known: {', '.join(ACTIVATIONS)}"
                )
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.type == "int" and (not isinstance(value, int) or value < 1):
                raise ValueError(f"T5Config.{field.name} is {value!r}; give a positive integer")


def _residual(x: Array) -> Array:
    """The stream between sub-layers, which every device has whole: each sub-layer of a model that
    is divided over devices then ends in one sum over them."""
    return constrain(x, "batch", "length", "embed")


def _norm(config: T5Config, name: str | None = None) -> RMSNorm:
    return RMSNorm(config.dtype, config.layer_norm_epsilon, name=name)


def _attention(config: T5Config, transposed: tuple[str, ...] = ()) -> Attention:
    return Attention(config.num_heads, config.head_dim, config.emb_dim, config.dtype, transposed)


def _mlp(config: T5Config, transposed: bool = False) -> MLP:
    return MLP(config.mlp_dim, config.emb_dim, config.mlp_activations, config.dtype, transposed)


def _relative_bias(config: T5Config, bidirectional: bool) -> RelativeBias:
    return RelativeBias(
        config.num_heads,
        config.relative_attention_num_buckets,
        config.relative_attention_max_distance,
        bidirectional,
    )


def _mask(visible: Array) -> Array:
    return jnp.where(visible, 0.0, MASKED)


def _biases(stack: Encoder | Decoder, queries: Array, keys: Array, mask: Array) -> list[Array]:
    """For each layer its relative-position bias, or that of the stack, and the mask."""
    if stack.config.relative_bias_per_layer:
        return [layer.relpos_bias(queries, keys) + mask for layer in stack.layers]
    return [stack.relpos_bias(queries, keys) + mask] * len(stack.layers)


class EncoderLayer(nn.Module):
    config: T5Config

    def setup(self):
        if self.config.relative_bias_per_layer:
            self.relpos_bias = _relative_bias(self.config, bidirectional=True)
        self.pre_attention_layer_norm = _norm(self.config)
        self.attention = _attention(self.config)
        self.pre_mlp_layer_norm = _norm(self.config)
        self.mlp = _mlp(self.config)

    def __call__(self, x: Array, bias: Array) -> Array:
        y = self.pre_attention_layer_norm(x)
        x = _residual(x + self.attention.over_itself(y, bias))
        return _residual(x + self.mlp(self.pre_mlp_layer_norm(x)))


class Encoder(nn.Module):
    config: T5Config

    def setup(self):
        if not self.config.relative_bias_per_layer:
            self.relpos_bias = _relative_bias(self.config, bidirectional=True)
        self.layers = [EncoderLayer(self.config) for _ in range(self.config.num_encoder_layers)]
        self.encoder_norm = _norm(self.config)

    def __call__(self, x: Array, inputs_mask: Array) -> Array:
        """[B, S, D] embeddings and [B, S] bool -> [B, S, D]."""
        positions = jnp.arange(x.shape[1])[None]
        biases = _biases(self, positions, positions, _mask(inputs_mask[:, None, None, :]))
        for layer, bias in zip(self.layers, biases, strict=True):
            x = layer(x, bias)
        return self.encoder_norm(x)


class DecoderLayer(nn.Module):
    config: T5Config
    transposed: bool  # the kernels that a step reads are [out, in]

    def setup(self):
        if self.config.relative_bias_per_layer:
            self.relpos_bias = _relative_bias(self.config, bidirectional=False)
        self.pre_self_attention_layer_norm = _norm(self.config)
        in_step = ("query", "key", "value", "out") if self.transposed else ()
        self.self_attention = _attention(self.config, in_step)
        self.pre_cross_attention_layer_norm = _norm(self.config)
        in_step = ("query", "out") if self.transposed else ()  # the others are of the prefill
        self.encoder_decoder_attention = _attention(self.config, in_step)
        self.pre_mlp_layer_norm = _norm(self.config)
        self.mlp = _mlp(self.config, self.transposed)

    def __call__(
        self, x: Array, cache: KVCache, layer: int, bias: Array, cross_bias: Array
    ) -> tuple[Array, KVCache]:
        y = self.pre_self_attention_layer_norm(x)
        cache = cache.write(layer, *self.self_attention.keys_values(y))
        y = self.self_attention.over_cache(y, cache.keys[layer], cache.values[layer], bias)
        x = _residual(x + y)
        y = self.pre_cross_attention_layer_norm(x)
        y = self.encoder_decoder_attention.over_inputs(
            y, cache.cross_keys[layer], cache.cross_values[layer], cross_bias
        )
        x = _residual(x + y)
        y = self.mlp(self.pre_mlp_layer_norm(x))
        return _residual(x + y), cache


class Decoder(nn.Module):
    config: T5Config
    layout: Layout

    def setup(self):
        config, transposed = self.config, self.layout == "out_in"
        if not config.relative_bias_per_layer:
            self.relpos_bias = _relative_bias(config, bidirectional=False)
        self.layers = [DecoderLayer(config, transposed) for _ in range(config.num_decoder_layers)]
        self.decoder_norm = _norm(config)
        if not logits_from_table(config, self.layout):
            self.logits_dense = Logits(
                config.vocab_size, scaled=config.logits_via_embedding, transposed=transposed
            )

    def cross_keys_values(self, encoded: Array) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        """[B, S, D] -> per layer keys [B, H, head_dim, S] and values [B, H, S, head_dim]."""
        pairs = [layer.encoder_decoder_attention.keys_values(encoded) for layer in self.layers]
        keys, values = zip(*pairs, strict=True)
        return tuple(jnp.moveaxis(x, 1, 3) for x in keys), tuple(x.swapaxes(1, 2) for x in values)

    def __call__(self, x: Array, cache: KVCache) -> tuple[Array, KVCache]:
        """[B, T, D] embeddings at the positions cache.length + (0..T-1) -> [B, T, D]."""
        cache = cache.placed()
        queries = cache.positions(x.shape[1])
        slots = jnp.arange(cache.capacity)[None]
        # The query's row is its absolute position; it sees every slot up to itself.
        mask = _mask(slots[:, None, None, :] <= queries[:, None, :, None])
        cross_bias = _mask(cache.inputs_mask[:, None, None, :])
        biases = _biases(self, queries, slots, mask)
        for i, (layer, bias) in enumerate(zip(self.layers, biases, strict=True)):
            x, cache = layer(x, cache, i, bias, cross_bias)
        return self.decoder_norm(x), cache.rewind(cache.length + x.shape[1])


class T5(nn.Module):
    """The network: `encode` once, then `decode` block by block. `T5Target` is its interface."""

    config: T5Config
    layout: Layout = "checkpoint"

    def setup(self):
        config = self.config
        self.token_embedder = Embedding(config.vocab_size, config.emb_dim, config.dtype)
        self.encoder = Encoder(config)
        self.decoder = Decoder(config, self.layout)

    def encode(self, inputs: Array, capacity: int) -> KVCache:
        config = self.config
        inputs_mask = inputs > 0
        encoded = self.encoder(self.token_embedder(inputs), inputs_mask)
        cross_keys, cross_values = self.decoder.cross_keys_values(encoded)
        return KVCache.create(
            inputs.shape[0],
            capacity,
            layers=config.num_decoder_layers,
            heads=config.num_heads,
            head_dim=config.head_dim,
            dtype=config.dtype,
            cross_keys=cross_keys,
            cross_values=cross_values,
            encoded=encoded,
            inputs_mask=inputs_mask,
        )

    def decode(self, tokens: Array, cache: KVCache) -> tuple[ModelOutput, KVCache]:
        hidden, cache = self.decoder(self.token_embedder(tokens), cache)
        project = (
            self.token_embedder.logits
            if logits_from_table(self.config, self.layout)
            else self.decoder.logits_dense
        )
        return ModelOutput(logits=project(hidden), hidden=hidden), cache

    def __call__(self, inputs: Array, tokens: Array) -> ModelOutput:
        return self.decode(tokens, self.encode(inputs, tokens.shape[1]))[0]


@dataclasses.dataclass(frozen=True)
class T5Target:
    """T5 as a `Target`, also as the model of a drafter. Parameters are T5X's tree, unwrapped, or
    what `serving` makes of it.

    rules: pairs of a logical axis name and the mesh axis, or None, it is divided over, for all that
      is computed under a mesh (`jax.set_mesh`); `specdec.partitioning` has the usual ones. A field,
      and not Linen's context, because the compiled program depends on them.
    layout: how the decoder's parameters are kept, which `serving` chooses for a device;
      `specdec.models.serving` has the choices.
    """

    config: T5Config
    rules: tuple[tuple[str, str | None], ...] = ()
    layout: Layout = "checkpoint"

    def __post_init__(self):
        check_layout("T5Target.layout", self.layout)
        object.__setattr__(self, "rules", tuple(map(tuple, self.rules)))

    def init(self, key: Array) -> PyTree:
        """Random float32 parameters, distributed as T5X initialises them: in every layout the same
        numbers."""
        return to_serving(meta.unbox(_boxed(T5(self.config), key)), self.config, self.layout)

    def axes(self) -> PyTree:
        """T5X's logical axis names: the parameters' tree, with a PartitionSpec of names each."""
        boxed = functools.partial(_boxed, T5(self.config, self.layout))
        return nn.get_partition_spec(jax.eval_shape(boxed, jax.random.key(0)))

    def laid_out(self, *, tokens: int, platform: str | None = None) -> T5Target:
        """This target in the layout that `serving` gives it; the arguments are those."""
        platform = platform or jax.default_backend()
        layout = best_layout(platform, tokens, _step_bytes(self.config))
        return dataclasses.replace(self, layout=layout)

    def serving(
        self, params: PyTree, *, tokens: int = 2, platform: str | None = None
    ) -> tuple[T5Target, PyTree]:
        """The same function as a device computes it fastest: this target with the layout for it,
        and the parameters so.

        Logits are equal up to the order of summation, so a near-tie can fall another way. Arrays
        that keep their shape are shared with `params`; drop those for the memory of the others.

        Args:
          params: in this target's layout.
          tokens: rows times tokens of the widest of its usual calls: at batch 1 that is 1 for the
            model alone, 2 for a drafter, and gamma + 1 for the target that verifies.
          platform: JAX's name; None for that of the default device.

        Raises:
          ValueError: tokens is not positive.
        """
        target = self.laid_out(tokens=tokens, platform=platform)
        if target.layout != self.layout:
            params = to_checkpoint(params, self.config, self.layout)
            params = to_serving(params, self.config, target.layout)
        return target, params

    def start(self, inputs: Array) -> Array:
        """T5 starts decoding from its padding id."""
        return jnp.zeros(inputs.shape[0], jnp.int32)

    def prefill(self, params: PyTree, inputs: Array, capacity: int) -> KVCache:
        """Encodes [B, S] int32 inputs (0 = padding) and computes the cross-attention's K/V."""
        return cast(KVCache, self._apply(params, inputs, capacity, method="encode"))

    def decode(
        self, params: PyTree, tokens: Array, cache: KVCache, *, resume=None, ancestors=None
    ) -> tuple[ModelOutput, KVCache]:
        """Feeds [B, T] int32 tokens; see `Target.decode`. Only chains from layer 0 so far."""
        if resume is not None or ancestors is not None:
            raise ValueError("T5Target.decode takes neither resume nor ancestors; pass None")
        result = self._apply(params, tokens, cache, method="decode")
        return cast(tuple[ModelOutput, KVCache], result)

    def read_by_decode(self, params: PyTree) -> PyTree:
        """The part of the parameters that a call of `decode` reads as a whole. Not the kernels that
        make cross-attention's keys and values, which `prefill` has used up; and of the embedding
        only the fed tokens' rows are read, unless that projects to the logits."""
        decoder = traverse_util.flatten_dict(params["decoder"])
        read = {"decoder": traverse_util.unflatten_dict(read_in_step(decoder))}
        if logits_from_table(self.config, self.layout):
            read["token_embedder"] = params["token_embedder"]
        return read

    def _apply(self, params: PyTree, *arguments, method: str) -> Any:
        with nn.logical_axis_rules(self.rules):
            network = T5(self.config, self.layout)
            return network.apply({"params": params}, *arguments, method=method)


def _boxed(network: T5, key: Array) -> PyTree:
    """Initial parameters with their axes' names."""
    tokens = jnp.zeros([1, 1], jnp.int32)
    return network.init(key, tokens, tokens)["params"]


@functools.cache
def _step_bytes(config: T5Config) -> int:
    """Of the parameters that a call of `decode` reads, in the dtype that it computes in."""
    target = T5Target(config)
    read = target.read_by_decode(jax.eval_shape(target.init, jax.random.key(0)))
    return sum(leaf.size for leaf in jax.tree.leaves(read)) * jnp.dtype(config.dtype).itemsize
