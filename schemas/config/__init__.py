"""The configuration of a pipeline: what may be set, where, in which unit, and what would go wrong.

Owns the sections, the loader of TOML files with `--set` overrides, the checks across keys, and the text that
`tidemill check` shows. Promises frozen values, no unknown key, no value that is accepted and ignored, and that
importing it loads neither torch nor zmq. Knows nothing of processes: it is handed to them by the broker's welcome.
"""

from schemas.config.brief import brief
from schemas.config.broker import BrokerConfig
from schemas.config.describe import describe, processes, view
from schemas.config.facts import ModelFacts, read_model_facts
from schemas.config.load import load_config
from schemas.config.pipeline import PipelineConfig
from schemas.config.plan import Finding, plan, slots_needed, ticket_room_bytes
from schemas.config.render import to_toml
from schemas.config.run import HostConfig, ModelConfig, RunConfig
from schemas.config.stages import (
    ActorTrainConfig,
    EnvConfig,
    ReferenceConfig,
    RewardConfig,
    RolloutConfig,
    StagesConfig,
    WeightSyncConfig,
)
from schemas.config.training import AlgorithmConfig, EvaluationConfig, SamplingConfig, ScheduleConfig

__all__ = [
    "ActorTrainConfig",
    "AlgorithmConfig",
    "BrokerConfig",
    "EnvConfig",
    "EvaluationConfig",
    "Finding",
    "HostConfig",
    "ModelConfig",
    "ModelFacts",
    "PipelineConfig",
    "ReferenceConfig",
    "RewardConfig",
    "RolloutConfig",
    "RunConfig",
    "SamplingConfig",
    "ScheduleConfig",
    "StagesConfig",
    "WeightSyncConfig",
    "brief",
    "describe",
    "load_config",
    "plan",
    "processes",
    "read_model_facts",
    "slots_needed",
    "ticket_room_bytes",
    "to_toml",
    "view",
]
