"""The encoder of a folder with model.onnx, as the first module of a SentenceTransformer.

`save_onnx` copies this file next to the model. It needs onnxruntime and sentence-transformers.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import torch
from tokenizers import Tokenizer


class OnnxEncoder(torch.nn.Module):
    """Token embeddings of texts, from onnxruntime. Without gradients."""

    save_in_root = True

    def __init__(self, folder: str):
        super().__init__()
        self.folder = Path(folder)
        self.tokenizer = Tokenizer.from_file(str(self.folder / "tokenizer.json"))
        self.max_seq_length = (self.tokenizer.truncation or {}).get("max_length")
        providers = onnxruntime.get_available_providers()
        self.session = onnxruntime.InferenceSession(
            self.folder / "model.onnx", providers=providers
        )

    @classmethod
    def load(cls, folder: str) -> OnnxEncoder:
        return cls(folder)

    def preprocess(
        self, texts: list[str], prompt: str | None = None, **_: object
    ) -> dict:
        if prompt:
            texts = [f"{prompt}{text}" for text in texts]
        encoded = self.tokenizer.encode_batch(texts)
        type_ids = [text.type_ids for text in encoded]
        mask = [text.attention_mask for text in encoded]
        return {
            "input_ids": torch.tensor([text.ids for text in encoded]),
            "token_type_ids": torch.tensor(type_ids),
            "attention_mask": torch.tensor(mask),
        }

    def tokenize(self, texts: list[str]) -> dict:
        return self.preprocess(texts)

    def forward(self, features: dict, **_: object) -> dict:
        names = [tensor.name for tensor in self.session.get_inputs()]
        inputs = {name: features[name].cpu().numpy().astype(np.int64) for name in names}
        (states,) = self.session.run(["last_hidden_state"], inputs)
        return features | {"token_embeddings": torch.from_numpy(states)}

    def save(self, folder: str, *_: object, **__: object) -> None:
        for name in ("model.onnx", "model.json", "tokenizer.json", Path(__file__).name):
            (Path(folder) / name).write_bytes((self.folder / name).read_bytes())
