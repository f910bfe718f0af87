"""Windows of a teacher, against loops over tokens."""

import numpy as np
import pytest

from pe_jax.trainer.data.teacher_windows import teacher_windows, window_spec


def naive_windows(tokens, width):
    """The windows of one input as lists of its tokens, by loops."""
    if len(tokens) <= width:
        return [list(tokens)]
    found, start, stride = [], 1, (width + 1) // 2
    while start + width - 2 < len(tokens) - 1:
        found.append([tokens[0], *tokens[start : start + width - 2], tokens[-1]])
        start += stride
    return [*found, [tokens[0], *tokens[len(tokens) - width + 1 :]]]


def owner(windows, token):
    """The first of the windows with the token nearest to its middle; ends of the input first."""
    distance = {
        number: abs(window.index(token) - (len(window) - 1) / 2)
        for number, window in enumerate(windows)
        if token in window
    }
    return min(distance, key=distance.get)


@pytest.mark.parametrize("width", [8, 9, 16])
def test_windows_of_packed_inputs(width):
    """Each token's state is its own, in the window that a loop finds; all fit the given shape."""
    rng = np.random.default_rng(width)
    sizes = [[64], [1], [width, width + 1], [width - 1] * 4, [9, 40, 3, 20, 8], []]
    sizes += [rng.integers(1, 30, 6) for _ in range(30)]
    for row in sizes:
        length = max(sum(row), 2) + int(rng.integers(0, 3))
        documents = np.zeros(length, np.int32)
        documents[: sum(row)] = np.repeat(np.arange(len(row)) + 1, row)
        got = teacher_windows(documents, width)
        spec = {name: (array.shape, array.dtype.type) for name, array in got.items()}
        assert spec == window_spec(length, width)
        flat, numbers = got["windows"].ravel(), got["window_document_ids"].ravel()
        expected = []
        for document in range(1, len(row) + 1):
            tokens = np.flatnonzero(documents == document).tolist()
            windows = naive_windows(tokens, width)
            expected += windows
            for token in tokens[1:-1]:
                place = got["window_places"][token]
                inside = numbers == numbers[place]
                assert flat[place] == token
                assert flat[inside].tolist() == windows[owner(windows, token)]
            for token, window in ((tokens[0], windows[0]), (tokens[-1], windows[-1])):
                place = got["window_places"][token]
                assert flat[place] == token
                assert flat[numbers == numbers[place]].tolist() == window
        packed = [flat[numbers == i].tolist() for i in range(1, numbers.max() + 1)]
        assert packed == expected
        for i in range(1, numbers.max() + 1):  # No window lies in two rows.
            assert len({place // width for place in np.flatnonzero(numbers == i)}) == 1
