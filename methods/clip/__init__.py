"""The frozen CLIP model: one adapter over open_clip's models and the tiny one."""
