"""The orders in which the product of a few tokens and a kernel can be computed.

  order            the kernel is kept    computed
  "in_out"         [in, out]             x @ kernel
  "out_in"         [out, in]             x @ kernel.T
  "kernel_first"   [out, in]             (kernel @ x.T).T, 5 tokens and more filled up to 8, 16;
                                         x @ kernel.T from 257 on
  "unsigned"       [out, in] + 128       ((kernel + 128) @ x.T).T, see `unsigned`; int8 only
  "unsigned_many"  [out, in]             (x + 128) @ kernel.T, see `unsigned_many`; int8 only

The results are equal up to the order of summation, and those of int8 operands are equal. The
fastest order depends on the device and on the number of tokens, and
`specdec.models.placement.device` measures it.
"""

from __future__ import annotations

import dataclasses
from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.typing import DTypeLike
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from specdec.types import Array

Order: TypeAlias = Literal["in_out", "out_in", "kernel_first", "unsigned", "unsigned_many"]
Orders: TypeAlias = tuple[tuple[int, Order], ...]
ORDERS: tuple[Order, ...] = ("in_out", "out_in", "kernel_first")
Fused: TypeAlias = Literal["triton", "mosaic"]  # kernels of our own, by Pallas's backend
INT8_ORDERS: tuple[Order, ...] = (*ORDERS, "unsigned")
SHIFT = 128  # added to the levels of kernels that are multiplied as unsigned numbers
BLOCK = 8  # tokens; 5 to 7 of them take longer than 8
FEW = 256  # tokens; the result of more would take long to transpose


@dataclasses.dataclass(frozen=True)
class Kernels:
    """The storage of a module's kernels, and the order of the products with them.

    Args:
      transposed: whether kernels are [out, in].
      orders: pairs (the number of tokens of a call, over all rows; the order of its products).
      others: the order of other calls; None for "out_in" if transposed, else "in_out".
      int8: whether kernels are rounded to eight bits, see `specdec.models.layers.int8`.
      int8_tokens: whether tokens are rounded to eight bits as well.
      widened: whether the int8 numbers are kept, and multiplied, in the model's dtype.
      joined: whether kernels of the same input are one, see `models.placement.layouts.joined`.
      in_order: the field of `layers.attention.AttentionPolicy`.
    """

    transposed: bool = False
    orders: Orders = ()
    others: Order | None = None
    int8: bool = False
    int8_tokens: bool = False
    widened: bool = False
    joined: bool = False
    in_order: bool = False

    def order(self, tokens: int) -> Order:
        """Returns the order of the products of a call on this number of tokens over all rows."""
        others = self.others or ("out_in" if self.transposed else "in_out")
        return dict(self.orders).get(tokens, others)

    @property
    def unsigned(self) -> bool:
        """Whether kernels in eight bits are unsigned, see `products.unsigned`."""
        return self.others == "unsigned"


STORED_KERNELS = Kernels()  # as checkpoints have them


def precision(dtype: DTypeLike) -> jax.lax.Precision | None:
    """Returns the precision of products, which is the highest for float32.

    By default, accelerators multiply float32 with fewer bits.
    """
    return jax.lax.Precision.HIGHEST if jnp.dtype(dtype) == jnp.float32 else None


def product(x: Array, kernel: Array, order: Order, **options) -> Array:
    """Returns x [tokens, in] times a kernel in the storage of this order, [tokens, out].

    `options` are `precision` and `preferred_element_type` of `jax.numpy.matmul`.
    """
    tokens = x.shape[0]
    if order == "unsigned":
        return unsigned(x, kernel)
    if order == "unsigned_many":
        return unsigned_many(x, kernel)
    if order == "in_out":
        return jnp.matmul(x, kernel, **options)
    if order == "out_in" or tokens > FEW:
        return jnp.inner(x, kernel, **options)  # contracts both last axes
    if tokens > BLOCK // 2:
        x = jnp.pad(x, ((0, -tokens % BLOCK), (0, 0)))
    y = jax.lax.dot_general(kernel, x, (((1,), (1,)), ((), ())), **options)
    # Without the barrier XLA would swap the operands, to save the transposition.
    return jax.lax.optimization_barrier(y).T[:tokens]


@jax.jit
def unsigned(x: Array, kernel: Array) -> Array:
    """Returns x int8 [tokens, in] times a kernel of whole numbers, [tokens, out] int32.

    Processors with AVX-512 VNNI, and without AMX, multiply unsigned numbers of eight bits by signed
    ones. So the kernel, the first operand, is [out, in] uint8, its numbers k plus `SHIFT` = 128:

      x @ k.T = x @ (k + 128).T - 128 * the sum of each token's numbers.

    `jax.lax.dot_general` would convert operands of two dtypes to int32 first.
    """
    y = jax.lax.optimization_barrier(_mixed.bind(kernel, x)).T  # else XLA swaps the operands
    return y - SHIFT * jnp.sum(x, axis=1, keepdims=True, dtype=jnp.int32)


@jax.jit
def unsigned_many(x: Array, kernel: Array) -> Array:
    """Returns x int8 [tokens, in] times the transpose of int8 [out, in], [tokens, out] int32.

    Here the tokens are unsigned and the first operand, which is faster for hundreds of tokens. The
    product of an added token of zeros is the excess of the shift, and is subtracted from all.
    """
    y = _mixed.bind(shifted(jnp.pad(x, ((0, 1), (0, 0)))), kernel)
    return y[:-1] - y[-1:]


def shifted(levels: Array) -> Array:
    """Maps int8 levels to uint8 ones that are `SHIFT` larger."""
    return (levels.astype(jnp.int16) + SHIFT).astype(jnp.uint8)


_mixed = Primitive("mixed_product")


@_mixed.def_abstract_eval
def _shape(x: ShapedArray, y: ShapedArray) -> ShapedArray:
    return ShapedArray((x.shape[0], y.shape[0]), jnp.dtype(jnp.int32))


def _lowered(context: mlir.LoweringRuleContext, x: ir.Value, y: ir.Value) -> list[ir.Value]:
    shape = context.avals_out[0].shape
    axes = stablehlo.DotDimensionNumbers.get([], [], [1], [1])
    kind = ir.RankedTensorType.get(shape, ir.IntegerType.get_signless(32))
    return [stablehlo.dot_general(kind, x, y, axes)]


mlir.register_lowering(_mixed, _lowered)
