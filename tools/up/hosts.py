"""The hosts of a run: what `tidemill up FILE --hosts hosts.toml` reads, checked as the pipeline's file is.

Owns the models of that file and its complaints, each a line with the file, the key and what was expected. Starts nothing.
"""

from __future__ import annotations

import difflib
import shlex
import shutil
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from schemas.config.broker import check_endpoint
from schemas.config.complaints import EXPECTED, dotted, shown
from schemas.config.load import read_toml
from schemas.config.run import StageRole
from schemas.config.section import Folders, Name, Section, matching
from schemas.errors import ConfigError
from stages.host.slots import slots_named

LOCAL_ADDRESS = "local"
HEAD = "head"
"""The name of this machine's host where the file names none."""


def _check_slots(text: str) -> str:
    try:
        slots_named(text, [0])
    except ConfigError as error:
        raise PydanticCustomError("slots", "{why}", {"why": str(error).partition(": ")[2]}) from None
    return text


def _check_words(text: str) -> str:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise PydanticCustomError("words", "expected a command: {why}", {"why": str(error)}) from None
    if not words or not words[0].strip():  # a blank one would lead to this machine
        raise PydanticCustomError("words", "expected a command; leave the key out where none is needed")
    return text


def _check_broker(endpoint: str) -> str:
    if endpoint and not endpoint.startswith("tcp://"):
        raise PydanticCustomError("endpoint", "expected tcp://<address>:<port>, as the other hosts reach it")
    if any(wild in endpoint for wild in ("://*", "://0.0.0.0", "://[::]")):
        raise PydanticCustomError("endpoint", "no host can connect to every address; name the one by which they reach it")
    return check_endpoint(endpoint)


Target = Annotated[str, matching(r"[A-Za-z0-9_][A-Za-z0-9_.@:\[\]%-]*|", '"local", or an ssh target such as user@machine')]
"""No dash in front: ssh would take it for an option."""
Command = Annotated[str, AfterValidator(_check_words)]
Python = Annotated[str, matching(r"[A-Za-z0-9_./~+-]+", "the path of a python without blanks")]


class HostEntry(Section):
    """One `[[hosts]]` table: a machine of the run."""

    name: Name
    """Its name in the run; unique."""
    address: Target = ""
    """`local` for this machine, else what ssh is to connect to; empty: the name."""
    connect: Command = ""
    """Command that runs what follows it on that machine, instead of ssh: `ip netns exec far`, `docker exec -i far`."""
    slots: Annotated[str, AfterValidator(_check_slots)] = "auto"
    """What it offers: `cpu:0-1`, `gpu:0-7`, or `auto`: each GPU, where there is none each core."""
    directory: str = ""
    """Its working directory, for logs and weights; empty: ~/.cache/tidemill/hosts/NAME there, on this machine the run directory."""
    python: Python = "python3"
    """The python there that has Tidemill, such as ~/venv/bin/python; on this machine always the one that runs now."""
    roles: Annotated[tuple[StageRole, ...], Field(strict=False)] = ()
    """Roles that may run there; empty: every role."""
    blobs: Annotated[str, AfterValidator(_check_broker)] = ""
    """`tcp://<address>:<port>` at which the others fetch weights from it, where not every port is open; empty: any port."""
    path: Folders = ()
    """Folders there with your environment and reward; not needed where they are installed."""

    @property
    def is_local(self) -> bool:
        """Whether it is this machine, without a line in between."""
        return self.address == LOCAL_ADDRESS and not self.connect


class HostsFile(Section):
    """`hosts.toml`, whole."""

    broker: Annotated[str, AfterValidator(_check_broker)] = ""
    """`tcp://<address of this machine>:<port>` by which all hosts reach it; empty: `broker.endpoint` of the pipeline."""
    ssh: Command = "ssh"
    """The ssh command, with options where it needs some: `ssh -F my_config`."""
    hosts: Annotated[tuple[HostEntry, ...], Field(strict=False, min_length=1)]
    """The machines."""


def read_hosts(file: Path) -> HostsFile:
    """The file, and this machine among its hosts. Raises ConfigError, a line for each thing that is wrong."""
    try:
        found = HostsFile.model_validate(read_toml(file, "docs/many-hosts.md says what stands in one"))
    except ValidationError as error:
        raise ConfigError("\n".join(f"{file}: {_complaint(each)}" for each in _causes(error))) from None
    twice = [name for name, count in Counter(host.name for host in found.hosts).items() if count > 1]
    local = [host.name for host in found.hosts if host.is_local]
    if twice:
        raise ConfigError(f"{file}: two hosts are named {twice[0]!r}; each needs a name of its own")
    if len(local) > 1:
        raise ConfigError(f"{file}: {' and '.join(local)} are both this machine; write one host for it")
    outside = [host.name for host in found.hosts if host.is_local and host.directory]
    if outside:
        raise ConfigError(f"{file}: {outside[0]} is this machine and works in the run directory, where the trainer writes; "
                          "leave its directory out")  # fmt: skip
    if missing := _commands_that_are_not_there(found):
        raise ConfigError("\n".join(f"{file}: {each}" for each in missing))
    if local:
        return found
    if HEAD in (host.name for host in found.hosts):
        raise ConfigError(f"{file}: a host named {HEAD!r} is this machine: give it address = {LOCAL_ADDRESS!r}, or another name")
    return found.model_copy(update={"hosts": (HostEntry(name=HEAD, address=LOCAL_ADDRESS), *found.hosts)})


def _commands_that_are_not_there(found: HostsFile) -> list[str]:
    """What this machine could not start to reach a host, a line for each."""
    commands = {f"hosts[{number}].connect": host.connect for number, host in enumerate(found.hosts) if host.connect}
    if any(not host.connect and not host.is_local for host in found.hosts):
        commands["ssh"] = found.ssh
    first_words = {key: shlex.split(command)[0] for key, command in commands.items()}
    return [f"{key}: no such command {word!r}" for key, word in first_words.items() if shutil.which(word) is None]


def _causes(error: ValidationError) -> list[ErrorDetails]:
    """Without the list that is too short only because pydantic left the wrong entries out of it."""
    found = error.errors(include_url=False)
    inside = {each["loc"][:end] for each in found for end in range(1, len(each["loc"]))}
    return [each for each in found if each["type"] != "too_short" or each["loc"] not in inside]


def _complaint(found: ErrorDetails) -> str:
    loc = found["loc"]
    if found["type"] == "extra_forbidden":
        return f"{dotted(loc)}: unknown key; {_nearest(loc)}"
    if found["type"] == "missing":
        return f"{dotted(loc)} is missing"
    expected = EXPECTED.get(found["type"])
    text = f"expected {expected.format(**found.get('ctx', {}))}" if expected else found["msg"]
    return f"{dotted(loc)} = {shown(found['input'])}: {text}"


def _nearest(loc: tuple[Any, ...]) -> str:
    names = list((HostEntry if len(loc) > 1 else HostsFile).model_fields)
    near = difflib.get_close_matches(str(loc[-1]), names, n=1)
    return f"did you mean {near[0]}?" if near else f"known here: {', '.join(names)}"
