"""Types of the results of public functions: mypy checks `results_for_mypy`, pytest the rest."""

import ast
import importlib
import re
from pathlib import Path
from typing import assert_type

import jax
import numpy as np
import pytest

import pe_jax
from pe_jax import attention, encodings, linen, models, nnx, properties
from pe_jax.encodings import Params, PositionEncoding

PACKAGE = Path(pe_jax.__file__).parent


def results_for_mypy(
    x: jax.Array,
    encoding: PositionEncoding,
    params: Params,
    layers: tuple[
        linen.MultiHeadAttention, linen.PositionEmbedding, nnx.MultiHeadAttention
    ],
) -> None:
    """Never called: mypy fails where a type is another one, such as `Any`."""
    host = np.zeros((1, 4, 2, 8), np.float32)
    assert_type(attention.attention(x, host, host, encoding, params), jax.Array)
    assert_type(attention.attention_logits(x, x, encoding, params), jax.Array)
    assert_type(encodings.embed(host, encoding, params), jax.Array)
    assert_type(encodings.sinusoid(host, host), jax.Array)
    assert_type(encodings.default_frequencies(8), np.ndarray)
    assert_type(layers[0](x), jax.Array)
    assert_type(layers[1](x), jax.Array)
    assert_type(layers[2](x), jax.Array)
    assert_type(models.Bert(models.BertConfig())(x), jax.Array)
    assert_type(properties.proximity(host), jax.Array)
    assert_type(properties.monotonicity(host, 3, weighted=True), jax.Array)
    assert_type(properties.turning_point(host), jax.Array)
    assert_type(properties.offset_variance(x), tuple[jax.Array, jax.Array])
    assert_type(properties.positional_basis(x).gram, jax.Array)
    assert_type(properties.mean_over_texts(x).mean, jax.Array)


def public_functions():
    """Yield `(place, function)` of the functions and methods that modules export."""
    modules = [importlib.import_module(f"pe_jax.{name}") for name in pe_jax.MODULES]
    exported = {
        name
        for module in modules
        for name in dir(
            module
        )  # With those that are imported when they are first used.
        if str(getattr(getattr(module, name), "__module__", "")).startswith(
            module.__name__
        )
    }
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            if (
                not isinstance(node, ast.ClassDef | ast.FunctionDef)
                or node.name not in exported
            ):
                continue
            for function in node.body if isinstance(node, ast.ClassDef) else [node]:
                name = function.name if isinstance(function, ast.FunctionDef) else "_"
                if name == "__call__" or not name.startswith("_"):
                    yield f"{path.relative_to(PACKAGE)}:{node.name}.{name}", function


def untyped_names(annotation):
    """Return the names in an annotation that type checkers take for `Any`."""
    match annotation:
        case ast.Subscript(ast.Name("Callable"), ast.Tuple([_, result])):
            return untyped_names(
                result
            )  # The arguments of a function may be any arrays.
        case ast.Name("Any" | "Array"):
            return [annotation.id]
    return [
        name
        for child in ast.iter_child_nodes(annotation)
        for name in untyped_names(child)
    ]


def test_results_of_public_functions_have_a_type():
    found = dict(public_functions())
    assert len(found) > 200
    untyped = {
        place: names
        for place, function in found.items()
        if (names := untyped_names(function.returns) if function.returns else [None])
        and ast.unparse(function).count("return ") > 0
    }
    assert not untyped, "Annotate results as `Float[jax.Array, ...]`."


def test_public_functions_keep_their_signature():
    """`jax.jit` returns a function of any arguments, and `Any`, to a type checker."""
    decorated = {
        place: [ast.unparse(decorator) for decorator in function.decorator_list]
        for place, function in public_functions()
    }
    jitted = {
        place
        for place, names in decorated.items()
        if re.search(r"jax\.jit", str(names))
    }
    assert not jitted, "Decorate with pe_jax.properties.compiled."


@pytest.mark.parametrize(
    ("annotation", "names"),
    [
        ("Float[jax.Array, 'B L']", []),
        ("tuple[Float[Array, 'B L'], Any]", ["Array", "Any"]),
        ("Callable[[Params, Array], jax.Array]", []),
    ],
)
def test_untyped_names(annotation, names):
    assert untyped_names(ast.parse(annotation, mode="eval").body) == names
