"""Learned prompts for a frozen CLIP model."""
