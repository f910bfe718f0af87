"""Order sensitivity of a student and its teacher, on held-out text of their run."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax import properties
from pe_jax.models import BertConfig, LayerOutputs
from pe_jax.trainer import data
from pe_jax.trainer.tasks.imitation import outputs_of
from pe_jax.trainer.tasks.run import Program
from pe_jax.trainer.tasks.text_split import TextSplit
from pe_jax.trainer.training import sharding
from pe_jax.trainer.training.pytrees import Batch, Params, Scalars
from pe_jax.trainer.training.step import cache_by_arguments

_TEXTS = 32
_LONGEST = 128


def order_scores(
    program: Program, teacher: BertConfig, params: Params, text: TextSplit, longest: int
) -> tuple[Callable[[Params], Scalars], Scalars]:
    """Return `scores(params)` of the student of `program`, and the scores of its teacher.

    They are the fields of `OrderSensitivity` by kind of shuffle, `order/words/pooled` and so on, of
    at most 32 texts of at most 128 tokens. Those that are not defined are left out, such as of
    sentences where every text is one.

    Args:
      params: of the teacher's `Bert`.
      longest: the most tokens of an input.
    """
    template = text.vocabulary.single
    starts = text.held_out.sentences[text.held_out.documents]
    size = int(np.diff(starts)[text.held_out_documents].max())
    size = min(size, min(longest, _LONGEST) - template.size)
    inside, begins = data.pieces(text.held_out, text.held_out_documents, _TEXTS, size)
    tokens = np.stack([template.join(piece) for piece in inside])
    ends = (len(template.before), len(template.after))
    orders = properties.shuffled_orders(begins, ends=ends)

    def states(outputs: Callable[..., LayerOutputs], params: Params) -> jax.Array:
        everywhere = sharding.replicated(program.mesh)
        arguments = (program.shardings_of(params), everywhere, everywhere)
        compute = sharding.compiled(_states_of(outputs), program.mesh, arguments)
        return compute(params, tokens, orders)

    targets = states(outputs_of(teacher, program.mesh, program.parallel), params)

    def scores(params: Params) -> Scalars:
        ours = states(program.task.outputs, params)
        return _scalars(properties.order_sensitivity(ours, orders, targets))

    return scores, _scalars(properties.order_sensitivity(targets, orders))


@cache_by_arguments
def _states_of(
    outputs: Callable[[Params, Batch], LayerOutputs],
) -> Callable[..., jax.Array]:
    """Return `states(params, tokens, orders)`: the last layer's, see `states_by_order`."""

    def last(params: Params, tokens: jax.Array) -> jax.Array:
        inputs = {
            "tokens": tokens,
            "token_type_ids": jnp.zeros_like(tokens),
            "document_ids": jnp.ones_like(tokens),
        }
        return outputs(params, inputs).hidden[-1]

    return functools.partial(properties.states_by_order, last)


def _scalars(sensitivity: properties.OrderSensitivity) -> Scalars:
    scores = {}
    for field, values in vars(sensitivity).items():
        if values is None:
            continue
        for kind, value in zip(properties.SHUFFLES, np.asarray(values), strict=True):
            if np.isfinite(value):
                scores[f"order/{kind}/{field}"] = float(value)
    return scores
