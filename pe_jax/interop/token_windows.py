"""Windows of a text that is longer than a model: each token is labelled in exactly one of them."""

from __future__ import annotations

from typing import NamedTuple


class TokenWindow(NamedTuple):
    """Tokens `start` to `stop - 1` of a text are read; `begin` to `end - 1` are labelled."""

    start: int
    stop: int
    begin: int
    end: int


def token_windows(count: int, room: int) -> list[TokenWindow]:
    """Return the windows of a text, in order; one window if all of it fits.

    A token is labelled where it has at least `room // 4` tokens of context on both sides, or all
    that the text has there.

    Args:
      count: tokens of the text, without special tokens.
      room: the most tokens of a window, at least 1.
    """
    context = room // 4
    windows = []
    start = 0
    begin = 0
    while start + room < count:
        end = start + room - context
        windows.append(TokenWindow(start, start + room, begin, end))
        begin = end
        start = min(end - context, count - room)
    windows.append(TokenWindow(start, count, begin, count))
    return windows
