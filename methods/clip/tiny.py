"""The two tiny CLIPs that ship with the package: their architecture and their file format.

`sotto-tiny` has seen drawn outlines, `sotto-glyphs` printed characters.

It is a CLIP (Radford et al. 2021, "Learning Transferable Visual Models From Natural Language
Supervision") of open_clip's own classes: a ViT image tower, a causal text transformer, GELU. The
file is safetensors in half precision. Of the 49,408 token rows it holds only those that captions
and prompts use. Training never changed the others, so the seed in the header draws them again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from open_clip.model import CLIP, CLIPTextCfg, CLIPVisionCfg, set_model_preprocess_cfg
from open_clip.tokenizer import SimpleTokenizer
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialise

from methods.errors import BackboneError

NAME: Final = "sotto-tiny"
GLYPHS: Final = "sotto-glyphs"
SHIPPED: Final[Mapping[str, Path]] = {
    name: Path(__file__).parent / "weights" / f"{name}.safetensors" for name in (NAME, GLYPHS)
}
WEIGHTS: Final = SHIPPED[NAME]
FORMAT: Final = "sotto-tiny/1"

CONFIG: Final[Mapping[str, Any]] = {
    "embed_dim": 128,
    "vision": {
        "layers": 4,
        "width": 128,
        "head_width": 32,
        "patch_size": 4,
        "image_size": 32,
        # A ViT this small learns faster with these than with learned positions and class token.
        "pos_embed_type": "sin_cos_2d",
        "pool_type": "avg",
    },
    # 24 positions: start, 16 context tokens, a class name of up to 5 tokens, ".", end.
    "text": {"context_length": 24, "vocab_size": 49408, "width": 128, "heads": 4, "layers": 3},
    "preprocess": {"size": 32, "mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25]},
}

_EMBEDDING = "token_embedding.weight"
_ROW_IDS = "token_embedding.row_ids"


# It reads a file of 49,000 merges.
@cache
def tokenizer() -> SimpleTokenizer:
    """Return open_clip's byte-pair tokenizer, cut to the tiny model's context length."""
    return SimpleTokenizer(context_length=CONFIG["text"]["context_length"])


def untrained_token_rows(seed: int) -> NDArray[np.float32]:
    """Draw the token embedding as it was before training, float32 (vocab_size, width).

    Rows have mean zero and standard deviation 0.02. The seed is in the file's header. The draw uses
    the raw output of PCG64, which NumPy keeps stable over versions, so a file written today gives
    the same model with a later NumPy.
    """
    shape = (CONFIG["text"]["vocab_size"], CONFIG["text"]["width"])
    raw = np.random.PCG64(seed).random_raw(shape[0] * shape[1])
    uniform = (raw >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24) - np.float32(0.5)
    # A uniform variable on an interval of length s has standard deviation s / sqrt(12).
    rows: NDArray[np.float32] = (uniform * np.float32(0.02 * 12**0.5)).reshape(shape)
    return rows


def build(seed: int) -> CLIP:
    """Build the untrained model in float32 on the CPU, in training mode.

    Torch's global generator stays as it was.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = CLIP(
            CONFIG["embed_dim"], CLIPVisionCfg(**CONFIG["vision"]), CLIPTextCfg(**CONFIG["text"])
        )
    with torch.no_grad():
        model.token_embedding.weight.copy_(torch.from_numpy(untrained_token_rows(seed)))
    set_model_preprocess_cfg(model, dict(CONFIG["preprocess"]))
    return model


def save(
    model: CLIP, path: Path, *, token_ids: Sequence[int], seed: int, header: Mapping[str, str]
) -> None:
    """Write a model that `build` made with the same seed, perhaps trained since, in half precision.

    `token_ids` are the rows of the token embedding that training touched or prompts start from; the
    seed draws the others again. `header` is more text for the file's header.
    """
    rows = torch.tensor(sorted(set(token_ids)), dtype=torch.int32)
    tensors = {k: v.detach().half().contiguous() for k, v in model.state_dict().items()}
    tensors[_EMBEDDING] = tensors[_EMBEDDING][rows.long()].contiguous()
    tensors[_ROW_IDS] = rows
    own = {"format": FORMAT, "seed": str(seed), "config": json.dumps(CONFIG, sort_keys=True)}
    path.write_bytes(serialise(tensors, metadata={**header, **own}))


def load(path: Path = WEIGHTS) -> CLIP:
    """Read a model that `save` wrote, in float32 on the CPU; refuse another file."""
    if not path.is_file():
        raise BackboneError(
            f"The weights of model.name {path.stem!r} are missing: {path.name} is not in the "
            "package's weights folder; 'make pretrain' writes it."
        )
    try:
        with safe_open(path, framework="pt") as file:
            header = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}
    except SafetensorError as error:
        raise BackboneError(f"The weights file {path.name!r} is not valid safetensors.") from error
    if header.get("format") != FORMAT or header.get("config") != json.dumps(CONFIG, sort_keys=True):
        raise BackboneError(
            f"The weights file {path.name!r} has format {header.get('format')!r} or another "
            f"architecture; valid is {FORMAT!r} with this version's architecture."
        )
    seed = int(header["seed"])
    rows = torch.from_numpy(untrained_token_rows(seed))
    rows[tensors.pop(_ROW_IDS).long()] = tensors[_EMBEDDING].float()
    model = build(seed)
    model.load_state_dict({**{k: v.float() for k, v in tensors.items()}, _EMBEDDING: rows})
    return model
