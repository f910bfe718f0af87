"""What the comparisons with PyTorch's modules share."""

import jax.numpy as jnp
import numpy as np


def loud(torch, module, stddev):
    """Weights that are louder than fresh ones, biases among them."""
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(stddev * torch.randn_like(weight))
    return module.eval()


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def array(tensor):
    return jnp.asarray(tensor.detach().numpy())
