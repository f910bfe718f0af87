"""PyTorch's sides of `pytorch_step.py`: Hugging Face's BERT as shipped, and one tuned for CPUs.

Imports nothing of this project, so that it runs in any Python that has torch and transformers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from _worker import Advance, serve
from torch import Tensor, nn

Batch = dict[str, Tensor]


class Shipped(nn.Module):
    """`BertForPreTraining` with its own defaults; labels at all positions, -100 at most of them."""

    def __init__(self, job: dict):
        super().__init__()
        config = transformers.BertConfig(  # type: ignore[call-arg]
            **job["sizes"], position_embedding_type=job["position"], **job["dropout"]
        )
        self.bert = transformers.BertForPreTraining(config)
        distances = any(
            "distance_embedding" in name for name, _ in self.bert.named_parameters()
        )
        if job["position"] == "relative_key" and not distances:
            raise ValueError(
                f"transformers {transformers.__version__} no longer has relative_key: install "
                "transformers<5, or leave hf_relative_key out of --sides."
            )
        self.attention = (
            config._attn_implementation if not distances else "eager"
        )  # Its fallback.

    def forward(self, batch: Batch) -> Tensor:
        labels = torch.full_like(batch["tokens"], -100)
        labels.scatter_(1, batch["masked_positions"], batch["masked_tokens"])
        return self.bert(
            input_ids=batch["tokens"],
            attention_mask=batch["mask"].long(),
            token_type_ids=batch["token_type_ids"],
            labels=labels,
            next_sentence_label=batch["next_sentence"],
        ).loss


def random_bytes(shapes: list[tuple[int, ...]]) -> list[Tensor]:
    """Uniform bytes, eight for each draw of the generator."""
    sizes = [int(np.prod(shape)) for shape in shapes]
    draws = torch.empty(-(-sum(sizes) // 8), dtype=torch.int64).random_(-(2**63), None)
    parts = draws.view(torch.uint8)[: sum(sizes)].split(sizes)
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def dropout(x: Tensor, noise: Tensor, rate: float) -> Tensor:
    """`F.dropout` by given bytes: the rate is rounded to a multiple of 1/256."""
    dropped = round(rate * 256)
    return x * ((noise >= dropped) * (256 / (256 - dropped))).to(x.dtype)


class TunedBlock(nn.Module):
    """One Transformer block; query, key and value come from one matmul."""

    def __init__(self, sizes: dict, rate: float):
        super().__init__()
        hidden, inner = sizes["hidden_size"], sizes["intermediate_size"]
        self.heads, self.rate = sizes["num_attention_heads"], rate
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, inner), nn.Linear(inner, hidden)
        self.attention_norm = nn.LayerNorm(hidden, 1e-12)
        self.mlp_norm = nn.LayerNorm(hidden, 1e-12)

    def attention(self, x: Tensor, mask: Tensor, noise: Tensor) -> Tensor:
        # Not scaled_dot_product_attention: with dropout it has no fused kernel on CPUs, and what it
        # falls back to computes bfloat16 in float32, which is slower than this.
        rows, length, _ = x.shape
        q, k, v = (
            self.qkv(x).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        )
        logits = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
        weights = torch.softmax(logits + mask.to(logits.dtype), -1)
        out = dropout(weights, noise, self.rate).to(v.dtype) @ v
        return self.out(out.transpose(1, 2).reshape(x.shape))

    def forward(self, x: Tensor, mask: Tensor, noise: Iterator[Tensor]) -> Tensor:
        y = self.attention(x, mask, next(noise))
        x = self.attention_norm(x + dropout(y, next(noise), self.rate))
        y = self.down(F.gelu(self.up(x)))
        return self.mlp_norm(x + dropout(y, next(noise), self.rate))


class Tuned(nn.Module):
    """BERT with its heads as one would write it for speed on a CPU.

    The masked-LM head sees the masked positions only; random bits of dropout are cheap and drawn
    outside of what is compiled.
    """

    def __init__(self, job: dict):
        super().__init__()
        sizes, self.rate = job["sizes"], job["dropout"]["hidden_dropout_prob"]
        hidden, vocabulary = sizes["hidden_size"], sizes["vocab_size"]
        self.hidden, self.heads = hidden, sizes["num_attention_heads"]
        self.token = nn.Embedding(vocabulary, hidden)
        self.token_type = nn.Embedding(sizes["type_vocab_size"], hidden)
        self.position = nn.Embedding(sizes["max_position_embeddings"], hidden)
        self.embedding_norm = nn.LayerNorm(hidden, 1e-12)
        layers = range(sizes["num_hidden_layers"])
        self.blocks = nn.ModuleList(TunedBlock(sizes, self.rate) for _ in layers)
        self.pooler, self.next_sentence = (
            nn.Linear(hidden, hidden),
            nn.Linear(hidden, 2),
        )
        self.dense, self.head_norm = (
            nn.Linear(hidden, hidden),
            nn.LayerNorm(hidden, 1e-12),
        )
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        for p in self.parameters():
            if p.ndim == 2:
                nn.init.normal_(p, std=0.02)
        for name, p in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(p)
        self.attention = "by hand"
        self.compiled = (
            torch.compile(self.loss, dynamic=False) if job["compile"] else self.loss
        )

    def forward(self, batch: Batch) -> Tensor:
        rows, length = batch["tokens"].shape
        hidden, weights = (
            (rows, length, self.hidden),
            (rows, self.heads, length, length),
        )
        return self.compiled(
            batch, random_bytes([hidden] + [weights, hidden, hidden] * len(self.blocks))
        )

    def loss(self, batch: Batch, noise: list[Tensor]) -> Tensor:
        bytes_of_each = iter(noise)
        mask = torch.zeros(batch["mask"].shape).masked_fill(~batch["mask"], -torch.inf)
        length = batch["tokens"].shape[1]
        x = self.token(batch["tokens"]) + self.token_type(batch["token_type_ids"])
        x = self.embedding_norm(x + self.position.weight[:length])
        x = dropout(x, next(bytes_of_each), self.rate)
        for block in self.blocks:
            x = block(x, mask[:, None, None, :], bytes_of_each)
        at = batch["masked_positions"][:, :, None].expand(-1, -1, self.hidden)
        y = self.head_norm(F.gelu(self.dense(x.gather(1, at).flatten(0, 1))))
        logits = F.linear(y, self.token.weight, self.bias).float()
        masked_lm = F.cross_entropy(logits, batch["masked_tokens"].flatten())
        next_sentence = self.next_sentence(torch.tanh(self.pooler(x[:, 0]))).float()
        return masked_lm + F.cross_entropy(next_sentence, batch["next_sentence"])


MODELS: dict[str, type[Shipped] | type[Tuned]] = {"shipped": Shipped, "tuned": Tuned}


def prepare(job: dict, arrays: dict[str, np.ndarray]) -> tuple[Advance, dict[str, Any]]:
    """The step as `advance`; job: model, sizes, position, dropout, dtype, compile, optimizer."""
    torch.set_num_threads(job["threads"])
    torch.manual_seed(0)
    batch = {name: torch.from_numpy(array) for name, array in arrays.items()}
    batch = {k: v.long() if v.dtype == torch.int32 else v for k, v in batch.items()}
    model = MODELS[job["model"]](job).train()
    # Fused is several times as fast on CPUs, and what the Trainer of transformers takes by default.
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=job["learning_rate"],
        eps=1e-6,
        weight_decay=job["weight_decay"],
        fused=True,
    )
    bfloat16 = job["dtype"] == "bfloat16"

    def advance(steps: int) -> float:
        for _ in range(steps):
            with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
                loss = model(batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return advance, {
        "parameters": sum(p.numel() for p in model.parameters()),
        "versions": {m.__name__: m.__version__ for m in (torch, transformers, np)},
        "attention": model.attention,
        "instructions": torch.backends.cpu.get_cpu_capability(),
    }


if __name__ == "__main__":
    serve(prepare)
