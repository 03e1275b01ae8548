"""A client of the broker that knows nothing of this project but its page, `broker/README.md`, and two libraries: zmq and msgpack.

Plays an env and a reward process. Kept apart from all our code on purpose: a test reads its imports.
"""

import json
import os
import struct
import time

import msgpack
import zmq

from tests.broker.foreign_digest import xxh3_64

CARRIED = ("ticket", "group", "member", "attempt", "purpose")


class ForeignClient:
    """One process's side of the protocol, by the page's sections: hello twice, numbered messages, heartbeats, re-hello."""

    def __init__(self, endpoint, role, name, lock_file, queue, window):
        with open(lock_file) as lock:
            self.lock = json.load(lock)
        self.role, self.name, self.windows = role, name, {queue: window}
        self.incarnation = os.urandom(8).hex()
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.ROUTING_ID, f"{name}/{self.incarnation}".encode())
        self.socket.setsockopt(zmq.LINGER, 500)
        self.socket.connect(endpoint)
        self.epoch, self.seq = 0, 1
        self.unanswered = {}
        self.leases = set()
        self.ready = self.welcomed = self.drained = False
        self.config = None
        self.hello_at = 0.0
        self.refusals = []

    # --- the connection ---------------------------------------------------------------------------------------------------

    def send(self, message, frames=()):
        self.socket.send_multipart([msgpack.packb(message), *frames])

    def hello(self):
        answering = {lease for message, _ in self.unanswered.values() for lease in message.get("acks", ())}
        self.welcomed = False
        self.hello_at = time.monotonic() + 3.0
        self.send({
            "type": "hello", "protocol": 1, "schema": self.lock["schema"], "role": self.role, "name": self.name,
            "incarnation": self.incarnation, "pipeline": "", "ready": self.ready, "windows": self.windows if self.ready else {},
            "holds": sorted(self.leases | answering), "next_seq": min(self.unanswered, default=self.seq), "pid": os.getpid(),
        })  # fmt: skip

    def commit(self, acks, puts):
        """`puts`: (queue, record tag, body, [(dtype, bytes), ...], header fields)."""
        headers, frames = [], []
        for queue, tag, body, arrays, fields in puts:
            first = msgpack.packb({"type": tag, **body})
            described = [["msgpack", [len(first)], len(first)]]
            described += [[dtype, [len(data) // int(dtype[-1])], len(data)] for dtype, data in arrays]
            headers.append({
                "record": tag, "fingerprint": self.lock["records"][tag], "pipeline": self.config["pipeline"]["name"], "queue": queue,
                "frames": described, **fields,
            })  # fmt: skip
            frames += [first, *(data for _, data in arrays)]
        self.leases -= set(acks)
        message = {"type": "commit", "epoch": self.epoch, "seq": self.seq, "acks": list(acks), "puts": headers}
        self.unanswered[self.seq] = (message, frames)
        self.seq += 1
        if self.welcomed:
            self.send(message, frames)

    def run(self, deadline_s):
        """Until the broker sends this client home, or the time is up."""
        self.hello()
        end, heartbeat_at = time.monotonic() + deadline_s, 0.0
        while not self.drained and time.monotonic() < end:
            if self.welcomed and time.monotonic() > heartbeat_at:
                heartbeat_at = time.monotonic() + 0.2
                self.send({"type": "heartbeat", "waiting": "on the broker"})
            if not self.welcomed and time.monotonic() > self.hello_at:
                self.hello()
            if self.socket.poll(50):
                first, *frames = self.socket.recv_multipart()
                self.on_message(msgpack.unpackb(first), frames)
        self.socket.close()
        self.context.term()

    def on_message(self, message, frames):
        kind = message["type"]
        if kind == "welcome":
            self.on_welcome(message)
        elif kind == "committed":
            self.unanswered = {seq: sent for seq, sent in self.unanswered.items() if seq > message["seq"]}
        elif kind == "resend_from":
            self.resend(message["seq"])
        elif kind == "refuse":
            self.on_refuse(message)
        elif kind == "deliver":
            self.on_deliver(message, frames)
        elif kind == "abort":
            self.leases.discard(message["lease"])
            self.on_abort(message["lease"])
        elif kind == "drain":
            self.send({"type": "drained", "epoch": self.epoch, "seq": self.seq})
            self.send({"type": "bye", "reason": "run_end"})
            self.drained = True

    def on_welcome(self, message):
        self.epoch, self.config = message["epoch"], message["config"]
        if not self.ready:
            self.ready = True
            self.hello()
            return
        self.welcomed = True
        for lease in message.get("stale", ()):
            self.leases.discard(lease)
            self.on_abort(lease)
        self.unanswered = {seq: sent for seq, sent in self.unanswered.items() if seq >= message["next_seq"]}
        self.resend(message["next_seq"])

    def resend(self, start):
        for seq, (message, frames) in sorted(self.unanswered.items()):
            if seq >= start:
                self.send({**message, "epoch": self.epoch}, frames)

    def on_refuse(self, message):
        if message["reason"] == "hello_first":
            if self.welcomed:
                self.hello()
            return
        self.refusals.append(message)
        self.unanswered.pop(message.get("seq"), None)
        if message.get("fatal"):
            raise RuntimeError(f"refused for good: {message}")

    def on_deliver(self, message, frames):
        self.leases.add(message["lease"])
        header, body = message["header"], msgpack.unpackb(frames[0])
        arrays = {name: frames[1 + index] for name, index in body.items() if name in self.arrays_of(header["record"])}
        self.on_record(message["lease"], header, body, arrays)

    def arrays_of(self, tag):
        return {"ticket": (), "action": ("tokens",), "episode": ("tokens", "loss_mask", "logprobs", "kept_ids", "kept_counts")}[tag]

    def on_abort(self, lease):
        """Stop that work."""

    def on_record(self, lease, header, body, arrays):
        raise NotImplementedError


class ForeignEnv(ForeignClient):
    """Two tokens a turn, as many turns as the task index says, then the episode."""

    def __init__(self, endpoint, name, lock_file):
        super().__init__(endpoint, "env", name, lock_file, "tickets", 4)
        self.sessions = {}
        self.played = 0

    def on_record(self, lease, header, body, arrays):
        key = (header["ticket"], header["attempt"])
        if header["queue"] == "tickets":
            fields = {name: header[name] for name in CARRIED}
            self.sessions[key] = {"lease": lease, "fields": fields, "task": body["task_index"], "seed": body["seed"], "tokens": [],
                                  "mask": [], "turns": [], "versions": []}  # fmt: skip
            self.put_turn(self.sessions[key], [])
        elif key in self.sessions:
            self.on_action(key, lease, body, arrays["tokens"])

    def on_abort(self, lease):
        self.sessions = {key: session for key, session in self.sessions.items() if session["lease"] != lease}

    def put_turn(self, session, acks):
        before = packed(session["tokens"])
        said = [100 + session["task"], 200 + len(session["turns"])]
        body = {
            "context_digest": xxh3_64(before),
            "sampling": {"max_new_tokens": 3, "stop_tokens": [1]},
            "seed": session["seed"],
            "tokens": 0,
        }
        fields = {**session["fields"], "turn": len(session["turns"]), "context_tokens": len(session["tokens"]), "new_tokens": len(said)}
        session["tokens"] += said
        session["mask"] += [0] * len(said)
        self.commit(acks, [("turns", "turn", body, [("<i4", packed(said))], fields)])

    def on_action(self, key, lease, body, tokens):
        session = self.sessions[key]
        start, new = len(session["tokens"]), [token for (token,) in struct.iter_unpack("<i", tokens)]
        session["turns"].append([start - 2, start, start + len(new)])
        session["tokens"] += new
        session["mask"] += [1] * len(new)
        session["versions"] += body["sample_spans"]
        if len(session["turns"]) <= session["task"] % 3:
            self.put_turn(session, [lease])
            return
        self.put_episode(key, lease, body["kv_spans"])

    def put_episode(self, key, lease, kv_spans):
        session = self.sessions.pop(key)
        count = len(session["tokens"])
        body = {
            "task": {"index": session["task"]}, "outcome": {}, "turns": session["turns"], "sample_spans": session["versions"],
            "kv_spans": kv_spans, "tokens": 0, "loss_mask": 1, "logprobs": 2, "kept_ids": 3, "kept_counts": 4,
        }  # fmt: skip
        logprobs = struct.pack(f"<{count}f", *(-0.5 * trained for trained in session["mask"]))
        arrays = [("<i4", packed(session["tokens"])), ("|u1", bytes(session["mask"])), ("<f4", logprobs), ("<i4", b""), ("<i4", b"")]
        numbers = [version for _, _, version in session["versions"]]
        fields = {
            **session["fields"], "new_tokens": count, "trainable_tokens": sum(session["mask"]), "oldest_version": min(numbers),
            "newest_version": max(numbers),
        }  # fmt: skip
        self.commit([lease, session["lease"]], [("episodes", "episode", body, arrays, fields)])
        self.played += 1


class ForeignReward(ForeignClient):
    """Odd members are right."""

    def __init__(self, endpoint, name, lock_file):
        super().__init__(endpoint, "reward", name, lock_file, "episodes", 8)
        self.scored = 0

    def on_record(self, lease, header, body, arrays):
        reward = float(header["member"] % 2)
        sample = {
            "reward": reward, "reward_parts": {"odd": reward}, "segments": [[0, header["new_tokens"]]],
            "sample_spans": body["sample_spans"], "kv_spans": body["kv_spans"], "tokens": 0, "loss_mask": 1, "logprobs": 2,
            "ref_logprobs": 3, "kept_ids": 4, "kept_counts": 5,
        }  # fmt: skip
        frames = [
            ("<i4", arrays["tokens"]), ("|u1", arrays["loss_mask"]), ("<f4", arrays["logprobs"]), ("<f4", b""),
            ("<i4", arrays["kept_ids"]), ("<i4", arrays["kept_counts"]),
        ]  # fmt: skip
        carried = (*CARRIED, "new_tokens", "trainable_tokens", "oldest_version", "newest_version")
        fields = {name: header[name] for name in carried} | {"reward": reward}
        self.commit([lease], [("scored", "sample", sample, frames, fields)])
        self.scored += 1


def packed(tokens):
    return struct.pack(f"<{len(tokens)}i", *tokens)
