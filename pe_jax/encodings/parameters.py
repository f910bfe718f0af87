"""Parameters of an encoding, by part and by layer."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.encodings.part import Params, Part

if TYPE_CHECKING:
    from pe_jax.encodings.encoding import PositionEncoding


def split_params(
    encoding: PositionEncoding, params: Params | None
) -> list[tuple[Part, Params]]:
    """Return `encoding.parts`, each with its own parameters.

    Raises:
      ValueError: if parameters of a part are missing, are no floats, or have other shapes. Those
        that `Traits.resize` changes may have any number of rows where they limit positions.
    """
    if params is None:
        params = {}
    if not isinstance(params, Mapping):
        raise ValueError(
            "params must be the dict that encoding.init(rng) returned, got "
            f"{type(params).__name__}."
        )
    split = [(part, params.get(part.key, {})) for part in encoding.parts]
    missing = []
    strange = []
    for part, part_params in split:
        shapes = _shapes(part_params)
        _check_floats(part.key, part_params)
        for path, expected in _expected_shapes(part.init).items():
            place = f"{part.key}/{path}"
            shape = shapes.get(path)
            if shape is None:
                missing.append(place if part.key in params else part.key)
            elif shape != expected:
                has_other_rows = shape and shape[1:] == expected[1:]
                if not (has_other_rows and path in _resizable(part)):
                    strange.append(
                        f"{place} has shape {shape}, {part!r} has {expected}"
                    )
    if missing:
        raise ValueError(
            f"params lacks the parameters of {', '.join(dict.fromkeys(missing))}; got "
            f"{', '.join(params) or 'none'}. Pass what encoding.init(rng) returned."
        )
    if strange:
        raise ValueError(
            f"params has parameters of another encoding: {'; '.join(strange)}. Pass what "
            "encoding.init(rng) returned."
        )
    return split


def bind_params(
    encoding: PositionEncoding, params: Params
) -> dict[str, tuple[Part, Params]]:
    """Return all parts with their parameters, by place: `rope`, or `cycle_1/rope` of layers."""
    bound = {}
    for part, values in split_params(encoding, params):
        bound[part.key] = (part, values)
    indices: Sequence[int] = range(len(encoding.layers))
    if encoding.per_layer:
        layer_names = params.keys() - bound.keys()
        numbers = sorted(int(name.removeprefix("layer_")) for name in layer_names)
        indices = numbers or indices
    for index in indices:
        layer = encoding._at_layer(index)
        key = encoding._layer_key(index)
        if key in params or not _has_params(layer):
            for part, values in split_params(layer, params.get(key, {})):
                bound[f"{key}/{part.key}"] = (part, values)
    return bound


def frequency_mask(encoding: PositionEncoding, params: Params) -> Params:
    """Return a tree like `params`: True for parameters that are frequencies."""

    def mask(part: Part, params: Params) -> Params:
        names = part.traits.frequency_params
        return jax.tree_util.tree_map_with_path(
            lambda path, _: path[-1].key in names, params
        )

    return map_params(mask, encoding, params)


def map_params(
    function: Callable[[Part, Params], Params],
    encoding: PositionEncoding,
    params: Params,
) -> Params:
    """Return a tree like `params`, with `function(part, its parameters)` for each part."""
    mapped: Params = {}
    for place, (part, values) in bind_params(encoding, params).items():
        entry, _, key = place.rpartition("/")
        if values:
            inside = mapped.setdefault(entry, {}) if entry else mapped
            inside[key] = function(part, values)
    return mapped


def _has_params(layer: PositionEncoding) -> bool:
    return any(_expected_shapes(part.init) for part in layer.parts)


@functools.lru_cache(maxsize=512)
def _expected_shapes(init: Callable[[jax.Array], Params]) -> dict[str, tuple[int, ...]]:
    return _shapes(jax.eval_shape(lambda: init(jax.random.key(0))))


def _resizable(part: Part) -> list[str]:
    """Return the parameters whose shapes `Traits.resize` changes, where they limit positions."""
    resize = part.traits.resize
    if resize is None or not part.traits.max_length:
        return []
    drawn = jax.eval_shape(lambda: part.init(jax.random.key(0)))
    one = _shapes(jax.eval_shape(lambda params: resize(params, 1, "repeat"), drawn))
    two = _shapes(jax.eval_shape(lambda params: resize(params, 2, "repeat"), drawn))
    return [path for path in one if one[path] != two[path]]


def _check_floats(key: str, params: Params) -> None:
    """Raise a ValueError for parameters of integers, which were truncated, or complex numbers."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        dtype = getattr(leaf, "dtype", None)
        if dtype is not None and not jnp.issubdtype(dtype, jnp.floating):
            place = f"{key}/{leaf_path(path)}"
            raise ValueError(
                f"params[{place!r}] must be floating, got {dtype}. Pass what encoding.init(rng) "
                "returned, possibly trained since."
            )


def _shapes(params: Params) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a part's parameters by path, `hidden/kernel`."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return {leaf_path(path): np.shape(leaf) for path, leaf in leaves}


def leaf_path(path: jax.tree_util.KeyPath) -> str:
    """Return the path of a leaf in a tree of parameters as text, `hidden/kernel`."""
    return jax.tree_util.keystr(path, simple=True, separator="/")
