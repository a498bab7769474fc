"""A few tokens times a kernel: the orders in which it can be computed.

    order            the kernel is kept    computed
    "in_out"         [in, out]             x @ kernel
    "out_in"         [out, in]             x @ kernel.T
    "kernel_first"   [out, in]             (kernel @ x.T).T, 5 tokens and more filled up to 8, 16

They are one function up to the order of summation. Which of them is fast differs between devices,
and with the number of tokens; `specdec.models.device` measures it.
"""

from __future__ import annotations

import dataclasses
from typing import Literal, TypeAlias, get_args

import jax
import jax.numpy as jnp

from specdec.types import Array

Order: TypeAlias = Literal["in_out", "out_in", "kernel_first"]
Orders: TypeAlias = tuple[tuple[int, Order], ...]
ORDERS: tuple[Order, ...] = get_args(Order)
BLOCK = 8  # tokens; 5 to 7 of them take longer than 8


@dataclasses.dataclass(frozen=True)
class Kernels:
    """How the kernels of a module are kept, and in which order calls are computed with them.

    transposed: they are [out, in].
    orders: pairs of the tokens of a call, of all rows, and its order.
    others: the order of other calls; None for x first.
    int8: they have eight bits, see `specdec.models.int8`.
    """

    transposed: bool = False
    orders: Orders = ()
    others: Order | None = None
    int8: bool = False

    def order(self, tokens: int) -> Order:
        """Of a call of so many tokens."""
        others = self.others or ("out_in" if self.transposed else "in_out")
        return dict(self.orders).get(tokens, others)


def described(layout: str, orders: Orders) -> str:
    """A model's layout in words: 'out_in, kernel_first at 1 and 8 tokens'."""
    by_order: dict[str, list[str]] = {}
    for tokens, order in orders:
        by_order.setdefault(order, []).append(str(tokens))
    return "".join([layout, *(f", {o} at {' and '.join(n)} tokens" for o, n in by_order.items())])


STORED = Kernels()  # as checkpoints have them


def product(x: Array, kernel: Array, order: Order, **options) -> Array:
    """[tokens, in] times a kernel, kept as the order has it -> [tokens, out].

    options: `precision` and `preferred_element_type`, as `jax.numpy.matmul` takes them.
    """
    if order == "in_out":
        return jnp.matmul(x, kernel, **options)
    if order == "out_in":
        return jnp.inner(x, kernel, **options)  # contracts both last axes
    tokens = x.shape[0]
    if tokens > BLOCK // 2:
        x = jnp.pad(x, ((0, -tokens % BLOCK), (0, 0)))
    y = jax.lax.dot_general(kernel, x, (((1,), (1,)), ((), ())), **options)
    # Without the barrier XLA would swap the operands, to save the transposition.
    return jax.lax.optimization_barrier(y).T[:tokens]
