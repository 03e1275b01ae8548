"""Directories over real sockets: with keys and without, cut, killed, damaged, refused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from broker.keys import ClientKeys
from schemas.errors import BlobError, ConfigError
from schemas.messages import Source
from stages.blobs.fetcher import Fetcher
from stages.blobs.outline import CHUNK_BYTES, directory_files, file_outline
from stages.blobs.peers import PeerKeys
from stages.blobs.server import BlobServer
from stages.blobs.shelf import Book, Shelf
from tests.skeleton.cutting_proxy import CuttingProxy, a_cutting_proxy
from tests.stages.blobs.builders import MIB, a_depot, a_directory, model_file, same, serving, some_bytes, some_keys

HOUSE = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("with_keys", [True, False])
def test_a_directory_arrives_as_it_is(tmp_path: Path, with_keys: bool) -> None:
    origin = a_directory(tmp_path / "run" / "0-1")
    (origin / "notes.md").write_text("not part of a model")
    keys, clients = some_keys(tmp_path / "keys", "host-b") if with_keys else (None, {"host-b": None})
    with serving(origin.parent, keys=keys) as (_, source), a_depot(tmp_path / "cache", clients["host-b"]) as depot:
        files = depot.fetcher.files(str(origin), [source])
        held = depot.directory(files, str(origin), [source])
        assert files == directory_files(origin)
        assert same(held.path, origin)
        assert held.bytes == held.full_bytes == sum(info.bytes for info in files)
        assert not (held.path / "notes.md").exists()


def test_what_is_cached_is_not_fetched_again(tmp_path: Path) -> None:
    origin = a_directory(tmp_path / "run" / "0-1")
    files = directory_files(origin)
    with a_depot(tmp_path / "cache") as depot:
        with serving(origin.parent) as (_, source):
            depot.directory(files, str(origin), [source]).release()
        again = depot.directory(files, str(origin), [])
        assert again.bytes == 0
        assert same(again.path, origin)


def test_a_file_that_two_directories_share_crosses_once(tmp_path: Path) -> None:
    first, second = a_directory(tmp_path / "run" / "0-1", seed=1), a_directory(tmp_path / "run" / "0-2", seed=2)
    with serving(first.parent) as (_, source), a_depot(tmp_path / "cache") as depot:
        depot.directory(directory_files(first), str(first), [source])
        held = depot.directory(directory_files(second), str(second), [source])
        assert held.bytes == model_file(directory_files(second)).bytes


def test_a_host_that_has_it_serves_it_too(tmp_path: Path) -> None:
    origin = a_directory(tmp_path / "run" / "0-1")
    files = directory_files(origin)
    with a_depot(tmp_path / "b") as second, a_depot(tmp_path / "c") as third:
        with serving(origin.parent) as (_, producer):
            second.directory(files, str(origin), [producer])
        with serving(cache=second.cache) as (_, neighbour):
            assert same(third.directory(files, str(origin), [neighbour]).path, origin)


def test_a_stranger_is_not_let_in_and_hears_why(tmp_path: Path) -> None:
    origin = a_directory(tmp_path / "run" / "0-1")
    keys, clients = some_keys(tmp_path / "keys", "host-b")
    _, strangers = some_keys(tmp_path / "other", "stranger")
    stranger = ClientKeys(strangers["stranger"].pair, clients["host-b"].server)
    with serving(origin.parent, keys=keys) as (server, source), a_depot(tmp_path / "cache", stranger) as depot:
        with pytest.raises(BlobError, match="does not let our key in"):
            depot.directory(directory_files(origin), str(origin), [source])
        assert server.sent_bytes == 0


def test_a_server_with_another_key_than_was_announced_gives_nothing(tmp_path: Path) -> None:
    origin = a_directory(tmp_path / "run" / "0-1")
    keys, clients = some_keys(tmp_path / "keys", "host-b")
    other, _ = some_keys(tmp_path / "other", "host-b")
    with serving(origin.parent, keys=other) as (server, source), a_depot(tmp_path / "cache", clients["host-b"]) as depot:
        with pytest.raises(BlobError, match="agree about keys|connection was cut|silent"):
            depot.directory(directory_files(origin), str(origin), [Source(source.endpoint, keys.server().public)])
        assert server.sent_bytes == 0


def test_peers_may_fetch_while_the_broker_says_so(tmp_path: Path) -> None:
    origin = a_directory(tmp_path / "run" / "0-1")
    files = directory_files(origin)
    _, clients = some_keys(tmp_path / "keys", "host-a", "host-b")
    peers = PeerKeys(clients["host-a"].pair)
    server = BlobServer("tcp://127.0.0.1:*", Shelf(None, [origin.parent]), peers)
    source = Source(server.endpoint, clients["host-a"].pair.public)
    try:
        peers.allow([clients["host-b"].pair.public])
        with a_depot(tmp_path / "one", clients["host-b"]) as depot:
            assert same(depot.directory(files, str(origin), [source]).path, origin)
        peers.allow([])
        assert "does not let our key in" in refusal(tmp_path, clients["host-b"], origin, source)
    finally:
        server.close()


def refusal(place: Path, keys: ClientKeys, origin: Path, source: Source) -> str:
    """What a fetch hears once the server has looked at its list again."""
    for attempt in range(100):
        with a_depot(place / f"attempt-{attempt}", keys) as depot:
            try:
                depot.directory(directory_files(origin), str(origin), [source])
            except BlobError as error:
                return str(error)
    return "never refused"


def test_an_address_that_others_can_reach_needs_keys(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no keys are asked for"):
        BlobServer("tcp://0.0.0.0:*", Shelf(None, [tmp_path]))


@pytest.mark.parametrize("place", ["/etc/hostname", "{run}/../secret.json", "{run}/link.json", "relative.json", "{run}"])
def test_nothing_outside_of_what_is_shared_is_given_out(tmp_path: Path, place: str) -> None:
    run = a_directory(tmp_path / "run")
    secret = tmp_path / "secret.json"
    secret.write_text("a secret")
    (run / "link.json").symlink_to(secret)
    digest = file_outline(secret).digest
    refused = pytest.raises(BlobError, match="not shared|absolute|no regular")
    with serving(run) as (_, source), a_depot(tmp_path / "cache") as depot, refused:
        depot.fetcher.blob(digest, secret.stat().st_size, place.format(run=run), [source])


def test_a_cut_connection_goes_on_where_it_was(tmp_path: Path) -> None:
    origin = a_directory(tmp_path / "run" / "0-1", size=40 * MIB)
    files = directory_files(origin)
    with serving(origin.parent) as (_server, source), a_cutting_proxy(source.endpoint) as proxy, a_depot(tmp_path / "cache") as depot:
        cutter = threading.Thread(target=cut_in_the_middle, args=(proxy, depot.fetcher))
        cutter.start()
        held = depot.directory(files, str(origin), [Source(proxy.endpoint)])
        cutter.join()
        assert proxy.cuts >= 1
        assert same(held.path, origin)
        assert held.bytes == held.full_bytes, "a chunk that had come was fetched again"


def cut_in_the_middle(proxy: CuttingProxy, fetcher: Fetcher) -> None:
    while fetcher.fetched_bytes < 5 * MIB:
        time.sleep(0.001)
    proxy.cut()


RECEIVER = """
import sys
from schemas.messages import Source
from stages.blobs.cache import Cache
from stages.blobs.depot import Depot
from stages.blobs.fetcher import Fetcher
from stages.blobs.outline import directory_files
cache, origin, endpoint = sys.argv[1:]
cache = Cache(__import__("pathlib").Path(cache), 1 << 40)
held = Depot(cache, Fetcher(cache, None)).directory(directory_files(origin), origin, [Source(endpoint)])
print(held.bytes)
"""


def receiver(cache: Path, origin: Path, source: Source) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", RECEIVER, str(cache), str(origin), source.endpoint], cwd=HOUSE, stdout=subprocess.PIPE)


def test_a_killed_receiver_goes_on_where_it_was(tmp_path: Path) -> None:
    origin = a_directory(tmp_path / "run" / "0-1", size=64 * MIB)
    with serving(origin.parent) as (server, source):
        first = receiver(tmp_path / "cache", origin, source)
        while server.sent_bytes < 20 * MIB:
            assert first.poll() is None, "it was quicker than the kill"
            time.sleep(0.001)
        first.send_signal(signal.SIGKILL)
        first.communicate()
        second = receiver(tmp_path / "cache", origin, source)
        said, _ = second.communicate(timeout=60)
    assert second.returncode == 0
    assert 0 < int(said.split()[-1]) <= 62 * MIB, "what the first one had is not fetched again"


def test_processes_of_one_machine_fetch_a_version_once(tmp_path: Path) -> None:
    origin = a_directory(tmp_path / "run" / "0-1", size=32 * MIB)
    total = sum(info.bytes for info in directory_files(origin))
    with serving(origin.parent) as (server, source):
        crowd = [receiver(tmp_path / "cache", origin, source) for _ in range(3)]
        fetched = [int(process.communicate(timeout=60)[0].split()[-1]) for process in crowd]
        assert sum(fetched) == total
        assert server.sent_bytes < total + MIB


def test_a_dead_source_is_left_for_the_next(tmp_path: Path) -> None:
    origin = a_directory(tmp_path / "run" / "0-1")
    with serving(origin.parent) as (_, source):
        with serving(origin.parent) as (_, dead):
            pass
        with a_depot(tmp_path / "cache") as depot:
            assert same(depot.directory(directory_files(origin), str(origin), [dead, source]).path, origin)


def test_a_server_killed_in_the_middle_is_left_for_the_next(tmp_path: Path) -> None:
    origin = a_directory(tmp_path / "run" / "0-1", size=40 * MIB)
    first = BlobServer("tcp://127.0.0.1:*", Shelf(None, [origin.parent]))
    with serving(origin.parent) as (_, second), a_depot(tmp_path / "cache") as depot:
        killer = threading.Thread(target=close_in_the_middle, args=(first, depot.fetcher))
        killer.start()
        held = depot.directory(directory_files(origin), str(origin), [Source(first.endpoint), second])
        killer.join()
        assert same(held.path, origin)
        assert held.bytes == held.full_bytes


def close_in_the_middle(server: BlobServer, fetcher: Fetcher) -> None:
    while fetcher.fetched_bytes < 5 * MIB:
        time.sleep(0.001)
    server.close()


class Rotten(Shelf):
    """A disk that damages one chunk, every time it is read."""

    bad = 2

    def chunk(self, book, index):  # type: ignore[no-untyped-def]
        data = bytearray(super().chunk(book, index))
        if index == self.bad:
            data[7] ^= 1
        return bytes(data)


def test_a_damaged_chunk_is_noticed_and_had_elsewhere(tmp_path: Path) -> None:
    origin = a_directory(tmp_path / "run" / "0-1")
    rotten = BlobServer("tcp://127.0.0.1:*", Rotten(None, [origin.parent]))
    try:
        with serving(origin.parent) as (_, sound), a_depot(tmp_path / "cache") as depot:
            held = depot.directory(directory_files(origin), str(origin), [Source(rotten.endpoint), sound])
            assert same(held.path, origin)
    finally:
        rotten.close()


def test_damage_that_nobody_can_mend_is_refused_and_never_seen(tmp_path: Path) -> None:
    origin = a_directory(tmp_path / "run" / "0-1")
    rotten = BlobServer("tcp://127.0.0.1:*", Rotten(None, [origin.parent]))
    try:
        with a_depot(tmp_path / "cache") as depot:
            with pytest.raises(BlobError, match="chunks came damaged"):
                depot.directory(directory_files(origin), str(origin), [Source(rotten.endpoint)])
            assert depot.cache.blob(model_file(directory_files(origin)).digest) is None
    finally:
        rotten.close()


def test_a_file_that_changed_since_is_not_what_was_asked_for(tmp_path: Path) -> None:
    origin = a_directory(tmp_path / "run" / "0-1")
    files = directory_files(origin)
    (origin / "model.safetensors").write_bytes(some_bytes(5 * MIB + 17, seed=9))
    with serving(origin.parent) as (_, source), a_depot(tmp_path / "cache") as depot, pytest.raises(BlobError, match="hashes to"):
        depot.directory(files, str(origin), [source])


class Slow(Shelf):
    """A disk that takes long to read a file through."""

    seconds = 4.0

    def find(self, digest: str, place: str = "") -> Book:
        time.sleep(self.seconds)
        return super().find(digest, place)


def test_a_source_that_reads_a_large_file_through_is_waited_for(tmp_path: Path) -> None:
    origin = a_directory(tmp_path / "run")
    info = model_file(directory_files(origin))
    with serving(shelf=Slow(None, [origin])) as (_, source), a_depot(tmp_path / "cache", patience_s=3.0) as depot:
        found = depot.fetcher.blob(info.digest, info.bytes, str(origin / info.name), [source])
        assert file_outline(found).digest == info.digest


def test_a_version_deleted_in_the_middle_still_arrives(tmp_path: Path) -> None:
    origin = a_directory(tmp_path / "run" / "0-1", size=40 * MIB)
    files = directory_files(origin)
    kept = a_directory(tmp_path / "kept", size=40 * MIB)
    with serving(origin.parent) as (_, source), a_depot(tmp_path / "cache") as depot:
        deleter = threading.Thread(target=delete_in_the_middle, args=(origin, depot.fetcher))
        deleter.start()
        held = depot.directory(files[::-1], str(origin), [source])  # the weights last
        deleter.join()
        assert same(held.path, kept)


def delete_in_the_middle(origin: Path, fetcher: Fetcher) -> None:
    while fetcher.fetched_bytes < 5 * MIB:
        time.sleep(0.001)
    (origin / "model.safetensors").unlink()


def test_garbage_does_not_stop_a_server(tmp_path: Path) -> None:
    import zmq

    origin = a_directory(tmp_path / "run" / "0-1")
    with serving(origin.parent) as (_, source), a_depot(tmp_path / "cache") as depot:
        context = zmq.Context()
        socket = context.socket(zmq.DEALER)
        socket.connect(source.endpoint)
        for frames in (
            [b""],
            [b"\xc1"],
            [b"x" * 1000, b"y"],
            [b"\x81\xa4type\xa5chunk"],
            [b"\xff" * 60_000],
            [os.urandom(100) for _ in range(50)],
        ):
            socket.send_multipart(frames)
        assert socket.poll(5000), "an answer that says what is wrong"
        held = depot.directory(directory_files(origin), str(origin), [source])
        context.destroy(linger=0)
        assert same(held.path, origin)


def test_an_empty_file_and_one_of_whole_chunks_arrive(tmp_path: Path) -> None:
    origin = tmp_path / "run"
    origin.mkdir()
    (origin / "added_tokens.json").write_bytes(b"")
    (origin / "model.safetensors").write_bytes(some_bytes(3 * CHUNK_BYTES))
    with serving(origin) as (_, source), a_depot(tmp_path / "cache") as depot:
        assert same(depot.directory(directory_files(origin), str(origin), [source]).path, origin)
