"""The rollout stage against its link: what it plays, what it refuses, and what its receipts prove."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import xxhash

from schemas.errors import ModelError
from schemas.messages import Abort, CloseSession, Credit, InstallFailed, Receipt
from schemas.records import Action, Install, TensorInfo, VersionSpan
from stages.model.tensor_file import manifest_digest
from stages.rollout.fake_engine import FakeEngine
from stages.rollout.stage import Rollout
from stages.rollout.weights import InstallRefusedError, Replica, install
from tests.stages.env.builders import FakeLink, a_welcome
from tests.stages.rollout.stage_builders import STOP, a_turn, finish, order


class TextWeights:
    """Versions as JSON files of name to text; the engine's own copy can be spoilt."""

    def __init__(self) -> None:
        self.spoilt = False

    def read(self, location: str) -> dict[str, Any]:
        try:
            return dict(json.loads(Path(location).read_text()))
        except FileNotFoundError as error:
            raise ModelError(f"{location} is not there") from error

    def digests(self, state: Any) -> dict[str, str]:
        return {name: xxhash.xxh3_64_hexdigest(text.encode()) for name, text in state.items()}

    def digest_in_use(self, state: Any) -> str:
        used = dict.fromkeys(state, "spoilt") if self.spoilt else state
        return manifest_digest(infos(self.digests(used)))


def infos(digests: dict[str, str]) -> tuple[TensorInfo, ...]:
    return tuple(TensorInfo(name, "float32", (1,), digest) for name, digest in digests.items())


def an_install(at: Path, number: int = 3, **changes: Any) -> Install:
    state = {"a": f"weights {number}", "b": "norm"}
    at.write_text(json.dumps(state))
    tensors = infos(TextWeights().digests(state))
    order = Install(lineage=1, number=number, digest=manifest_digest(tensors), location=str(at), tensors=tensors)
    return msgspec.structs.replace(order, **changes)


@pytest.fixture
def begun(tmp_path: Path) -> tuple[Rollout, FakeLink, Replica]:
    """A stage over a fake engine, with version 3 installed."""
    return begin(tmp_path)


def begin(at: Path, installed: bool = True) -> tuple[Rollout, FakeLink, Replica]:
    replica = Replica(FakeEngine(version=-1), TextWeights())
    stage, link = Rollout(engine_factory=lambda config: replica), FakeLink()
    stage.start(a_welcome(at, stages__rollout={"max_running": 6}), link)
    if installed:
        order(stage, an_install(at / "v3"))
        stage.work()
        link.sent.clear()
    return stage, link, replica


def test_a_turn_is_answered_by_one_commit_that_acks_it(begun: tuple[Rollout, FakeLink, Replica]) -> None:
    stage, link, _ = begun
    stage.deliver(a_turn(41, [1, 2, 3], turn=0, member=4))
    finish(stage)
    (commit,) = link.commits
    action, header = commit.puts[0].record, commit.puts[0].header
    assert isinstance(action, Action)
    assert (commit.acks, commit.puts[0].queue, action.tokens.tolist()) == ((41,), "actions", [1, 2, 3, STOP])
    assert (action.finish_reason, action.sample_spans) == ("stop", (VersionSpan(3, 7, 3),))
    assert (header.ticket, header.attempt, header.member, header.turn, header.purpose) == (7, 1, 4, 0, "train")
    assert (header.context_tokens, header.new_tokens, header.trainable_tokens) == (3, 4, 4)
    assert (header.oldest_version, header.newest_version) == (3, 3)
    assert stage.drained()


def test_a_second_turn_needs_only_what_was_appended(begun: tuple[Rollout, FakeLink, Replica]) -> None:
    stage, link, replica = begun
    stage.deliver(a_turn(41, [1]))
    finish(stage)
    stage.deliver(a_turn(42, [5], before=(1, 1, STOP), held=3, turn=1))
    finish(stage)
    assert link.commits[1].puts[0].header.context_tokens == 4
    assert replica.engine.held((7, 1)) == 6


def test_a_replica_that_holds_nothing_is_sent_the_context(begun: tuple[Rollout, FakeLink, Replica]) -> None:
    stage, link, replica = begun
    stage.deliver(a_turn(42, [5], before=(1, 1, STOP), turn=1))
    finish(stage)
    assert link.commits[0].acks == (42,)
    assert replica.engine.held((7, 1)) == 4 + len(link.commits[0].puts[0].record.tokens)


@pytest.mark.parametrize("believed", [(1, 2, STOP), (1, 1, STOP, 4)])
def test_a_context_other_than_envs_is_refused_and_our_copy_dropped(
    begun: tuple[Rollout, FakeLink, Replica], believed: tuple[int, ...]
) -> None:
    stage, link, replica = begun
    stage.deliver(a_turn(41, [1]))
    finish(stage)
    stage.deliver(a_turn(42, [5], before=believed, held=len(believed), turn=1))
    (failure,) = link.commits[1].fails
    assert (failure.lease, failure.boundary) == (42, "rollout")
    assert failure.reason.startswith("context mismatch")
    assert replica.engine.held((7, 1)) == 0
    stage.deliver(a_turn(43, [5], before=believed, turn=1))
    finish(stage)
    assert link.commits[2].acks == (43,), "delivered with its whole context it is played"


def test_a_turn_that_the_engine_refuses_is_data(begun: tuple[Rollout, FakeLink, Replica]) -> None:
    stage, link, _ = begun
    stage.deliver(a_turn(41, [1 << 21]))
    assert "token id" in link.commits[0].fails[0].reason
    assert stage.drained()


def test_an_aborted_turn_is_never_committed(begun: tuple[Rollout, FakeLink, Replica]) -> None:
    stage, link, replica = begun
    stage.deliver(a_turn(41, [1, 2, 3]))
    stage.work()
    stage.order(Abort(lease=41), ())
    assert not replica.engine.has_work()
    finish(stage)
    assert link.commits == []
    assert stage.drained()


def test_a_turn_delivered_anew_takes_the_place_of_the_old_lease(begun: tuple[Rollout, FakeLink, Replica]) -> None:
    stage, link, _ = begun
    stage.deliver(a_turn(41, [1, 2, 3]))
    stage.work()
    stage.deliver(a_turn(44, [1, 2, 3]))
    finish(stage)
    assert [commit.acks for commit in link.commits] == [(44,)]


def test_a_session_sampled_elsewhere_meanwhile_is_played_on_its_own_tokens(
    begun: tuple[Rollout, FakeLink, Replica],
) -> None:
    stage, link, replica = begun
    stage.deliver(a_turn(41, [1]))
    finish(stage)
    elsewhere = (1, 7, 7, STOP)
    stage.deliver(a_turn(45, [5], before=elsewhere, turn=1))
    finish(stage)
    assert link.commits[1].puts[0].header.context_tokens == 5
    assert replica.engine.held((7, 1)) == 5 + len(link.commits[1].puts[0].record.tokens)


def test_a_closed_session_is_forgotten(begun: tuple[Rollout, FakeLink, Replica]) -> None:
    stage, link, replica = begun
    stage.deliver(a_turn(41, [1, 2, 3]))
    stage.order(CloseSession(ticket=7, attempt=1), ())
    finish(stage)
    assert (link.commits, replica.engine.held((7, 1)), replica.engine.stats().sessions) == ([], 0, 0)


def test_no_window_is_open_before_the_first_receipt(tmp_path: Path) -> None:
    stage, link, _ = begin(tmp_path, installed=False)
    assert (stage.hello().windows, stage.hello().installed) == ({}, None)
    assert stage.waiting() == "on weight-sync for the first version"
    order(stage, an_install(tmp_path / "v3"))
    stage.work()
    assert isinstance(link.sent[0], Receipt)
    assert link.sent[1:] == [Credit(queue="turns", window=6)]
    assert (stage.hello().windows, stage.hello().installed) == ({"turns": 6}, 3)


def test_a_receipt_repeats_lineage_and_number_and_the_digest_in_use(tmp_path: Path) -> None:
    stage, link, _ = begin(tmp_path, installed=False)
    record = an_install(tmp_path / "v3")
    order(stage, record)
    stage.work()
    receipt = link.sent[0]
    assert isinstance(receipt, Receipt)
    assert (receipt.lineage, receipt.number, receipt.digest) == (1, 3, record.digest)


def test_weights_change_between_two_decode_steps_and_spans_say_so(begun: tuple[Rollout, FakeLink, Replica], tmp_path: Path) -> None:
    stage, link, _ = begun
    stage.deliver(a_turn(41, [1, 2, 3]))
    stage.work()
    order(stage, an_install(tmp_path / "v4", 4))
    finish(stage)
    assert link.commits[0].puts[0].record.sample_spans == (VersionSpan(3, 4, 3), VersionSpan(4, 7, 4))
    header = link.commits[0].puts[0].header
    assert (header.oldest_version, header.newest_version) == (3, 4)


def spoil_file(record: Install) -> Install:
    Path(record.location).write_text('{"a": "other weights", "b": "norm"}')
    return record


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (spoil_file, "1 tensors differ, a among them"),
        (lambda record: msgspec.structs.replace(record, location=f"{record.location}-gone"), "is not there"),
        (lambda record: msgspec.structs.replace(record, digest="0" * 16), "not that of its own tensors"),
    ],
)
def test_an_install_that_does_not_match_its_digest_is_refused_before_use(
    begun: tuple[Rollout, FakeLink, Replica], tmp_path: Path, spoil: Callable[[Install], Install], told: str
) -> None:
    stage, link, replica = begun
    order(stage, spoil(an_install(tmp_path / "v4", 4)))
    stage.work()
    (failed,) = link.sent
    assert isinstance(failed, InstallFailed)
    assert failed.number == 4
    assert told in failed.reason
    assert (replica.engine.stats().version, stage.hello().installed) == (3, 3)


def test_a_receipt_is_recomputed_from_the_tensors_in_use(tmp_path: Path) -> None:
    weights = TextWeights()
    weights.spoilt = True
    with pytest.raises(InstallRefusedError, match="the tensors in use hash to"):
        install(Replica(FakeEngine(), weights), an_install(tmp_path / "v3"))


def test_a_hello_names_the_sessions_that_are_held(begun: tuple[Rollout, FakeLink, Replica]) -> None:
    stage, _, _ = begun
    stage.deliver(a_turn(41, [1], ticket=7, attempt=2))
    stage.deliver(a_turn(42, [1], ticket=8))
    stage.order(CloseSession(ticket=8, attempt=1), ())
    assert stage.hello().sessions == ((7, 2),)


def test_statistics_count_turns_and_tokens(begun: tuple[Rollout, FakeLink, Replica]) -> None:
    stage, _, _ = begun
    stage.deliver(a_turn(41, [1]))
    finish(stage)
    stats = stage.stats()
    assert (stats["turns_total"], stats["tokens_total"], stats["installs_total"], stats["version"]) == (1, 2, 1, 3)
    assert stage.waiting() == "on env for turns"


def test_the_stage_itself_loads_no_torch() -> None:
    probe = "import sys, stages.rollout.stage; assert 'torch' not in sys.modules and 'zmq' not in sys.modules"
    subprocess.run([sys.executable, "-c", probe], check=True)
