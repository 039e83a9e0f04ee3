"""Configuration: one frozen, typed tree, read from YAML with overrides."""

from __future__ import annotations

from platform.config.files import PACKAGED_CONFIGS, Sources, read_mapping
from platform.config.loading import dump_config, dump_tree, load_config, parse_config, validated
from platform.config.run import RunConfig
from platform.config.schema import PoolConfig, PrivacyConfig, SecureAggregationConfig
from platform.config.sections import (
    CohortConfig,
    EvaluationConfig,
    MethodConfig,
    ModelConfig,
    PartitionConfig,
    PublicDataConfig,
    ScheduleConfig,
    SeedConfig,
    StorageConfig,
    TaskConfig,
    TrainingConfig,
)

__all__ = [
    "PACKAGED_CONFIGS",
    "CohortConfig",
    "EvaluationConfig",
    "MethodConfig",
    "ModelConfig",
    "PartitionConfig",
    "PoolConfig",
    "PrivacyConfig",
    "PublicDataConfig",
    "RunConfig",
    "ScheduleConfig",
    "SecureAggregationConfig",
    "SeedConfig",
    "Sources",
    "StorageConfig",
    "TaskConfig",
    "TrainingConfig",
    "dump_config",
    "dump_tree",
    "load_config",
    "parse_config",
    "read_mapping",
    "validated",
]
