"""The one convention for shapes: `Float[Array, "B L H d"]` on every public function (jaxtyping).

Arguments are `Float[Array, ...]`, of JAX or NumPy. Results of public functions say which: mostly
`Float[jax.Array, ...]`. `Array` would be `Any` to a type checker, and so are the results of
`jax.jit`, hence `pe_jax.properties.compiled`.

The letters mean the same everywhere; `*B` stands for any number of leading axes, `#B` for an axis
that may be 1. The tests check every annotation of encodings, attention and properties on each call.

    B  batch                     L, Lq, Lk  length, of queries, of keys
    H  heads                     D          hidden size
    d  head size                 F          frequencies, half of D or d
    V  vocabulary                P          predictions a row
    A  axes of a position        M, N       anything else that is counted
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jaxtyping import Bool, Float, Int, Real

if TYPE_CHECKING:
    # JAX and NumPy arrays mix freely; their shapes are checked at run time.
    Array = Any
    Size = int  # Of an axis.
else:
    Array = jax.Array | np.ndarray
    Size = Any  # An int, or symbolic where `jax.export` traces.

Leaf = Any  # An array of a pytree, or what JAX puts in its place while it builds or maps one.

__all__ = ["Array", "Bool", "Float", "Int", "Leaf", "Real", "Size"]
