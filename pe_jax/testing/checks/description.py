"""What an encoding says of itself."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pe_jax.encodings import ENCODINGS, WRAPPERS, from_name, parameter_count
from pe_jax.testing.checks.check import NotApplicable, Problems
from pe_jax.testing.subject import (
    Subject,
)


def parameters(s: Subject) -> Problems:
    params = s.init(0)
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    if count != parameter_count(s.encoding):
        yield f"init made {count} parameters, its shapes say {parameter_count(s.encoding)}"
    parts = {part.key: part for part in s.encoding.parts}
    if strange := [key for key, own in params.items() if key not in parts or type(own) is not dict]:
        yield f"parameters are nested by name, {sorted(parts)}; {strange} are not"
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if leaf.dtype != jnp.float32:
            yield f"{jax.tree_util.keystr(path)} is {leaf.dtype}, not float32"
    for key, part in parts.items():
        own = params.get(key, {})
        leaves = {path[-1].key for path, _ in jax.tree_util.tree_leaves_with_path(own)}
        if strange := sorted(set(part.traits.frequency_params) - leaves):
            yield f"frequency_params has {strange}; the parameters are {sorted(leaves)}"


def name(s: Subject) -> Problems:
    known = {*ENCODINGS, *WRAPPERS, "none"}
    if not all(part.name.partition("(")[0] in known for part in s.encoding.parts):
        raise NotApplicable("not registered in pe_jax.encodings.names")
    again = from_name(s.name, **s.sizes)
    if again.name != s.name:
        yield f"the name parses to {again.name!r}"
    shapes = lambda one: jax.tree.map(jnp.shape, jax.eval_shape(one.init, jax.random.key(0)))
    if shapes(again) != shapes(s.encoding):
        yield f"what the name parses to has parameters {shapes(again)}, not {shapes(s.encoding)}"
