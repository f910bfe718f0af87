"""An encoding of one's own in ten lines, inside a tiny model.

Each head attends around an offset of its own, which it learns: the bias is a parabola with a centre
and a width for each head. The task is to say which token was three places to the left, so one
expects a head that finds offset -3. docs/own-encoding.md has the long version, with the checks that
all encodings pass.

    python examples/own_encoding.py

prints

    none: 17% right; guessing gives 6%
    parabola: 100% right; guessing gives 6%
      head 0 attends around offset -3.0, width 0.6
      head 1 attends around offset -2.4, width 1.3
      head 2 attends around offset -0.4, width 3.7
      head 3 attends around offset +0.1, width 2.6
"""

import argparse

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from pe_jax import encodings
from pe_jax.encodings import OffsetTerms, Part
from pe_jax.linen import MultiHeadAttention

VOCABULARY, BACK = 16, 3


@encodings.define_encoding
def parabola(*, num_heads: int, width: float = 3.0) -> Part:
    """-((j - i - centre_h) / width_h)² / 2, its centres from -2 to 2 at the start."""

    def bias(params, offset, context):  # Offsets j - i [...], so a bias [..., H].
        return -(((offset[..., None] - params["centre"]) / params["width"]) ** 2) / 2

    def init(rng):
        return {
            "centre": jnp.linspace(-2, 2, num_heads),
            "width": jnp.full(num_heads, width),
        }

    return Part(init=init, offsets=OffsetTerms(bias=bias))


class Tiny(nn.Module):
    """One layer of attention between an embedding and logits."""

    encoding: encodings.PositionEncoding

    @nn.compact
    def __call__(self, tokens):
        x = nn.Embed(VOCABULARY, 32)(tokens)
        x = MultiHeadAttention(num_heads=4, encoding=self.encoding, name="attention")(x)
        return nn.Dense(VOCABULARY)(x)


def train(encoding, steps):
    """Parameters, and the share of right answers in the last tenth of the steps."""
    model, optimizer = Tiny(encoding), optax.adam(1e-2)
    params = jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, 24), int))["params"]

    def loss(params, tokens):
        logits, wanted = (
            model.apply({"params": params}, tokens)[:, BACK:],
            tokens[:, :-BACK],
        )
        right = (logits.argmax(-1) == wanted).mean()
        return optax.softmax_cross_entropy_with_integer_labels(
            logits, wanted
        ).mean(), right

    def step(carry, key):
        params, state = carry
        tokens = jax.random.randint(key, (32, 24), 0, VOCABULARY)
        grads, right = jax.grad(loss, has_aux=True)(params, tokens)
        updates, state = optimizer.update(grads, state)
        return (optax.apply_updates(params, updates), state), right

    @jax.jit
    def run(params):
        keys = jax.random.split(jax.random.key(1), steps)
        (params, _), right = jax.lax.scan(step, (params, optimizer.init(params)), keys)
        return params, right[-max(steps // 10, 1) :].mean()

    return run(params)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=600)
    flags = parser.parse_args(arguments)
    for encoding in (encodings.none(), parabola(num_heads=4)):
        params, right = train(encoding, flags.steps)
        print(
            f"{encoding.name}: {right:.0%} right; guessing gives {1 / VOCABULARY:.0%}"
        )
    heads = params["attention"]["position"]["parabola"]
    for head, (centre, width) in enumerate(
        zip(heads["centre"], jnp.abs(heads["width"]))
    ):
        print(f"  head {head} attends around offset {centre:+.1f}, width {width:.1f}")


if __name__ == "__main__":
    main()
