"""The public names and their signatures, as docs/api has them, since the last release.

`python tests/project/test_api.py` writes docs/api/signatures.txt, before a release.
"""

import importlib
import inspect
import re
from pathlib import Path

from flax import nnx

ROOT = Path(__file__).parents[2]
RELEASED = ROOT / "docs/api/signatures.txt"


def modules():
    """The modules of the pages in docs/api."""
    for page in sorted((ROOT / "docs/api").glob("*.md")):
        yield from re.findall(r"automodule:: (\S+)", page.read_text())


def public(module):
    """The objects that a module offers by name."""
    names = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if name[0] != "_" and getattr(value, "__module__", None) == module.__name__
    ]
    return {name: getattr(module, name) for name in sorted(names)}


def signature(thing):
    """The names, kinds and defaults of arguments; of anything else, its type."""
    # The metaclass of NNX hides the arguments of its modules.
    if isinstance(thing, type) and issubclass(thing, nnx.Module):
        thing = thing.__init__
    exception = isinstance(thing, type) and issubclass(thing, BaseException)
    if exception or not (inspect.isfunction(thing) or inspect.isclass(thing)):
        return f": {type(thing).__name__}"
    plain = inspect.signature(thing).replace(return_annotation=inspect.Signature.empty)
    arguments = [
        each.replace(annotation=inspect.Parameter.empty) for each in plain.parameters.values()
    ]
    return re.sub(r" at 0x\w+", "", str(plain.replace(parameters=arguments)))


def signatures():
    """By dotted name, the arguments of each public function, class and method, or a type."""
    found = {}
    for module in modules():
        for name, value in public(importlib.import_module(module)).items():
            found[f"{module}.{name}"] = signature(value)
            if inspect.isclass(value):
                for method, function in vars(value).items():
                    if method[0] != "_" and inspect.isfunction(function):
                        found[f"{module}.{name}.{method}"] = signature(function)
    return found


def lines():
    return [f"{name}{arguments}" for name, arguments in sorted(signatures().items())]


def test_changes_are_in_the_changelog():
    """Whoever changes a public name or its arguments says so under "Unreleased"."""
    changed = {re.match(r"[\w.]+", x)[0] for x in {*RELEASED.read_text().splitlines()} ^ {*lines()}}
    unreleased = (ROOT / "CHANGELOG.md").read_text().split("\n## ")[1]
    unsaid = [name for name in changed if not re.search(rf"\b{name.split('.')[-1]}\b", unreleased)]
    assert not unsaid, f"Say in CHANGELOG.md, under Unreleased, what changed in {sorted(unsaid)}."


def test_public_functions_are_documented():
    """Each has a docstring, and types for all arguments and what it returns."""
    for module in modules():
        for name, value in public(importlib.import_module(module)).items():
            if inspect.isfunction(value):
                assert value.__doc__, f"{module}.{name}"
                types = inspect.signature(value)
                annotations = [each.annotation for each in types.parameters.values()]
                assert types.empty not in [*annotations, types.return_annotation], name
            elif inspect.isclass(value):
                assert value.__doc__, f"{module}.{name}"


if __name__ == "__main__":
    RELEASED.write_text("".join(f"{line}\n" for line in lines()))
