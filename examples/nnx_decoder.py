"""A causal decoder in Flax NNX: RoPE with learned frequencies, and generation with a cache.

It learns the text of Python's language reference, which pe_jax ships. The frequencies of RoPE are
parameters with a learning rate of their own. Then it continues a prompt: the prompt enters the
caches at once, each new token by itself, in a step that is compiled once.

    python examples/nnx_decoder.py --prompt="The statement"

prints (times are those of two CPU cores)

    step 100: 4.63 nats per token, of 6.93
    step 200: 3.53 nats per token, of 6.93
    step 300: 3.33 nats per token, of 6.93
    step 400: 3.15 nats per token, of 6.93
    Frequencies of the first layer have moved by 0.037 radians per position.
    2.0 ms per token with the cache:

    The statement, and "x" statement in the "try" statement.


    Ande a "str" statement instead of the "return" clause must be present, itself with the same
    object.
    A class method object, the attribute raises the attribute is called
"""

import argparse
import functools
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from tokenizers import ByteLevelBPETokenizer

from pe_jax import encodings
from pe_jax.nnx import MultiHeadAttention
from pe_jax.trainer.data import open_corpus


class Block(nnx.Module):
    def __init__(self, width, num_heads, *, rngs):
        self.attention_norm = nnx.RMSNorm(width, rngs=rngs)
        rotary = encodings.rope(
            head_size=width // num_heads,
            num_heads=num_heads,
            learnable=True,
            per_head=True,
        )
        self.attention = MultiHeadAttention(
            num_heads, width, rotary + encodings.causal(), rngs=rngs
        )
        self.mlp_norm = nnx.RMSNorm(width, rngs=rngs)
        self.up = nnx.Linear(width, 4 * width, rngs=rngs)
        self.down = nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, x, decode=False):
        x = x + self.attention(self.attention_norm(x), decode=decode)
        return x + self.down(nnx.gelu(self.up(self.mlp_norm(x))))


class Decoder(nnx.Module):
    def __init__(self, vocabulary, width, num_layers, num_heads, *, rngs):
        self.token = nnx.Embed(vocabulary, width, rngs=rngs)
        self.blocks = nnx.List(
            [Block(width, num_heads, rngs=rngs) for _ in range(num_layers)]
        )
        self.norm = nnx.RMSNorm(width, rngs=rngs)
        self.logits = nnx.Linear(width, vocabulary, rngs=rngs)

    def __call__(self, tokens, decode=False):
        x = self.token(tokens)
        for block in self.blocks:
            x = block(x, decode)
        return self.logits(self.norm(x))

    def init_cache(self, batch_size, length):
        for block in self.blocks:
            block.attention.init_cache(batch_size, length)


def make_optimizer(model, learning_rate, frequency_rate, steps):
    """AdamW; frequencies have a learning rate of their own and no weight decay."""

    def labels(params):
        of = lambda path, _: (
            "frequencies" if "frequencies" in jax.tree_util.keystr(path) else "rest"
        )
        return jax.tree_util.tree_map_with_path(of, params)

    decay = functools.partial(optax.cosine_decay_schedule, decay_steps=steps)
    transforms = {
        "frequencies": optax.adam(decay(frequency_rate)),
        "rest": optax.adamw(decay(learning_rate)),
    }
    return nnx.Optimizer(model, optax.partition(transforms, labels), wrt=nnx.Param)


def loss(model, tokens):
    """Nats per token, each predicted from those before it."""
    logits = model(tokens[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


@nnx.jit
def train_step(model, optimizer, tokens):
    value, grads = nnx.value_and_grad(loss)(model, tokens)
    optimizer.update(model, grads)
    return value


@nnx.jit
def decode_step(model, tokens, key):
    """The token that follows, drawn from the ten likeliest; `tokens` [1, T] enter the caches."""
    logits, ids = jax.lax.top_k(model(tokens, decode=True)[0, -1], 10)
    return ids[jax.random.categorical(key, logits / 0.7)]


def generate(model, prompt, count, key):
    """`count` ids that follow those of `prompt`."""
    model.init_cache(batch_size=1, length=len(prompt) + count)
    found, tokens = [], jnp.array([prompt])
    for own in jax.random.split(key, count):
        found.append(decode_step(model, tokens, own))
        tokens = found[-1][None, None]
    return [int(one) for one in found]


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--vocabulary", type=int, default=1024)
    parser.add_argument("--frequency_rate", type=float, default=1e-2)
    parser.add_argument("--prompt", default="The statement")
    parser.add_argument("--count", type=int, default=60)
    flags = parser.parse_args(arguments)

    text = "\n\n".join(open_corpus("pydoc").documents())
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator([text], flags.vocabulary, show_progress=False)
    ids = np.array(tokenizer.encode(text).ids)
    model = Decoder(
        flags.vocabulary, flags.width, num_layers=2, num_heads=4, rngs=nnx.Rngs(0)
    )
    optimizer = make_optimizer(model, 3e-3, flags.frequency_rate, flags.steps)
    frequencies = lambda: model.blocks[0].attention.position["rope"]["frequencies"][...]
    before, rng = frequencies(), np.random.default_rng(0)
    for step in range(1, flags.steps + 1):
        starts = rng.integers(0, len(ids) - flags.length - 1, 16)
        tokens = ids[starts[:, None] + np.arange(flags.length + 1)]
        value = train_step(model, optimizer, tokens)
        if step % max(flags.steps // 4, 1) == 0:
            print(
                f"step {step}: {value:.2f} nats per token, of {np.log(flags.vocabulary):.2f}"
            )

    change = jnp.abs(frequencies() - before).mean()
    print(
        f"Frequencies of the first layer have moved by {change:.3f} radians per position."
    )
    prompt = tokenizer.encode(flags.prompt).ids
    for seed in range(2):  # The first one compiles.
        start = time.perf_counter()
        found = generate(model, prompt, flags.count, jax.random.key(seed))
        seconds = time.perf_counter() - start
    print(f"{seconds / flags.count * 1e3:.1f} ms per token with the cache:\n")
    print(flags.prompt + tokenizer.decode(found))


if __name__ == "__main__":
    main()
