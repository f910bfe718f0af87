"""What an encoding says of itself."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pe_jax.encodings import ENCODINGS, WRAPPERS, from_name, parameter_count
from pe_jax.testing.checks.check import NotApplicable, Problems, check
from pe_jax.testing.subject import Subject


@check("parameters are nested by name, float32, and as many as `parameter_count` says")
def parameters(s: Subject) -> Problems:
    params = s.init(0)
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    if count != parameter_count(s.encoding):
        yield f"init made {count} parameters, its shapes say {parameter_count(s.encoding)}"
    parts = {part.key: part for part in s.encoding.parts}
    if strange := [k for k, values in params.items() if k not in parts or type(values) is not dict]:
        yield f"parameters are nested by name, {sorted(parts)}; {strange} are not"
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if leaf.dtype != jnp.float32:
            yield f"{jax.tree_util.keystr(path)} is {leaf.dtype}, not float32"
    for key, part in parts.items():
        leaves = {path[-1].key for path, _ in jax.tree_util.tree_leaves_with_path(params.get(key))}
        if strange := sorted(set(part.traits.frequency_params) - leaves):
            yield f"frequency_params has {strange}; the parameters are {sorted(leaves)}"


@check("the name parses back to the encoding")
def name(s: Subject) -> Problems:
    known = {*ENCODINGS, *WRAPPERS}
    if not all(part.name.partition("(")[0] in known for part in s.encoding.parts):
        raise NotApplicable("not registered with pe_jax.encodings.registered")
    again = from_name(s.name, **s.sizes)
    if again.name != s.name:
        yield f"the name parses to {again.name!r}"
    shapes, expected = (jax.eval_shape(e.init, jax.random.key(0)) for e in (again, s.encoding))
    if shapes != expected:
        yield f"what the name parses to has parameters {shapes}, not {expected}"
