"""The encodings of the comparison can be built, each once, controls first."""

from pe_jax import encodings
from research.which_encoding.names import NOT_POSITIONS, encodings_to_compare


def test_every_name_is_an_encoding():
    names = encodings_to_compare()
    assert names[:3] == ["none", "learned_absolute", "rope"] and len(names) == len(set(names))
    built = [
        encodings.from_name(name, hidden_size=256, head_size=64, num_heads=4, max_length=1024)
        for name in names
    ]
    assert all(encoding.axes == 1 for encoding in built) and not NOT_POSITIONS & set(names)
