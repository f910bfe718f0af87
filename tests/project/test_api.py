"""The public API as docs/api recorded it before the last release: names, arguments, parameters.

`python tests/project/test_api.py` records it, and prints how many public names there are.
"""

import ast
import dataclasses
import functools
import importlib
import inspect
import re
import types
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from pe_jax import encodings, models
from pe_jax import linen as pe_linen
from pe_jax import nnx as pe_nnx
from pe_jax.encodings.registry import REQUIRED, options_of

ROOT = Path(__file__).parents[2]
SIGNATURES = ROOT / "docs/api/signatures.txt"
PARAMETERS = ROOT / "docs/api/parameters.txt"
CHANGELOG = ROOT / "CHANGELOG.md"

# Users make these and pass them on; their methods are for the checks.
CONSTRUCTED_ONLY = ("pe_jax.testing.Subject", "pe_jax.testing.foreign.Attention")
LONGEST_VALUE = 100  # Characters of a constant.
DTYPES = ("float32", "bfloat16", "float64", "int32", "bool")


# Public names.


def modules():
    """The modules of the pages in docs/api."""
    for page in sorted((ROOT / "docs/api").glob("*.md")):
        for name in re.findall(r"automodule:: (\S+)", page.read_text(encoding="utf-8")):
            yield importlib.import_module(name)


def documented(module):
    """The objects that a module offers by name, experimental ones included."""
    names = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if name[0] != "_" and getattr(value, "__module__", None) == module.__name__
    ]
    return {name: getattr(module, name) for name in sorted(names)}


def public(module):
    """The objects that docs/stability.md covers."""
    experimental = getattr(module, "EXPERIMENTAL", ())
    return {
        name: x for name, x in documented(module).items() if name not in experimental
    }


# A line for each of them.


class Text:
    """A default as it is written in a signature."""

    def __init__(self, text):
        self.text = text

    def __repr__(self):
        return self.text


def default_text(value):
    """A default as Python writes it, the same for all versions of JAX, Flax and NumPy.

    Functions and what else has no short form are `...`: there is a default.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if getattr(value, "__name__", "") in DTYPES:  # Classes of NumPy or of JAX.
        return value.__name__
    if is_record(type(value)):
        return f"{type(value).__name__}()" if value == type(value)() else "..."
    if isinstance(value, tuple):
        return repr(tuple(Text(default_text(each)) for each in value))
    return "..."


def is_named_tuple(cls):
    return isinstance(cls, type) and issubclass(cls, tuple) and hasattr(cls, "_fields")


def is_record(cls):
    return is_named_tuple(cls) or dataclasses.is_dataclass(cls)


def arguments_of(function):
    """The names, kinds and defaults of a function's arguments, as `(a, b=None, *, c)`."""
    parameters = []
    for name, parameter in inspect.signature(function).parameters.items():
        default = parameter.default
        if default is not parameter.empty:
            default = Text(default_text(default))
        if name != "self":
            parameters.append(
                parameter.replace(default=default, annotation=parameter.empty)
            )
    return str(inspect.Signature(parameters))


def field_lines(cls):
    """A line for each field of a record: its name, its default, and its place as an argument."""
    if is_named_tuple(cls):
        for position, name in enumerate(cls._fields):
            default = ""
            if name in cls._field_defaults:
                default = f" = {default_text(cls._field_defaults[name])}"
            yield f"{name}{default} (argument {position})"
        return
    of_flax = ("parent", "name") if issubclass(cls, nn.Module) else ()
    position = 0
    for field in dataclasses.fields(cls):
        if field.name in of_flax or field.name[0] == "_" or not field.init:
            continue
        line = field.name
        if field.default is not dataclasses.MISSING:
            line += f" = {default_text(field.default)}"
        elif field.default_factory is not dataclasses.MISSING:
            line += f" = {default_text(field.default_factory())}"
        if not field.kw_only:
            line += f" (argument {position})"
            position += 1
        yield line


def class_lines(name, cls):
    """The constructor of a class, or the fields of a record, then methods and properties."""
    fields = set()
    if issubclass(cls, BaseException):
        yield f"{name}: exception"
    elif is_record(cls):
        yield f"{name}: {'named tuple' if is_named_tuple(cls) else 'dataclass'}"
        for line in field_lines(cls):
            fields.add(line.split()[0])
            yield f"{name}.{line}"
    else:  # The metaclass of NNX hides the arguments of its modules.
        yield f"{name}{arguments_of(cls.__init__)}"
    if name in CONSTRUCTED_ONLY:
        return
    for member, value in vars(cls).items():
        is_hidden = member[0] == "_" and member != "__call__"
        if is_hidden or member in fields:
            continue
        if isinstance(value, property | functools.cached_property):
            yield f"{name}.{member}: property"
        elif isinstance(value, classmethod | staticmethod):
            yield f"{name}.{member}{arguments_of(getattr(cls, member))}"
        elif inspect.isfunction(value):
            yield f"{name}.{member}{arguments_of(value)}"


def object_lines(name, value):
    """The lines of a public object."""
    if isinstance(value, types.GenericAlias | types.UnionType):
        yield f"{name}: type alias"
    elif isinstance(value, type):
        yield from class_lines(name, value)
    elif callable(value):
        yield f"{name}{arguments_of(value)}"
    elif isinstance(value, dict):  # Users pass its keys to functions and commands.
        yield f"{name}: dict"
        yield from (f"{name}[{key!r}]" for key in value)
    else:
        text = repr(value)
        yield f"{name} = {text if len(text) <= LONGEST_VALUE else type(value).__name__}"


def signature_lines():
    lines = []
    for module in modules():
        for name, value in public(module).items():
            lines += object_lines(f"{module.__name__}.{name}", value)
    return sorted(lines)


# A line for each parameter in a checkpoint.

SMALL = {"hidden_size": 8, "head_size": 4, "num_heads": 2, "max_length": 16}
SHORT = {"num_layers": 1, "hidden_size": 8, "num_heads": 2, "intermediate_size": 12}
CONFIGS = {
    "bert": {"max_length": 16, "vocab_size": 20},
    "modernbert": {**models.PRESETS["modernbert_base"], "vocab_size": 20},
    "all other parts": {
        "vocab_size": 20,
        "num_key_heads": 1,
        "gated_mlp": True,
        "norm": "rms_norm",
        "norm_bias": False,
        "final_norm": True,
        "tied_decoder": False,
        "position": "per_layer(t5)",
    },
}
# Besides the registered ones with their defaults.
VARIANTS = (
    "rope(learnable=True)",
    "alibi(learnable=True)",
    "learned_relative(separate=True)",
    "learned_absolute+t5",
    "per_layer(t5)",
    "cycle(t5, learned_relative)",
)
OPTIONS = {"short": (1.0, 2.0), "long": (1.0, 2.0)}  # Others that are required are 4.


def leaf_lines(name, tree):
    """The path and the shape of each leaf of a tree of arrays."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    for path, leaf in leaves:
        keys = [str(getattr(entry, "key", entry)) for entry in path]
        yield f"{name}: {'/'.join(keys)} {list(leaf.shape)}"
    if not leaves:
        yield f"{name}: no parameters"


def model_lines():
    tokens = jax.ShapeDtypeStruct((1, 4), np.int32)
    heads = {
        "Bert": (models.Bert, {}),
        "BertForPretraining": (models.BertForPretraining, {"masked_positions": tokens}),
        "BertForMaskedLM": (models.BertForMaskedLM, {"masked_positions": tokens}),
        "BertForClassification": (
            functools.partial(models.BertForClassification, outputs=3),
            {},
        ),
        "BertForSpans": (models.BertForSpans, {}),
        "BertForTokens": (functools.partial(models.BertForTokens, outputs=3), {}),
    }
    for kind, settings in CONFIGS.items():
        config = models.BertConfig(**{**settings, **SHORT})
        for name, (make, inputs) in heads.items():
            init = make(config).init
            params = jax.eval_shape(init, jax.random.key(0), tokens, **inputs)["params"]
            yield from leaf_lines(f"{name} of {kind}", params)


def module_lines():
    """Parameters of the modules for models of one's own."""
    x = jax.ShapeDtypeStruct((1, 4, 8), np.float32)
    encoding = encodings.from_name("alibi(learnable=True)", **SMALL)
    vectors = encodings.from_name("learned_absolute", **SMALL)
    for module in (
        pe_linen.MultiHeadAttention(num_heads=2, encoding=encoding),
        pe_linen.PositionEmbedding(vectors),
    ):
        params = jax.eval_shape(module.init, jax.random.key(0), x)["params"]
        yield from leaf_lines(f"linen.{type(module).__name__}", params)
    makers = (
        lambda: pe_nnx.MultiHeadAttention(2, 8, encoding, rngs=nnx.Rngs(0)),
        lambda: pe_nnx.PositionEmbedding(vectors, rngs=nnx.Rngs(0)),
    )
    for make in makers:
        module = nnx.eval_shape(make)
        params = nnx.to_pure_dict(nnx.state(module, nnx.Param))
        yield from leaf_lines(f"nnx.{type(module).__name__}", params)


def encoding_names():
    """Each registered encoding and wrapper with the options that it requires, then variants."""
    for name, make in encodings.ENCODINGS.items():
        yield call_text(name, make)
    for name, make in encodings.WRAPPERS.items():
        yield call_text(name, make, "rope")
    yield from VARIANTS


def call_text(name, make, *arguments):
    required = [
        option for option, default in options_of(make).items() if default is REQUIRED
    ]
    options = [f"{option}={OPTIONS.get(option, 4)}" for option in required]
    inside = ", ".join([*arguments, *options])
    return f"{name}({inside})" if inside else name


def encoding_lines():
    for name in encoding_names():
        encoding = encodings.from_name(name, **SMALL)
        init = functools.partial(encoding.init, num_layers=2)
        yield from leaf_lines(name, jax.eval_shape(init, jax.random.key(0)))


def parameter_lines():
    return [*model_lines(), *module_lines(), *encoding_lines()]


# What users lose.


def split_line(line):
    """A line's name, and what follows it."""
    name = re.match(r"[\w.]+(\['[^']+'\])?", line)[0]
    return name, line[len(name) :]


def broken_names(recorded, current):
    """The recorded names whose uses may fail now, with the reason. Additions break nothing."""
    old, new = dict(map(split_line, recorded)), dict(map(split_line, current))
    broken = {}
    for name, rest in old.items():
        if name not in new:
            broken[name] = "was removed"
        elif rest in (new[name], without_default(new[name])):
            continue
        elif not (rest.startswith("(") and new[name].startswith("(")):
            broken[name] = f"was{rest or ' without a default'}, is{new[name]}"
        elif problem := lost_calls(rest, new[name]):
            broken[name] = problem
    for name in new.keys() - old.keys():
        record = old.get(name.rpartition(".")[0])
        is_field = not new[name].startswith(("(", ":"))
        if is_field and record == ": named tuple":
            broken[name] = "is a new field of a named tuple, which users unpack"
        elif (
            is_field
            and record == ": dataclass"
            and without_default(new[name]) == new[name]
        ):
            broken[name] = "is a new field without a default"
    return broken


def without_default(rest):
    """The rest of a field's line as if the field had no default."""
    return re.sub(r"^ = .*?(?= \(argument \d+\)$|$)", "", rest)


def lost_calls(old, new):
    """Why a call with the old arguments may fail with the new ones; empty if it cannot."""
    before, after = (ast.parse(f"def f{text}: ...").body[0].args for text in (old, new))
    placed = [argument.arg for argument in [*before.posonlyargs, *before.args]]
    placed_now = [argument.arg for argument in [*after.posonlyargs, *after.args]]
    if placed_now[: len(placed)] != placed:
        return f"took {placed} by place, takes {placed_now}"
    if len(after.posonlyargs) > len(before.posonlyargs):
        return "takes by place only what had a name"
    if (before.vararg and not after.vararg) or (before.kwarg and not after.kwarg):
        return f"took any arguments, {old}, takes {new}"
    defaults, defaults_now = defaults_of(before), defaults_of(after)
    for name, default in defaults.items():
        if name not in defaults_now:
            return f"took {name}"
        if default is not None and defaults_now[name] != default:
            return f"had the default {name}={default}, has {defaults_now[name]}"
    required = [
        x
        for x, default in defaults_now.items()
        if default is None and x not in defaults
    ]
    return f"requires {', '.join(required)}" if required else ""


def defaults_of(arguments):
    """The default of each argument as text, None for a required one."""
    placed = [*arguments.posonlyargs, *arguments.args]
    without = [None] * (len(placed) - len(arguments.defaults))
    pairs = [
        *zip(placed, [*without, *arguments.defaults]),
        *zip(arguments.kwonlyargs, arguments.kw_defaults),
    ]
    return {
        argument.arg: default and ast.unparse(default) for argument, default in pairs
    }


# Tests.


@functools.cache
def recorded(path):
    return path.read_text(encoding="utf-8").splitlines()


@pytest.fixture(scope="module")
def current():
    return signature_lines()


def test_changes_are_in_the_changelog(current):
    """Whoever changes a public name or its arguments says so under "Unreleased"."""
    changed = {split_line(line)[0] for line in {*recorded(SIGNATURES)} ^ {*current}}
    unreleased = CHANGELOG.read_text(encoding="utf-8").split("\n## ")[1]
    last = {name: re.findall(r"\w+", name)[-1] for name in changed}
    unsaid = [
        name for name in changed if not re.search(rf"\b{last[name]}\b", unreleased)
    ]
    assert not unsaid, (
        f"Say in CHANGELOG.md, under Unreleased, what changed in {sorted(unsaid)}."
    )


def test_a_release_is_only_added_to(current):
    """docs/stability.md, from 1.0 on."""
    if not re.search(
        r"^## 1\.0\.0\b(?!rc)", CHANGELOG.read_text(encoding="utf-8"), re.MULTILINE
    ):
        pytest.skip("1.0 has not been released")
    broken = broken_names(recorded(SIGNATURES), current)
    assert not broken, (
        "Keep these, deprecated (docs/stability.md). To remove what was deprecated for a minor "
        f"version, delete its line in docs/api/signatures.txt: {broken}"
    )


def test_parameters_keep_their_names_and_shapes():
    """Checkpoints can still be read: nothing recorded has other parameters. More may be added."""

    def by_owner(lines):
        owners = {}
        for line in lines:
            owners.setdefault(line.rpartition(": ")[0], set()).add(line)
        return owners

    now = by_owner(parameter_lines())
    changed = {
        owner: sorted(lines ^ now.get(owner, set()))
        for owner, lines in by_owner(recorded(PARAMETERS)).items()
        if lines != now.get(owner)
    }
    assert not changed, (
        "Older checkpoints cannot be read with these changes; before 1.0, run "
        f"`python tests/project/test_api.py`: {changed}"
    )


def test_lines_depend_on_no_version(current):
    """Neither an address nor an internal object of a dependency is in the file."""
    assert not [
        line for line in current if re.search(r"<| at 0x|_src\b|PjitFunction", line)
    ]


def test_jitted_functions_have_their_arguments(current):
    (line,) = [
        line for line in current if line.startswith("pe_jax.properties.symmetry")
    ]
    assert line.startswith("pe_jax.properties.symmetry(phi, ")


def test_defaults_are_the_same_for_all_versions():
    assert default_text(np.float32) == default_text(jnp.float32) == "float32"
    assert default_text(np.float64(0.5)) == "0.5"
    assert default_text(nn.initializers.lecun_normal()) == "..."
    assert default_text((1e-8, None, np.float32)) == "(1e-08, None, float32)"
    assert default_text(encodings.Traits()) == "Traits()"
    assert default_text(encodings.Traits(max_length=3)) == "..."


def test_what_is_experimental_is_listed():
    """The page of a module has it in a section of its own, and `__all__` has it too."""
    pages = "\n".join(page.read_text() for page in (ROOT / "docs/api").glob("*.md"))
    listed = re.findall(r"^\.\. experimental:: (\S+)$", pages, re.MULTILINE)
    with_some = [module for module in modules() if hasattr(module, "EXPERIMENTAL")]
    assert sorted(listed) == sorted(module.__name__ for module in with_some)
    for module in with_some:
        assert set(module.EXPERIMENTAL) <= set(module.__all__), module.__name__
        assert len(set(module.EXPERIMENTAL)) == len(module.EXPERIMENTAL)


def test_public_functions_are_documented():
    """Each has a docstring, and types for all arguments and what it returns."""
    for module in modules():
        for name, value in documented(module).items():
            if isinstance(value, type):
                assert value.__doc__, f"{module.__name__}.{name}"
            elif callable(value) and not isinstance(value, types.GenericAlias):
                assert value.__doc__, f"{module.__name__}.{name}"
                types_ = inspect.signature(value)
                annotations = [each.annotation for each in types_.parameters.values()]
                assert types_.empty not in [*annotations, types_.return_annotation], (
                    name
                )


FUNCTION = "m.f(a, b=1, *, c=None)"
RECORD = ["m.R: dataclass", "m.R.x = 1"]
TUPLE = ["m.T: named tuple", "m.T.x = 1 (argument 0)"]


@pytest.mark.parametrize(
    "now",
    [
        [FUNCTION, "m.g(a)"],
        ["m.f(a, b=1, *, c=None, d=2)"],
        ["m.f(a, b=1, c=None)"],
        ["m.f(a, b=1, d=2, *, c=None, **options)"],
        ["m.f(a=0, b=1, *, c=None)"],
    ],
)
def test_additions_to_a_function_break_nothing(now):
    assert broken_names([FUNCTION], now) == {}


@pytest.mark.parametrize(
    "now",
    [
        [],
        ["m.f: property"],
        ["m.f(a, *, c=None)"],
        ["m.f(b=1, a=0, *, c=None)"],
        ["m.f(d, a, b=1, *, c=None)"],
        ["m.f(a, b=2, *, c=None)"],
        ["m.f(a, b, *, c=None)"],
        ["m.f(a, *, b=1, c=None)"],
        ["m.f(a, b=1, *, renamed=None)"],
        ["m.f(a, b=1, *, d, c=None)"],
        ["m.f(a, /, b=1, *, c=None)"],
    ],
)
def test_other_changes_of_a_function_break_calls(now):
    assert list(broken_names([FUNCTION], now)) == ["m.f"]


def test_fields_may_be_added_with_a_default():
    assert broken_names(RECORD, [*RECORD, "m.R.y = None"]) == {}
    assert broken_names(RECORD, [*RECORD, "m.R.y(length)", "m.R.z: property"]) == {}
    assert list(broken_names(RECORD, [*RECORD, "m.R.y"])) == ["m.R.y"]
    assert list(broken_names(RECORD, [RECORD[0], "m.R.x = 2"])) == ["m.R.x"]
    assert list(broken_names(RECORD, [RECORD[0], "m.R.x"])) == ["m.R.x"]
    assert (
        broken_names(
            [RECORD[0], "m.R.x (argument 0)"], [RECORD[0], "m.R.x = 1 (argument 0)"]
        )
        == {}
    )
    assert list(broken_names(RECORD, RECORD[:1])) == ["m.R.x"]
    assert list(broken_names(TUPLE, [*TUPLE, "m.T.y = 1 (argument 1)"])) == ["m.T.y"]
    assert list(broken_names(TUPLE, [*TUPLE, "m.T.length: property"])) == []
    assert list(broken_names(["m.D: dict", "m.D['a']"], ["m.D: dict", "m.D['b']"])) == [
        "m.D['a']"
    ]


def main():
    SIGNATURES.write_text("\n".join(signature_lines()) + "\n", encoding="utf-8")
    PARAMETERS.write_text("\n".join(parameter_lines()) + "\n", encoding="utf-8")
    counts = {module.__name__: len(public(module)) for module in modules()}
    for name, count in counts.items():
        experimental = len(documented(importlib.import_module(name))) - count
        print(
            f"{name}: {count}"
            + (f" and {experimental} experimental" if experimental else "")
        )
    print(f"{sum(counts.values())} public names in {len(counts)} modules")


if __name__ == "__main__":
    main()
