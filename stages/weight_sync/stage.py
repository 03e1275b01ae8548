"""The stage between trainer and replicas: versions in, install orders out.

| consumes | produces | waits for | unblocked by |
|---|---|---|---|
| `versions` | `installs` | a version | actor-train |

Promises: an install is ordered only for files that hash to their record; a version whose files do not is a failure
with its reason, and no replica hears of it. Where other machines take part, an order says how they get the files.
Deletes what nobody can need any more. Imports no torch: files are hashed as bytes.
"""

from __future__ import annotations

import shutil
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from schemas.codec import Frame
from schemas.edges import Role
from schemas.errors import ConfigError, ModelError
from schemas.messages import Abort, BrokerMessage, Failure, Peers, Welcome
from schemas.records import Install, Version
from stages.service.stage import Delivery, Link, Put, Ready
from stages.weight_sync.core.retention import VersionName, doomed, version_name
from stages.weight_sync.dispatch import Parcel
from stages.weight_sync.packing import Packing
from stages.weight_sync.settings import WeightSyncSettings, weight_sync_settings
from stages.weight_sync.verification import verify

log = structlog.get_logger(__name__)

WINDOW = 4
"""Versions held at a time: they come one a step, and are worked off one by one."""


class WeightSync:
    role = Role.WEIGHT_SYNC

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.link: Link
        self.settings: WeightSyncSettings
        self.held: deque[Delivery] = deque()
        self.newest: int | None = None
        self.away = False
        """Whether another machine of the run may have to fetch versions."""
        self.packing = Packing()
        self.verified = 0
        self.refused = 0
        self.computed_s = 0.0

    def start(self, welcome: Welcome, link: Link) -> None:
        """Raises ConfigError on a machine where no version can ever be found."""
        if not Path(link.run_directory).is_dir():
            raise ConfigError(
                f"the run directory {link.run_directory} is not on this machine, and weight-sync reads the versions there that "
                "actor-train writes; start it beside the broker and the trainer, or mount that directory here under the same path"
            )
        self.link = link
        self.settings = weight_sync_settings(welcome.config)
        self.away = bool(welcome.sources)

    def hello(self) -> Ready:
        return Ready(windows={"versions": WINDOW})

    def deliver(self, delivery: Delivery) -> None:
        self.held.append(delivery)

    def order(self, message: BrokerMessage, frames: Sequence[Frame]) -> None:
        if isinstance(message, Abort):
            self.held = deque(delivery for delivery in self.held if delivery.lease != message.lease)
            self.packing.forget(message.lease)
        elif isinstance(message, Peers):
            self.away = bool(message.sources)
        else:
            log.debug("order has no meaning for this stage", order=type(message).__name__)

    def work(self) -> bool:
        """Verifies one version and orders its install, or refuses it; for other machines it is packed in between, by a thread."""
        packed = self.packing.taken()
        if packed is not None:
            self._order(*packed)
        elif not self.held or self.packing.busy:
            return False
        else:
            began = self.clock()
            self._handle(self.held.popleft())
            self.computed_s += self.clock() - began
        return bool(self.held) and not self.packing.busy

    def _handle(self, delivery: Delivery) -> None:
        version = delivery.record(Version)
        try:
            verify(version)
        except (ModelError, OSError) as error:
            self.refused += 1
            log.warning("version refused", lineage=version.lineage, number=version.number, reason=str(error))
            failure = Failure(lease=delivery.lease, boundary="weights", reason=str(error))
            self.link.commit(fails=[failure])
            return
        self.verified += 1
        if self.away:
            self.packing.begin(delivery.lease, version, self.settings)
        else:
            self._order(delivery.lease, version, Parcel())

    def _order(self, lease: int, version: Version, parcel: Parcel) -> None:
        self.newest = version.number
        self.link.commit(acks=[lease], puts=[_install(version, parcel)])
        self._prune(version)

    def _prune(self, version: Version) -> None:
        """Only beside the version just verified: other directories are not this stage's to judge."""
        directory = Path(version.location).parent
        names = [name for path in directory.iterdir() if (name := version_name(path.name)) is not None]
        for name in doomed(names, version.number, self.settings.keep_versions, self.settings.max_lag):
            self._delete(directory, name)

    def _delete(self, directory: Path, name: VersionName) -> None:
        """Renamed first: whoever lists versions never sees one that is half gone."""
        aside = directory / f".{name}.deleted"
        try:
            (directory / str(name)).rename(aside)
            shutil.rmtree(aside)
        except OSError as error:
            log.warning("version could not be deleted", version=str(name), reason=str(error))

    def stats(self) -> dict[str, float]:
        counts = {"held": len(self.held), "verified": self.verified, "refused": self.refused, "delta_bytes": self.packing.delta_bytes}
        return {name: float(count) for name, count in counts.items()} | {"computed_s": self.computed_s}

    def waiting(self) -> str:
        return "" if self.held else "actor-train: a version after " + ("the start" if self.newest is None else str(self.newest))

    def drained(self) -> bool:
        return not self.held and not self.packing.busy

    def close(self) -> None:
        self.held.clear()
        self.packing.close()

    def wake_fd(self) -> int | None:
        return self.packing.wake_fd()


def _install(version: Version, parcel: Parcel) -> Put:
    install = Install(
        lineage=version.lineage,
        number=version.number,
        digest=version.digest,
        location=version.location,
        tensors=version.tensors,
        files=parcel.files,
        deltas=parcel.deltas,
    )
    fields = {"newest_version": version.number, "lineage": version.lineage, "weights": version.digest}
    return Put(queue="installs", record=install, fields=fields)
