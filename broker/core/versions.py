"""Versions and installs: which weights the trainer made, which a replica should have, which it is proven to have.

A replica counts as having a version only with its receipt. The target is the newest version, or, while an evaluation is
open, the version that it is pinned to: every install beyond it waits until its turns are done.
"""

from __future__ import annotations

from broker.core import evaluations, lineage, peers
from broker.core.actions import Attachment
from broker.core.crank import Crank
from broker.core.index import index_of
from broker.core.state import Client, Installing, Queued, State
from schemas.edges import Role
from schemas.header import Header
from schemas.messages import InstallFailed, InstallOrder, Receipt

STARTING_VERSION = 0
RECEIPT_SECONDS = 120.0
"""Reading and installing the weights of a large model takes tens of seconds; a replica that is later than this is stuck."""
MAX_INSTALL_FAILURES = 3
"""Weights that fail so often on one replica will not arrive: the run ends and says so."""


def put_version(crank: Crank, header: Header) -> int:
    """The trainer published a version, and is idle unless a later plan is in its hands.

    Returns the message id, 0 where the version is known and needs no new install.
    """
    state = crank.state
    number = header.newest_version or 0
    digest = header.weights or ""
    trainer = state.trainer
    trainer.idle = not any(step.sent and step.step > number for step in state.steps.values())
    crank.plan_due = True
    known = trainer.digests.get(number)
    if known == digest and any(number <= installed for installed in state.installs):
        crank.note("version_adopted", version=number)
        return 0
    if known is not None and known != digest:
        lineage.lose_from(crank, number)
    trainer.digests[number] = digest
    message = Queued(id=crank.new_message(), queue="versions", header=header, put_at=crank.now)
    crank.enqueue(message)
    return message.id


def put_install(crank: Crank, header: Header) -> int:
    """weight-sync verified a version: replicas may have it. Returns the message id."""
    state = crank.state
    number = header.newest_version or 0
    message = Queued(id=crank.new_message(), queue="installs", header=header, put_at=crank.now)
    state.messages[message.id] = message
    replaced = state.installs.pop(number, None)
    if replaced is not None:
        crank.forget(replaced.message)
    state.installs[number] = Installing(number=number, lineage=header.lineage or 0, digest=header.weights or "",
                                         message=message.id)  # fmt: skip
    crank.progressed()
    offer_all(crank)
    return message.id


def target(state: State) -> int | None:
    """The version that rollout replicas should hold now; None before the first is known."""
    if not state.installs:
        return None
    evaluation = evaluations.open_one(state)
    if evaluation is not None and evaluation.version in state.installs:
        return evaluation.version
    return max(state.installs)


def offer_all(crank: Crank) -> None:
    """Orders every replica that lacks the target to install it; forgets installs that no replica will need."""
    state = crank.state
    wanted = target(state)
    if wanted is None:
        return
    for client in list(state.clients.values()):
        offer(crank, client)
    newest = max(state.installs)
    for number in [n for n in state.installs if n not in (wanted, newest)]:
        crank.forget(state.installs.pop(number).message)


def offer(crank: Crank, client: Client) -> None:
    """Orders one replica to install what it should have, unless it has it or was already told."""
    state = crank.state
    wanted = _wanted_by(state, client)
    if wanted is None or not client.connected or not client.ready or wanted in (client.installed, client.offered):
        return
    client.offered, client.offered_at, client.fetched = wanted, crank.now, _fetched(client)
    install = state.installs[wanted]
    header = state.messages[install.message].header
    order = InstallOrder(header=header, sources=peers.sources(state, client, wanted))
    crank.send(client.name, order, Attachment(install.message))


def _wanted_by(state: State, client: Client) -> int | None:
    """Rollout follows the target. Reference proves once that its frozen model is the starting version, and keeps it."""
    if client.role == Role.ROLLOUT:
        return target(state)
    if client.role == Role.REFERENCE and client.installed is None and STARTING_VERSION in state.installs:
        return STARTING_VERSION
    return None


def on_receipt(crank: Crank, client: Client, receipt: Receipt) -> None:
    """A replica proved that a version is in use."""
    digest = crank.state.trainer.digests.get(receipt.number)
    if client.offered == receipt.number:
        client.offered = None
    if digest != receipt.digest:
        on_install_failed(crank, client, InstallFailed(number=receipt.number, reason=f"receipt {receipt.digest} is not {digest}"))
        return
    client.installed = receipt.number
    crank.touched.add(client.name)
    client.stats["install_failures"] = 0.0
    crank.note("installed", replica=client.name, version=receipt.number, seconds=receipt.seconds, bytes=receipt.metrics.get("bytes", 0.0))
    _account(crank.state, receipt)
    crank.dirty.add("turns")
    crank.progressed()
    offer(crank, client)


def on_install_failed(crank: Crank, client: Client, failure: InstallFailed) -> None:
    """The replica keeps the version it has, and is asked again a few times."""
    client.offered = None
    failures = client.stats.get("install_failures", 0.0) + 1
    client.stats["install_failures"] = failures
    crank.note("install_failed", replica=client.name, version=failure.number, reason=failure.reason)
    if failures >= MAX_INSTALL_FAILURES:
        crank.fail_run(client.name, f"version {failure.number} could not be installed: {failure.reason}",
                       "look at the replica's log and at the versions directory")  # fmt: skip
        return
    offer(crank, client)


def _account(state: State, receipt: Receipt) -> None:
    """Adds a receipt to what the next line of metrics says of installs."""
    found, sums = receipt.metrics, state.install_metrics
    added = {
        "install/receipts": 1.0,
        "install/seconds": receipt.seconds,
        "install/bytes": found.get("bytes", 0.0),
        "install/full_bytes": found.get("full_bytes", 0.0),
        "install/fetch_seconds": found.get("fetch_seconds", 0.0),
    }
    for name, value in added.items():
        sums[name] = sums.get(name, 0.0) + value


def _fetched(client: Client) -> float:
    return client.stats.get("fetched_bytes_total", 0.0)


def expire(crank: Crank) -> None:
    """A replica that owes a receipt for too long gets no more turns, and is asked again: it is unrouted, not awaited.

    While its files still come over the network it is not late.
    """
    for client in list(crank.state.clients.values()):
        if client.offered is None or not client.connected or crank.now < client.offered_at + RECEIPT_SECONDS:
            continue
        if _fetched(client) > client.fetched:
            client.fetched, client.offered_at = _fetched(client), crank.now
            continue
        client.installed = None
        crank.touched.add(client.name)
        reason = f"no receipt within {RECEIPT_SECONDS:.0f} s"
        on_install_failed(crank, client, InstallFailed(number=client.offered, reason=reason))


def in_use(state: State) -> int | None:
    """The newest version that a connected replica has a receipt for."""
    return index_of(state).newest
