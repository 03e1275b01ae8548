"""The reference stage, driven through a link to nobody."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from schemas.codec import encode_record, make_header
from schemas.errors import WireError
from schemas.messages import Abort, Fence, Grant, GrantAsked, GrantReleased, InstallFailed, InstallOrder, Receipt
from schemas.records import Install, Sample
from stages.model.checkpoint import load_decoder
from stages.model.packing import packed_by_length
from stages.reference.stage import WINDOW, Reference
from tests.stages.fake_link import PIPELINE, FakeLink, a_delivery
from tests.stages.training_builders import a_config, a_sample, a_starting_model, a_welcome, scored

NO_LOGPROBS = np.empty(0, np.float32)


class Bench:
    def __init__(self, run: Path, **reference: Any) -> None:
        self.model = a_starting_model(run / "model")
        self.link = FakeLink(str(run))
        self.stage = Reference(clock=lambda: 0.0)
        self.stage.start(a_welcome(a_config(self.model, stages={"reference": reference}), run), self.link)
        self.ready = self.stage.hello()

    def hold(self, *samples: Sample, first_lease: int = 1) -> None:
        for number, sample in enumerate(samples):
            fields: dict[str, Any] = {
                "ticket": 70 + number, "group": 7, "member": number, "attempt": 2, "purpose": "train", "new_tokens": len(sample.tokens),
                "trainable_tokens": int(sample.loss_mask.sum()), "oldest_version": 3, "newest_version": 4,
                "reward": sample.reward, "truncated": sample.truncated,
            }  # fmt: skip
            self.stage.deliver(a_delivery(first_lease + number, sample, "scored", **fields))

    def work(self) -> None:
        while self.stage.work():
            pass

    def grant(self, number: int = 1) -> None:
        self.stage.order(Grant(grant=number), ())
        self.work()

    def install(self, number: int, digest: str) -> None:
        record = Install(lineage=0, number=number, digest=digest, location="/nowhere", tensors=())
        frames = encode_record(record)
        header = make_header(record, frames, pipeline=PIPELINE, queue="installs")
        self.stage.order(InstallOrder(header=header), frames)


def unscored(seed: int, **changes: Any) -> Sample:
    return a_sample(seed, ref_logprobs=NO_LOGPROBS, **changes)


def test_samples_are_asked_for_by_credit(tmp_path: Path) -> None:
    assert Bench(tmp_path).ready.windows == {"scored": WINDOW}


def test_a_slot_is_asked_for_once_and_only_over_samples_that_are_held(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.work()
    assert bench.link.said == []
    bench.hold(unscored(1), unscored(2))
    bench.work()
    bench.work()
    assert bench.link.said == [GrantAsked()]


def test_log_probs_are_those_of_the_starting_model_whatever_shares_the_batch(tmp_path: Path) -> None:
    bench = Bench(tmp_path, batch_tokens=60)
    samples = [unscored(seed, temperature=1.0 + seed % 3 / 4) for seed in range(9)]
    bench.hold(*samples)
    bench.work()
    bench.grant()
    decoder = load_decoder(bench.model)
    results = {put.header.ticket: put.record for commit in bench.link.commits for put in commit.puts}
    assert len(results) == 9
    for number, sample in enumerate(samples):
        result = results[70 + number]
        assert isinstance(result, Sample)
        expected = scored(decoder, sample.tokens, sample.loss_mask, sample.temperature)
        np.testing.assert_allclose(result.ref_logprobs, expected, rtol=0, atol=1e-5)
        assert not result.ref_logprobs[sample.loss_mask == 0].any()


def test_a_sample_goes_on_unchanged_but_for_its_log_probs(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    sample = unscored(3, truncated=True)
    bench.hold(sample)
    bench.work()
    bench.grant()
    (commit,) = bench.link.commits
    (put,) = commit.puts
    assert commit.acks == (1,)
    assert put.queue == "samples"
    assert isinstance(put.record, Sample)
    for name in sample.__struct_fields__:
        if name != "ref_logprobs":
            assert np.array_equal(getattr(put.record, name), getattr(sample, name)), name
    header = put.header
    assert (header.ticket, header.group, header.member, header.attempt, header.purpose) == (70, 7, 0, 2, "train")
    assert (header.new_tokens, header.trainable_tokens) == (len(sample.tokens), sample.loss_mask.sum())
    assert (header.oldest_version, header.newest_version, header.reward, header.truncated) == (3, 4, 1.0, True)


def test_each_sample_is_a_commit_of_its_own(tmp_path: Path) -> None:
    """One stale lease refuses a whole commit: it must not take its neighbours' work along."""
    bench = Bench(tmp_path)
    bench.hold(*(unscored(seed) for seed in range(4)))
    bench.work()
    bench.grant()
    assert sorted(commit.acks for commit in bench.link.commits) == [(1,), (2,), (3,), (4,)]


def test_one_batch_is_one_piece_of_work_and_the_slot_goes_back_after_the_last(tmp_path: Path) -> None:
    bench = Bench(tmp_path, batch_tokens=40)
    samples = [unscored(seed) for seed in range(8)]
    bench.hold(*samples)
    bench.work()
    bench.stage.order(Grant(grant=3), ())
    pieces = 0
    while not bench.link.messages(GrantReleased):
        assert bench.stage.work()
        pieces += 1
    assert pieces == len(packed_by_length([len(sample.tokens) for sample in samples], 40))
    assert [released.grant for released in bench.link.messages(GrantReleased)] == [3]
    assert bench.stage.drained()


def test_what_arrives_under_a_grant_waits_for_the_next(tmp_path: Path) -> None:
    """The slot was granted over what was held: a steady stream must not keep it from the trainer."""
    bench = Bench(tmp_path)
    bench.hold(unscored(1))
    bench.work()
    bench.stage.order(Grant(grant=1), ())
    bench.hold(unscored(2), first_lease=50)
    bench.work()
    assert [commit.acks for commit in bench.link.commits] == [(1,)]
    assert len(bench.link.messages(GrantAsked)) == 2
    bench.grant(2)
    assert [commit.acks for commit in bench.link.commits] == [(1,), (50,)]


def test_an_aborted_lease_is_not_computed(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.hold(unscored(1), unscored(2))
    bench.work()
    bench.stage.order(Abort(lease=1), ())
    bench.grant()
    assert [commit.acks for commit in bench.link.commits] == [(2,)]


def test_a_grant_whose_samples_are_all_gone_goes_back_at_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.hold(unscored(1))
    bench.work()
    bench.stage.order(Abort(lease=1), ())
    bench.grant()
    assert [released.grant for released in bench.link.messages(GrantReleased)] == [1]
    assert bench.link.commits == []


def test_a_fenced_grant_is_asked_for_again_over_what_is_left(tmp_path: Path) -> None:
    bench = Bench(tmp_path, batch_tokens=1)
    bench.hold(unscored(1), unscored(2))
    bench.work()
    bench.stage.order(Grant(grant=1), ())
    assert bench.stage.work()
    bench.stage.order(Fence(grant=1), ())
    bench.work()
    assert len(bench.link.messages(GrantAsked)) == 2
    bench.grant(2)
    assert len(bench.link.commits) == 2
    assert [released.grant for released in bench.link.messages(GrantReleased)] == [2]


def test_the_starting_version_is_confirmed_by_the_digest_of_the_tensors_in_use(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    digest = bench.stage.model.digest()
    bench.install(0, digest)
    assert bench.link.messages(Receipt) == [Receipt(lineage=0, number=0, digest=digest)]
    assert bench.stage.hello().installed == 0


def test_another_starting_version_is_refused(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.install(0, "0123456789abcdef")
    (failed,) = bench.link.messages(InstallFailed)
    assert "0123456789abcdef" in failed.reason
    assert bench.stage.hello().installed is None


def test_a_later_version_is_refused_because_refreshes_are_not_configured(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.install(3, bench.stage.model.digest())
    (failed,) = bench.link.messages(InstallFailed)
    assert failed.number == 3
    assert "refreshes are not configured" in failed.reason


def test_a_sample_that_does_not_fit_together_is_refused_at_the_door(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    with pytest.raises(WireError, match="outside"):
        bench.hold(unscored(1, segments=((0, 999),)))
    assert bench.stage.drained()


def test_it_says_whom_it_waits_for(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    assert bench.stage.waiting().startswith("reward")
    bench.hold(unscored(1))
    bench.work()
    assert "slot" in bench.stage.waiting()
    bench.stage.order(Grant(grant=1), ())
    assert bench.stage.waiting() == ""


@pytest.mark.parametrize("top_k", [1, 3])
def test_log_probs_are_restricted_to_the_kept_ids(tmp_path: Path, top_k: int) -> None:
    bench = Bench(tmp_path)
    plain = unscored(4)
    positions = np.flatnonzero(plain.loss_mask)
    kept = [np.union1d([plain.tokens[at]], np.arange(top_k - 1)) for at in positions]
    sample = msgspec.structs.replace(
        plain,
        kept_ids=np.concatenate(kept).astype(np.int32),
        kept_counts=np.array([len(ids) for ids in kept], np.int32),
    )
    bench.hold(sample)
    bench.work()
    bench.grant()
    (result,) = bench.link.records(Sample)
    with torch.no_grad():
        logits = load_decoder(bench.model)(torch.from_numpy(plain.tokens.astype(np.int64))[None])[0].double().numpy()
    for at, ids in zip(positions, kept, strict=True):
        expected = logits[at - 1][plain.tokens[at]] - np.log(np.exp(logits[at - 1][ids]).sum())
        assert result.ref_logprobs[at] == pytest.approx(expected, abs=1e-5)
