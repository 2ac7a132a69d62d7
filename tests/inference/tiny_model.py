"""A language model of 120 kB that knows nothing: random weights in the format of llama.cpp (GGUF, version 3).

It is for a real server with real tokens in a second; what it says is noise.
"""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any

WIDTH, INNER, HEADS, LAYERS = 32, 64, 4, 1
CONTEXT = 8192
ALIGNMENT = 32
_U32, _F32, _STRING, _ARRAY, _I32 = 4, 6, 8, 9, 5
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6


def write_tiny_model(path: Path, seed: int = 1) -> None:
    """Write the model's file. The same seed gives the same bytes."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds = [_UNKNOWN, _CONTROL, _CONTROL, *([_BYTE] * 256)]
    tensors = list(_tensors(len(tokens)))
    values: list[tuple[str, int, Any]] = [
        ("general.architecture", _STRING, "llama"),
        ("general.name", _STRING, "tiny"),
        ("llama.context_length", _U32, CONTEXT),
        ("llama.embedding_length", _U32, WIDTH),
        ("llama.block_count", _U32, LAYERS),
        ("llama.feed_forward_length", _U32, INNER),
        ("llama.attention.head_count", _U32, HEADS),
        ("llama.attention.head_count_kv", _U32, HEADS),
        ("llama.attention.layer_norm_rms_epsilon", _F32, 1e-5),
        ("llama.rope.dimension_count", _U32, WIDTH // HEADS),
        ("llama.vocab_size", _U32, len(tokens)),
        ("tokenizer.ggml.model", _STRING, "llama"),
        ("tokenizer.ggml.tokens", _ARRAY, (_STRING, tokens)),
        ("tokenizer.ggml.scores", _ARRAY, (_F32, [0.0] * len(tokens))),
        ("tokenizer.ggml.token_type", _ARRAY, (_I32, kinds)),
        ("tokenizer.ggml.bos_token_id", _U32, 1),
        ("tokenizer.ggml.eos_token_id", _U32, 2),
        ("tokenizer.ggml.unknown_token_id", _U32, 0),
    ]
    head = bytearray(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values)))
    for name, kind, value in values:
        head += _text(name) + struct.pack("<I", kind) + _value(kind, value)
    data = bytearray()
    chance = random.Random(seed)
    for name, shape in tensors:
        head += _text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
        head += struct.pack("<IQ", 0, len(data))  # 32-bit floats
        size = shape[0] * (shape[1] if len(shape) > 1 else 1)
        weights = [chance.gauss(0, 0.3) if len(shape) > 1 else 1.0 for _ in range(size)]
        if name == "output.weight":
            weights[: 3 * WIDTH] = [0.0] * (3 * WIDTH)  # never the likeliest: it does not come to an end by itself
        data += struct.pack(f"<{size}f", *weights)
        data += bytes(-len(data) % ALIGNMENT)
    path.write_bytes(bytes(head) + bytes(-len(head) % ALIGNMENT) + bytes(data))


def _tensors(vocabulary: int) -> list[tuple[str, tuple[int, ...]]]:
    found: list[tuple[str, tuple[int, ...]]] = [("token_embd.weight", (WIDTH, vocabulary))]
    for layer in range(LAYERS):
        square = dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output"), (WIDTH, WIDTH))
        inner = {"ffn_gate": (WIDTH, INNER), "ffn_up": (WIDTH, INNER), "ffn_down": (INNER, WIDTH)}
        norms = dict.fromkeys(("attn_norm", "ffn_norm"), (WIDTH,))
        found += [(f"blk.{layer}.{name}.weight", shape) for name, shape in {**norms, **square, **inner}.items()]
    return [*found, ("output_norm.weight", (WIDTH,)), ("output.weight", (WIDTH, vocabulary))]


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(kind: int, value: Any) -> bytes:
    if kind == _ARRAY:
        inner, items = value
        return struct.pack("<IQ", inner, len(items)) + b"".join(_value(inner, item) for item in items)
    if kind == _STRING:
        return _text(value)
    return struct.pack({_U32: "<I", _I32: "<i", _F32: "<f"}[kind], value)
