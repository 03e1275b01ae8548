"""A coverage-guided fuzzer for everything that reads bytes from a stranger: `make fuzz`, or `python -m tests.fuzz.decoder [SECONDS]`.

Reads each input as a client's first frame, a broker's, a record's body and its arrays, and as the header's word on them. Anything but
WireError is a finding: it is written to `.fuzz/` and ends the run with a traceback. The corpus begins with real messages.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["schemas", "broker.driver"]):
    from broker.intake import check_puts
    from schemas.codec import decode_broker_message, decode_client_message, decode_record, encode_message, encode_record
    from schemas.errors import WireError
    from schemas.messages import Commit
    from schemas.records import RECORDS

FOLDER = Path(".fuzz")
SECONDS = 60
SPLIT = b"\x00\xff\x00"
"""Between the frames of one input."""


def one_input(data: bytes) -> None:
    """Raises only for a finding."""
    frames = data.split(SPLIT)
    for decode in (decode_client_message, decode_broker_message):
        with suppress(WireError):
            message = decode(frames[0])
            if isinstance(message, Commit):
                check_puts(message, frames[1:])
            assert encode_message(message)
    for kind in RECORDS.values():
        with suppress(WireError):
            decode_record(kind, frames)


def seed_corpus(folder: Path) -> None:
    """Real messages and records, one a file."""
    from tests.broker.security.specimens import CLIENT_MESSAGES, RECORD_SPECIMENS

    folder.mkdir(parents=True, exist_ok=True)
    for number, message in enumerate(CLIENT_MESSAGES):
        frames = encode_record(RECORD_SPECIMENS[0]) if isinstance(message, Commit) else []
        (folder / f"message-{number}").write_bytes(SPLIT.join([encode_message(message), *map(bytes, frames)]))
    for number, record in enumerate(RECORD_SPECIMENS):
        (folder / f"record-{number}").write_bytes(SPLIT.join(map(bytes, encode_record(record))))


def main() -> None:
    """Fuzzes for so many seconds; never returns (libFuzzer ends the process, 0 where nothing was found)."""
    seconds = int(sys.argv[1]) if len(sys.argv) > 1 else SECONDS
    seed_corpus(FOLDER / "corpus")
    limits = ["-rss_limit_mb=1024", "-timeout=10", "-max_len=65536", "-print_final_stats=1"]
    atheris.Setup([sys.argv[0], f"-max_total_time={seconds}", f"-artifact_prefix={FOLDER}/", *limits, str(FOLDER / "corpus")], one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
