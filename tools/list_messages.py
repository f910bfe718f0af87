"""Lists every message of the package: errors, printed lines, help of flags, other sentences.

    python tools/list_messages.py
    python tools/list_messages.py --kind=raised --under=pe_jax/trainer/training

A line is FILE:LINE, the kind, and the text with its placeholders as they are written in the code.
Kinds: `raised`, `printed` (also logged and warned), `flag` (help), `other` (all other strings of
four words or more that are not docstrings: messages put together in several places, labels).
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PRINTS = {"print", "log_field", "write", "warn", "warning", "info", "error", "log"}
KINDS = ("raised", "printed", "flag", "other")
FEWEST_WORDS = 4  # Of a string that may be a message.


class Message(NamedTuple):
    """A text of the package.

    Attributes:
      line: number of its first line in the file.
      kind: see the module.
      text: in one line; placeholders in braces.
    """

    line: int
    kind: str
    text: str


def text_of(node: ast.AST) -> str:
    """Return the text of an expression, with what is no text in it as placeholders."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(text_of(part) for part in parts)
        case ast.FormattedValue():
            return ast.unparse(ast.JoinedStr([node]))[2:-1]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return text_of(left) + text_of(right)
        case ast.IfExp(body=body, orelse=other):
            return f"{text_of(body)} | {text_of(other)}"
        case _:
            return f"{{{ast.unparse(node)}}}"


def messages(source: str) -> list[Message]:
    """Return the messages of a module's source, in its order."""
    tree = ast.parse(source)
    listed: set[int] = set()  # Nodes within a message or a docstring.
    found = []
    for node, kind, parts in _candidates(tree):
        if id(node) in listed:
            continue
        listed.update(id(inner) for part in parts for inner in ast.walk(part))
        if kind == "docstring":
            continue
        text = " ".join("  ".join(map(text_of, parts)).split())
        if kind != "other" or len(text.split()) >= FEWEST_WORDS:
            found.append(Message(node.lineno, kind, text))
    return sorted(found)


def _candidates(
    tree: ast.Module,
) -> Iterator[tuple[ast.expr | ast.stmt, str, list[ast.expr]]]:
    """Yield nodes, their kinds and the expressions of their texts; outer nodes first."""
    nodes = list(ast.walk(tree))
    for node in nodes:
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                yield node, "docstring", [node.value]
            case ast.Raise(exc=ast.Call(args=[_, *_] as arguments)):
                yield node, "raised", arguments
            case ast.Call(func=function, args=[_, *_] as arguments):
                name = ast.unparse(function).rpartition(".")[2]
                if name in PRINTS and any(map(_has_text, arguments)):
                    yield node, "printed", arguments
    for node in nodes:
        match node:
            case ast.Call(func=function, args=arguments, keywords=keywords):
                name = ast.unparse(function)
                if (
                    "DEFINE" in name
                    or name.startswith("_")
                    or name.endswith("add_argument")
                ):
                    values = [*arguments, *(keyword.value for keyword in keywords)]
                    texts = [
                        value for value in values if isinstance(value, ast.Constant)
                    ]
                    texts = [value for value in texts if _has_text(value)]
                    if texts and " " in text_of(texts[-1]):
                        yield node, "flag", texts
    for node in nodes:
        if isinstance(node, ast.BinOp | ast.JoinedStr) and _has_text(node):
            yield node, "other", [node]
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node, "other", [node]


def _has_text(node: ast.expr) -> bool:
    return any(
        isinstance(inner, ast.Constant) and isinstance(inner.value, str)
        for inner in ast.walk(node)
    )


def main(args: list[str]) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--kind", choices=KINDS, action="append", help="May be repeated."
    )
    parser.add_argument(
        "--under", default="pe_jax", help="A folder or file, from the root."
    )
    options = parser.parse_args(args)
    folder = ROOT / options.under
    for path in sorted(folder.rglob("*.py")) if folder.is_dir() else [folder]:
        for message in messages(path.read_text(encoding="utf-8")):
            if message.kind in (options.kind or KINDS):
                print(
                    f"{path.relative_to(ROOT)}:{message.line} {message.kind}: {message.text}"
                )


if __name__ == "__main__":
    main(sys.argv[1:])
