"""Models by name: from a cache of the Hugging Face Hub, without a connection."""

import itertools
import json
import sys

import numpy as np
import pytest
from helpers.sentence_folders import encoder_folder, sentence_folder

from pe_jax.interop import hub, load_encoder

huggingface_hub = pytest.importorskip("huggingface_hub")
constants = pytest.importorskip("huggingface_hub.constants")
utils = pytest.importorskip("huggingface_hub.utils")
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache, and no connection."""
    folder = tmp_path / "cache"
    folder.mkdir()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    return folder


def cached(cache, name="owner/model"):
    """The folder of a model in the cache."""
    repository = cache / f"models--{name.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs/main").write_text(COMMIT)
    (repository / "snapshots").mkdir()
    return repository / "snapshots" / COMMIT


def test_a_name_is_read_from_the_cache(cache):
    folder = sentence_folder(cached(cache), "Normalize")
    encoder = load_encoder("owner/model")
    assert encoder.folder.path == folder
    want = load_encoder(folder).encode("ab cd")
    np.testing.assert_array_equal(encoder.encode("ab cd"), want)
    assert f"--config.init={folder}" in encoder.training_commands()


def test_without_a_connection_the_error_says_what_to_download(tmp_path, cache):
    with pytest.raises(ValueError) as error:
        load_encoder("owner/model")
    message = str(error.value)
    assert f"owner/model is no file or folder in {tmp_path}." in message
    assert "OWNER" not in message
    assert f"neither in the cache {cache} nor can it be downloaded" in message
    command = message.splitlines()[-1].split()
    assert command[:5] == ["hf", "download", "owner/model", "--local-dir", "model"]
    included = {b for a, b in itertools.pairwise(command) if a == "--include"}
    assert {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "modules.json",
    } <= included
    assert not any(".bin" in each or each == "*" for each in included)


def test_folders_come_before_names(tmp_path, cache):
    encoder_folder(cached(cache))
    folder = encoder_folder(tmp_path / "owner" / "model")
    assert load_encoder("owner/model").folder.path.resolve() == folder.resolve()
    with pytest.raises(ValueError, match="No checkpoint at"):
        load_encoder(tmp_path / "none")
    encoder_folder(cached(cache, "none"))
    for path in (
        "./none",
        "../none",
        "/none",
        "/none/none/none",
        "none/",
        "~/none",
        "a/b/c",
        "owner/model.safetensors",
    ):
        with pytest.raises(ValueError, match="No checkpoint at"):
            load_encoder(path)
    assert load_encoder("none")  # Names without an owner are in old caches.


def test_the_home_folder_may_be_a_tilde(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = encoder_folder(tmp_path / "model")
    for path in ("~/model", "~/model/model.safetensors"):
        assert load_encoder(path).folder.path == folder


@pytest.mark.parametrize("name", ["all-mpnet", "models/all-mpnet"])
def test_a_name_of_nothing_here_may_mean_a_folder_or_a_model(tmp_path, name):
    near = (tmp_path / name).with_name("all-mpnet-base-v2")
    near.mkdir(parents=True)
    with pytest.raises(ValueError) as error:
        load_encoder(name)
    message = str(error.value)
    near_name = name.replace("all-mpnet", "all-mpnet-base-v2")
    assert f"Did you mean {near_name}? If you mean a folder, give its path." in message
    assert "If you mean a model of the Hugging Face Hub: it is neither in" in message
    assert (f"'OWNER/{name}'" in message) == ("/" not in name)


def test_a_modules_json_that_is_refused_downloads_no_weights(tmp_path, monkeypatch):
    folder = sentence_folder(tmp_path / "source")
    (folder / "modules.json").write_text('[{"type": "other.Code", "path": ""}]')
    asked = []

    def snapshot_download(name, allow_patterns, **_):
        asked.append(allow_patterns)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(ValueError, match="names the class 'other.Code'"):
        load_encoder("owner/model")
    assert asked == [["modules.json"]]


def test_a_model_with_a_pickle_alone_is_refused(cache):
    folder = encoder_folder(cached(cache))
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(
        ValueError, match="owner/model has its weights only in a pickle"
    ) as error:
        load_encoder("owner/model")
    assert "--include pytorch_model.bin" in str(error.value)
    assert "spaces/safetensors/convert" in str(error.value)


def test_an_incomplete_cache_is_named(cache):
    folder = encoder_folder(cached(cache))
    (folder / "model.safetensors").unlink()
    with pytest.raises(
        ValueError, match="has no model.safetensors.*\n  hf download owner/model"
    ):
        load_encoder("owner/model")


def test_an_adapter_in_the_cache_is_refused_by_name(cache):
    folder = cached(cache)
    folder.mkdir()
    adapter = {"peft_type": "LORA", "base_model_name_or_path": "a/b"}
    (folder / "adapter_config.json").write_text(json.dumps(adapter))
    with pytest.raises(ValueError, match="holds an adapter .*for the model 'a/b'"):
        load_encoder("owner/model")


def test_only_files_that_are_read_are_downloaded(tmp_path, monkeypatch):
    folder = sentence_folder(tmp_path / "source", "Normalize")
    asked = []

    def snapshot_download(name, allow_patterns, **_):
        asked.append(allow_patterns)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    load_encoder("owner/model")
    assert asked[0] == ["modules.json"]
    kept = utils.filter_repo_objects
    files = {
        "config.json": True,
        "model.safetensors": True,
        "model-00001-of-00002.safetensors": True,
        "model.safetensors.index.json": True,
        "tokenizer.json": True,
        "1_Pooling/config.json": True,
        "2_Normalize/config.json": True,
        "config_sentence_transformers.json": True,
        "pytorch_model.bin": False,
        "tf_model.h5": False,
        "onnx/model.onnx": False,
        "onnx/config.json": False,
        "model.fp16.safetensors": False,
        "modeling_custom.py": False,
        "README.md": False,
    }
    got = set(kept(list(files), allow_patterns=asked[1]))
    assert got == {name for name, is_read in files.items() if is_read}


def test_the_extra_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ValueError, match="No checkpoint at owner/model.*extra 'hub'"):
        hub.local_folder("owner/model")
