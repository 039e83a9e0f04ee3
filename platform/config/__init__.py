"""Configuration: one frozen, typed tree, read from YAML with overrides."""

from __future__ import annotations

from platform.config.files import PACKAGED_CONFIGS, Sources, dump_yaml, read_mapping
from platform.config.loading import dump_config, load_config, parse_config
from platform.config.run import RunConfig
from platform.config.sections import (
    MethodConfig,
    ModelConfig,
    PublicDataConfig,
    ScheduleConfig,
    SeedConfig,
    StorageConfig,
    TrainingConfig,
)

__all__ = [
    "PACKAGED_CONFIGS",
    "MethodConfig",
    "ModelConfig",
    "PublicDataConfig",
    "RunConfig",
    "ScheduleConfig",
    "SeedConfig",
    "Sources",
    "StorageConfig",
    "TrainingConfig",
    "dump_config",
    "dump_yaml",
    "load_config",
    "parse_config",
    "read_mapping",
]
