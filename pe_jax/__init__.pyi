from pe_jax import adapters as adapters
from pe_jax import attention as attention
from pe_jax import encodings as encodings
from pe_jax import golden as golden
from pe_jax import interop as interop
from pe_jax import linen as linen
from pe_jax import models as models
from pe_jax import nnx as nnx
from pe_jax import properties as properties
from pe_jax import testing as testing
from pe_jax import trainer as trainer

__version__: str
MODULES: tuple[str, ...]
