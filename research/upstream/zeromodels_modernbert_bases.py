"""ZeroModels 1.3.6: bases and layer types of a ModernBERT config that transformers 5 wrote."""

import os

os.environ["KERAS_BACKEND"] = "jax"
import zeromodels
from transformers import ModernBertConfig
from zeromodels.models.modernbert import ModernBertModel

print("zeromodels", zeromodels.__version__)
kinds = ["full_attention", "sliding_attention"] * 2
bases = {"full_attention": 80_000.0, "sliding_attention": 20_000.0}
config = ModernBertConfig(
    num_hidden_layers=4,
    layer_types=kinds,
    rope_parameters={
        kind: {"rope_type": "default", "rope_theta": base}
        for kind, base in bases.items()
    },
).to_dict()
read = ModernBertModel.config_from_hf(config)
every = read["global_attn_every_n_layers"]
print("bases in the config:", bases)
print("bases read:", read["global_rope_theta"], read["local_rope_theta"])
print("global layers in the config:", [i for i in range(4) if "full" in kinds[i]])
print("global layers read:", [i for i in range(4) if i % every == 0])
