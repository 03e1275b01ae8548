"""The whole configuration of one pipeline: what a TOML file under `compose/pipelines/` holds."""

from __future__ import annotations

from schemas.config.broker import BrokerConfig
from schemas.config.run import HostConfig, ModelConfig, PipelineNameConfig, RunConfig
from schemas.config.section import Section
from schemas.config.stages import StagesConfig
from schemas.config.training import AlgorithmConfig, EvaluationConfig, SamplingConfig, ScheduleConfig


class PipelineConfig(Section):
    """One pipeline, whole, as the broker's welcome carries it: `PipelineConfig.model_validate(welcome.config)`."""

    run: RunConfig = RunConfig()
    """This execution and its folder."""
    pipeline: PipelineNameConfig
    """The loop's name."""
    model: ModelConfig
    """What training starts from."""
    schedule: ScheduleConfig = ScheduleConfig()
    """When what is sampled and trained."""
    algorithm: AlgorithmConfig = AlgorithmConfig()
    """Loss and optimizer."""
    sampling: SamplingConfig = SamplingConfig()
    """How turns are sampled."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """Held-out problems."""
    stages: StagesConfig
    """The stages' processes."""
    broker: BrokerConfig = BrokerConfig()
    """Queues, leases and journal."""
    host: HostConfig = HostConfig()
    """Slots and restarts on one machine."""
