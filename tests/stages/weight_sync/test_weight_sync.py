"""weight-sync, driven through a link to nobody."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch

from schemas.errors import ConfigError
from schemas.messages import Abort, Peers, Source
from schemas.records import BlobInfo, Install, TensorInfo, Version
from stages.actor_train.versions import publish_version
from stages.blobs.cache import DIRECTORY_VARIABLE, Cache
from stages.blobs.outline import directory_files
from stages.model.checkpoint import load_decoder
from stages.weight_sync.core.retention import VersionName, doomed, version_name
from stages.weight_sync.stage import WeightSync
from tests.stages.fake_link import FakeLink, a_delivery
from tests.stages.training_builders import a_config, a_starting_model, a_welcome

HOUSE = Path(__file__).resolve().parents[3]


class Bench:
    def __init__(self, run: Path, keep_versions: int = 4, kind: str = "async", max_lag: int = 2, **settings: object) -> None:
        self.run = run
        model = a_starting_model(run / "model")
        self.decoder = load_decoder(model)
        self.link = FakeLink(str(run))
        self.stage = WeightSync(clock=lambda: 0.0)
        host = {"cache_bytes": settings.pop("cache_bytes", 1 << 40)}
        stages = {"weight_sync": {"keep_versions": keep_versions, **settings}}
        config = a_config(model, stages=stages, schedule={"kind": kind, "max_lag": max_lag}, host=host)
        self.stage.start(a_welcome(config, run), self.link)

    def publish(self, number: int, lineage: int = 0) -> Version:
        with torch.no_grad():
            self.decoder.model.norm.weight.fill_(1.0 + number / 8 + lineage)
        return publish_version(self.decoder, self.run / "versions", lineage, number, str(self.run / "model"))

    def deliver(self, version: Version, lease: int = 1) -> None:
        self.stage.deliver(a_delivery(lease, version, "versions", newest_version=version.number))
        while self.stage.work() or self.stage.packing.busy:
            pass

    def on_disk(self) -> list[str]:
        return sorted(path.name for path in (self.run / "versions").iterdir())


def test_a_verified_version_becomes_an_install_order(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    assert bench.stage.hello().windows["versions"] > 0
    version = bench.publish(3)
    bench.deliver(version, lease=9)
    (commit,) = bench.link.commits
    (put,) = commit.puts
    assert (commit.acks, commit.fails, put.queue) == ((9,), (), "installs")
    assert put.record == Install(**{name: getattr(version, name) for name in version.__struct_fields__})
    assert (put.header.newest_version, put.header.lineage, put.header.weights) == (3, 0, version.digest)


def flip(version: Version) -> Version:
    file = Path(version.location) / "model.safetensors"
    raw = bytearray(file.read_bytes())
    raw[-3] ^= 1
    file.write_bytes(raw)
    return version


def cut(version: Version) -> Version:
    file = Path(version.location) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    return version


def lose(version: Version) -> Version:
    (Path(version.location) / "model.safetensors").unlink()
    return version


def lose_config(version: Version) -> Version:
    (Path(version.location) / "config.json").unlink()
    return version


def elsewhere(version: Version) -> Version:
    return msgspec.structs.replace(version, location=version.location + "-nowhere")


def misdigested(version: Version) -> Version:
    return msgspec.structs.replace(version, digest="0" * 16)


def with_one_more_tensor(version: Version) -> Version:
    return msgspec.structs.replace(version, tensors=(*version.tensors, TensorInfo("x", "float32", (1,), "0" * 16)))


def with_another_dtype(version: Version) -> Version:
    first = msgspec.structs.replace(version.tensors[0], dtype="bfloat16")
    return msgspec.structs.replace(version, tensors=(first, *version.tensors[1:]))


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (flip, "not the record's: model.norm.weight"),
        (cut, "fit"),
        (lose, "no safetensors"),
        (lose_config, "config.json"),
        (elsewhere, "is not on this machine; start weight-sync where actor-train's files are"),
        (misdigested, "0000000000000000"),
        (with_one_more_tensor, "not the record's: x"),
        (with_another_dtype, "not the record's"),
    ],
)
def test_files_that_are_not_the_records_fail_the_lease_and_reach_no_replica(tmp_path: Path, damage: object, told: str) -> None:
    bench = Bench(tmp_path)
    bench.deliver(damage(bench.publish(1)), lease=4)  # type: ignore[operator]
    (commit,) = bench.link.commits
    assert (commit.acks, commit.puts) == ((), ())
    (failure,) = commit.fails
    assert (failure.lease, failure.boundary) == (4, "weights")
    assert told in failure.reason


def test_a_machine_without_the_run_directory_is_told_where_to_start_it(tmp_path: Path) -> None:
    model = a_starting_model(tmp_path / "model")
    away = tmp_path / "on-another-machine"
    with pytest.raises(ConfigError, match=r"on-another-machine is not on this machine.*start it beside the broker"):
        WeightSync().start(a_welcome(a_config(model), away), FakeLink(str(away)))


def test_old_versions_go_and_the_starting_model_stays(tmp_path: Path) -> None:
    bench = Bench(tmp_path, keep_versions=3, max_lag=0)
    for number in range(9):
        bench.deliver(bench.publish(number))
    assert bench.on_disk() == ["0-0", "0-6", "0-7", "0-8"]


def test_a_version_that_may_still_be_trained_on_stays_whatever_the_quota(tmp_path: Path) -> None:
    bench = Bench(tmp_path, keep_versions=1, max_lag=3)
    for number in range(9):
        bench.deliver(bench.publish(number))
    assert bench.on_disk() == ["0-0", "0-4", "0-5", "0-6", "0-7", "0-8"]


def test_under_sync_no_lag_is_kept_for(tmp_path: Path) -> None:
    bench = Bench(tmp_path, keep_versions=1, kind="sync", max_lag=5)
    for number in range(5):
        bench.deliver(bench.publish(number))
    assert bench.on_disk() == ["0-0", "0-3", "0-4"]


def test_a_refused_version_deletes_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path, keep_versions=1, max_lag=0)
    bench.publish(1)
    bench.deliver(flip(bench.publish(9)))
    assert bench.on_disk() == ["0-1", "0-9"]


def test_a_redelivered_version_that_was_pruned_since_is_a_failure_not_a_crash(tmp_path: Path) -> None:
    bench = Bench(tmp_path, keep_versions=1, max_lag=0)
    versions = [bench.publish(number) for number in range(6)]
    bench.deliver(versions[5])
    bench.deliver(versions[1], lease=2)
    assert [bool(commit.fails) for commit in bench.link.commits] == [False, True]


def test_an_aborted_version_is_let_go(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.stage.deliver(a_delivery(5, bench.publish(1), "versions"))
    assert not bench.stage.drained()
    bench.stage.order(Abort(lease=5), ())
    assert not bench.stage.work()
    assert bench.stage.drained()
    assert bench.link.commits == []


def test_a_lost_historys_versions_go_once_the_new_one_has_passed_them() -> None:
    lost = [VersionName(0, number) for number in range(8)]
    remade = [VersionName(1, number) for number in range(4, 6)]
    assert doomed([*lost, *remade], newest=5, keep_versions=2, max_lag=0) == [VersionName(0, n) for n in (1, 2, 3)]
    remade += [VersionName(1, number) for number in range(6, 11)]
    gone = doomed([*lost, *remade], newest=10, keep_versions=2, max_lag=0)
    assert gone == [*lost[1:], *(VersionName(1, n) for n in range(4, 9))]


@pytest.mark.parametrize("name", ["", "3", "a-1", "1-b", "1-2-3", ".0-1.deleted", "-1", "1-", "٣-1", "0--1"])
def test_only_directories_named_like_versions_are_touched(name: str) -> None:
    assert version_name(name) is None


def test_a_versions_name_reads_back() -> None:
    assert version_name(str(VersionName(2, 17))) == VersionName(2, 17)


def test_weight_sync_imports_no_torch() -> None:
    probe = "import sys, stages.weight_sync.stage; print('torch' in sys.modules, 'zmq' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", probe], cwd=HOUSE, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


@pytest.fixture
def away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Bench]:
    """A bench for a run in which another machine takes part."""

    def make(**settings: object) -> Bench:
        monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "cache"))
        bench = Bench(tmp_path, **settings)  # type: ignore[arg-type]
        bench.stage.order(Peers(sources=(Source("tcp://elsewhere:1"),)), ())
        return bench

    return make


def test_an_order_says_how_other_machines_get_the_files(away: Callable[..., Bench]) -> None:
    bench = away()
    for number in range(3):
        bench.deliver(bench.publish(number), number)
    orders = bench.link.records(Install)
    assert [order.files for order in orders] == [directory_files(order.location) for order in orders]
    assert [len(order.deltas) for order in orders] == [0, 1, 2]
    newest = orders[-1].deltas[0]
    assert (newest.base, newest.result) == (weights_of(orders[1]).digest, weights_of(orders[2]).digest)
    assert newest.bytes < weights_of(orders[2]).bytes
    cached = Cache(bench.run / "cache", 1 << 40)
    assert all(cached.blob(delta.digest) is not None for delta in orders[-1].deltas)


def weights_of(order: Install) -> BlobInfo:
    return next(info for info in order.files if info.name == "model.safetensors")


def test_the_chain_of_deltas_is_bounded(away: Callable[..., Bench]) -> None:
    bench = away(delta_chain_max=2)
    for number in range(5):
        bench.deliver(bench.publish(number), number)
    assert len(bench.link.records(Install)[-1].deltas) == 2


def test_full_transfer_makes_no_deltas(away: Callable[..., Bench]) -> None:
    bench = away(transfer="full")
    for number in range(2):
        bench.deliver(bench.publish(number), number)
    order = bench.link.records(Install)[-1]
    assert order.deltas == ()
    assert order.files == directory_files(order.location)
    assert not (bench.run / "cache").exists()


def test_on_one_machine_nothing_is_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "cache"))
    bench = Bench(tmp_path)
    for number in range(2):
        bench.deliver(bench.publish(number), number)
    assert [(order.files, order.deltas) for order in bench.link.records(Install)] == [((), ())] * 2
    assert not (tmp_path / "cache").exists()


def test_a_cache_without_room_for_a_delta_sends_the_whole(away: Callable[..., Bench]) -> None:
    bench = away(cache_bytes=1)
    for number in range(2):
        bench.deliver(bench.publish(number), number)
    order = bench.link.records(Install)[-1]
    assert order.deltas == ()
    assert order.files != ()


def test_a_version_whose_lease_is_lost_while_it_is_packed_is_ordered_by_nobody(away: Callable[..., Bench]) -> None:
    bench = away()
    version = bench.publish(1)
    bench.stage.deliver(a_delivery(7, version, "versions", newest_version=1))
    bench.stage.work()
    bench.stage.order(Abort(lease=7), ())
    while bench.stage.work() or bench.stage.packing.busy:
        pass
    assert bench.link.commits == []
