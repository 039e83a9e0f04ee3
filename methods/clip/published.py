"""Which weights fit which of open_clip's models."""

from __future__ import annotations

import os

import open_clip

from methods.clip import tiny
from methods.errors import BackboneError


def require_known(name: str, pretrained: str | None) -> None:
    """Refuse a built-in model or weights that open_clip does not have, before anything is loaded.

    Args:
        name: One of open_clip's models.
        pretrained: One of its tags, or the path of a local checkpoint.

    Raises:
        BackboneError: If either is unknown, or the weights were trained with another activation
            than the model computes, which would be wrong throughout and only warned of.
    """
    if name not in open_clip.list_models():
        raise BackboneError(
            f"task.model.name is {name!r}; valid is {tiny.NAME!r}, 'local-dir:FOLDER' or one of "
            "open_clip's models, e.g. 'ViT-B-16-quickgelu' (open_clip.list_models() lists them)."
        )
    tags = open_clip.list_pretrained_tags_by_model(name)
    if not pretrained or (pretrained not in tags and not os.path.isfile(pretrained)):
        raise BackboneError(
            f"task.model.pretrained is {pretrained!r}, neither a file nor a tag of {name!r}; valid "
            f"is the path of a local checkpoint or one of: {', '.join(tags) or '(no tags)'}."
        )
    if pretrained in tags:
        _require_activation(name, pretrained)


def is_listed(name: str, pretrained: str | None) -> bool:
    """Return whether a name and a tag say all of a model, and are no path and no address.

    Args:
        name: "sotto-tiny", or one of open_clip's models.
        pretrained: Nothing, or one of its tags.
    """
    if name == tiny.NAME:
        return pretrained in (None, "", tiny.NAME)
    return name in open_clip.list_models() and (
        pretrained in open_clip.list_pretrained_tags_by_model(name)
    )


def _require_activation(name: str, tag: str) -> None:
    has = bool((open_clip.get_model_config(name) or {}).get("quick_gelu"))
    wants = bool((open_clip.get_pretrained_cfg(name, tag) or {}).get("quick_gelu"))
    if has != wants:
        fitting = f"{name}-quickgelu" if wants else name.removesuffix("-quickgelu")
        raise BackboneError(
            f"task.model.name is {name!r}, which computes another activation than the weights "
            f"{tag!r} were trained with; valid with them is {fitting!r}."
        )
