"""Where compiled programs are cached; `test_damaged_input.py` damages them."""

import jax
import pytest

from pe_jax.trainer.disk_cache import cache_compiled_programs, make_once


@pytest.fixture
def jax_settings():
    """Puts JAX's own cache settings back."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    yield names
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.mark.parametrize("value", ["", "/somewhere"])
def test_the_environment_says_where_programs_are_kept(
    monkeypatch, tmp_path, jax_settings, value
):
    monkeypatch.setenv("PE_JAX_CACHE", str(tmp_path))
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", value)
    before = [getattr(jax.config, name) for name in jax_settings]
    cache_compiled_programs()
    assert [getattr(jax.config, name) for name in jax_settings] == before
    assert list(tmp_path.iterdir()) == []
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    cache_compiled_programs()
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "compiled")


def test_a_cache_that_cannot_be_written(monkeypatch, tmp_path, jax_settings, capsys):
    (tmp_path / "file").touch()
    monkeypatch.setenv("PE_JAX_CACHE", str(tmp_path / "file"))
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    jax.config.update("jax_compilation_cache_dir", None)
    cache_compiled_programs()
    assert jax.config.jax_compilation_cache_dir is None
    assert "Compiled programs are not cached" in capsys.readouterr().err


def test_a_new_cache_is_private(monkeypatch, tmp_path, jax_settings):
    """Whichever of its two parts is first. A folder that was there keeps its mode."""
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    monkeypatch.setenv("PE_JAX_CACHE", str(tmp_path / "a"))
    cache_compiled_programs()
    make_once(
        tmp_path / "b/entry", lambda folder: (folder / "text").write_text("private")
    )
    (tmp_path / "c").mkdir(0o755)
    make_once(
        tmp_path / "c/entry", lambda folder: (folder / "text").write_text("shared")
    )
    modes = [
        (tmp_path / name).stat().st_mode & 0o777
        for name in ("a", "a/compiled", "b", "c")
    ]
    assert modes == [0o700, 0o700, 0o700, 0o755]
