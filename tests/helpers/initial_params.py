"""Parameters of a BERT as `init` has them. Drawn with NumPy, they take no time to compile."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.models import BertForMaskedLM, BertForPretraining


def initial_params(model, *inputs, **named):
    """Random kernels and embeddings, scales of 1, biases of 0; an encoding draws its own.

    Args:
      model: a module with a `BertConfig` as `config`.
      inputs, named: what `model.init` takes after the rng.
    """
    config, rng = model.config, np.random.default_rng(0)

    def draw(path, leaf):
        if path[-1].key in ("scale", "bias"):
            return jnp.asarray(np.full(leaf.shape, path[-1].key == "scale", leaf.dtype))
        return jnp.asarray(
            rng.normal(0, config.initializer_stddev, leaf.shape), leaf.dtype
        )

    shapes = jax.eval_shape(model.init, jax.random.key(0), *inputs, **named)["params"]
    params = jax.tree_util.tree_map_with_path(draw, shapes)
    encoder = params.get("bert", params)
    if "position" in encoder:
        init = jax.jit(config.encoding().init, static_argnums=1)
        encoder["position"] = init(jax.random.key(0), config.num_layers)
    return params


def shapes_of(model):
    """The shapes of a model's parameters; a masked-LM head needs positions as well."""
    one = np.zeros((1, 1), np.int32)
    has_masked_lm = isinstance(model, BertForMaskedLM | BertForPretraining)
    named = {"masked_positions": one} if has_masked_lm else {}
    return jax.eval_shape(
        functools.partial(model.init, **named), jax.random.key(0), one
    )["params"]
