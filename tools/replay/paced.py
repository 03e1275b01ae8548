"""The rollout process of a replay: `python -m stages.rollout`, but for an engine that is held to the recorded pace."""

from __future__ import annotations

import os

import msgspec

from stages.service.main import run
from tools.replay.lookahead import Part, recorded_turns
from tools.replay.process import RECORDED
from tools.replay.staging import paced_rollout

if __name__ == "__main__":
    run(paced_rollout(recorded_turns(msgspec.json.decode(os.environ[RECORDED], type=Part))))
