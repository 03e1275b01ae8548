"""The real stages, made ready to be played: a folder of their own, and only the weights that the recording means.

Owns the scratch folder: what a replayed trainer or weight-sync writes and deletes is there, never in the recorded run. Torch is imported
here, when a stage that needs it is made.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from schemas.codec import Frame, decode_record, encode_record
from schemas.config import PipelineConfig
from schemas.edges import Role
from schemas.errors import ConfigError
from schemas.records import Install, Version
from stages.service.stage import Stage
from tools.records.opening import Run
from tools.replay.debugging import Debugger
from tools.replay.errors import VersionGone
from tools.replay.lookahead import Turns


class Scratch:
    """A folder that takes the run directory's place. Versions in it are links to the recorded ones; checkpoints are copied."""

    def __init__(self, run: Run) -> None:
        self._recorded = run.directory
        self.path = Path(tempfile.mkdtemp(prefix="tidemill-replay-"))
        (self.path / "versions").mkdir()
        self._found: set[int] = set()

    def checkpoints(self) -> list[int]:
        """Steps of which the run still has a checkpoint."""
        return sorted(int(path.name.removeprefix("step-")) for path in (self._recorded / "checkpoints").glob(f"step-{'[0-9]' * 8}"))

    def bring_checkpoint(self, step: int) -> None:
        """Step 0 is the starting model, and needs none. Raises VersionGone."""
        shutil.rmtree(self.path / "checkpoints", ignore_errors=True)
        if not step:
            return
        name = f"step-{step:08d}"
        if not (self._recorded / "checkpoints" / name).is_dir():
            raise VersionGone(
                f"version_gone: the checkpoint of step {step} was deleted (stages.actor_train.keep_checkpoints); there are"
                f" {', '.join(map(str, self.checkpoints())) or 'none'}"
            )
        shutil.copytree(self._recorded / "checkpoints" / name, self.path / "checkpoints" / name)

    def has_version(self, location: str) -> bool:
        return (self._recorded / "versions" / Path(location).name).is_dir()

    def check_versions(self, numbers: frozenset[int], what: str) -> None:
        """Raises VersionGone where one of these has no folder any more."""
        for number in sorted(numbers - self._found):
            if not any((self._recorded / "versions").glob(f"*-{number}")):
                raise VersionGone(
                    f"version_gone: {what} was sampled with version {number}, which was deleted (stages.weight_sync.keep_versions);"
                    " choose a later part by --from, or another session by --only"
                )
            self._found.add(number)

    def recorded_version(self, location: str) -> Path:
        """Where a recorded version lies, or lay."""
        return self._recorded / "versions" / Path(location).name

    def moved(self, kind: type[Install] | type[Version], frames: Sequence[Frame]) -> tuple[Frame, ...]:
        """The record with its files looked for here. Raises VersionGone."""
        record = decode_record(kind, frames)
        name = Path(record.location).name
        if not self.has_version(record.location):
            raise VersionGone(
                f"version_gone: version {record.number} ({name}) was deleted (stages.weight_sync.keep_versions), and what is to be"
                " played needs it; choose a later part by --from, or a session by --only"
            )
        here = self.path / "versions" / name
        if not here.is_symlink():
            here.symlink_to(self._recorded / "versions" / name)
        return tuple(encode_record(replace(record, location=str(here))))

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def make_stage(role: Role, turns: Turns, debugger: Debugger | None) -> Stage:
    """The stage's own class, user code in this process. Raises ConfigError for a role that is no stage."""
    match role:
        case Role.REWARD:
            from stages.reward.stage import Reward
            from tools.replay.judging import pool_maker

            return Reward(pool_maker=pool_maker(debugger))
        case Role.ENV:
            from stages.env.stage import Env
            from tools.replay.stepping import opener

            return Env(opener=opener(debugger is not None))
        case Role.REFERENCE:
            from stages.reference.stage import Reference

            return Reference()
        case Role.ACTOR_TRAIN:
            from stages.actor_train.stage import ActorTrain

            return ActorTrain()
        case Role.WEIGHT_SYNC:
            from stages.weight_sync.stage import WeightSync

            return WeightSync()
        case Role.ROLLOUT:
            return paced_rollout(turns)
    raise ConfigError(f"--stage {role}: there are env, rollout, reward, reference, actor-train and weight-sync")


def paced_rollout(turns: Turns) -> Stage:
    """The rollout stage on its own engine, held to the recorded pace."""
    from stages.rollout.stage import Rollout, configured_engine
    from stages.rollout.weights import Replica
    from tools.replay.pace import PacedEngine

    def engine(config: PipelineConfig) -> Replica:
        replica = configured_engine(config)
        paced = PacedEngine(replica.engine, turns.spans, frozenset(turns.refused))  # type: ignore[arg-type]
        return Replica(paced, replica.weights)

    return Rollout(engine_factory=engine)
