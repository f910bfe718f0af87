"""What must hold of every encoding, check by check.

Tolerances are shares of the largest value that is expected.
"""

from __future__ import annotations

from collections.abc import Mapping

from pe_jax.testing.checks.check import Check, NotApplicable
from pe_jax.testing.checks.description import name, parameters
from pe_jax.testing.checks.documents import decoding, packing, padding
from pe_jax.testing.checks.numbers import forms, formula
from pe_jax.testing.checks.positions import limit, permutation, shift
from pe_jax.testing.checks.transformations import derivatives, draws, jit, precision, scan, vmap

__all__ = ["CHECKS", "Check", "NotApplicable"]

CHECKS: Mapping[str, Check] = {
    "formula": Check("outputs and gradients equal the float64 formula, pair by pair", formula),
    "forms": Check("every form of attention has the outputs and gradients of the naive", forms),
    "packing": Check("documents in a row, positions reset, give what each gives alone", packing),
    "padding": Check("padding on either side changes nothing", padding),
    "decoding": Check("token by token with a cache gives what a causal mask gives", decoding),
    "shift": Check("a shift of all positions moves outputs exactly if its card says so", shift),
    "permutation": Check("the order of tokens in memory does not matter", permutation),
    "limit": Check("a position past a limit is an error, and NaN where traced", limit),
    "precision": Check("float16 and bfloat16 keep their dtype and stay near float32", precision),
    "jit": Check("the same without jit", jit),
    "vmap": Check("the same under vmap over everything that is learned", vmap),
    "scan": Check("the same under scan over layers with jax.checkpoint", scan),
    "derivatives": Check("forward mode equals reverse mode, the Hessian is symmetric", derivatives),
    "draws": Check("what is drawn while training depends on the key alone", draws),
    "parameters": Check(
        "parameters are nested by name, float32, and as many as `parameter_count` says", parameters
    ),
    "name": Check("the name parses back to the encoding", name),
}
