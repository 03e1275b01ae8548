"""Keys between hosts: a directory of small files, and who is allowed in by which of them.

Owns the layout `server.key`, `server.pub`, `clients/<name>.key` (secrets, mode 0600) and `allowed/<name>.pub` (public key and roles: the
allow-list). Promises: files appear whole or not at all; a secret that others could read is refused, and none is ever part of a message,
a log line or a process's arguments. Keys are CURVE pairs (curve25519), written in Z85 as ZeroMQ does. Knows no sockets.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import TypeVar

import msgspec
import zmq
from msgspec import Struct

from broker.journal.files import DiskFiles
from schemas.config.broker import is_routable
from schemas.edges import Role
from schemas.errors import ConfigError

DIRECTORY_VARIABLE = "TIDEMILL_KEYS"
"""Names the directory of the machine that runs the broker."""
KEY_VARIABLE = "TIDEMILL_KEY"
"""Names the file with a client's secret key."""
SERVER_KEY_VARIABLE = "TIDEMILL_SERVER_KEY"
"""The broker's public key, or a file with it."""
LOCAL = "local"
"""The key of the processes that `tidemill up` starts on the broker's own machine."""
SERVER = "server"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
KEY = re.compile(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")
"""32 bytes in Z85."""
OTHERS = stat.S_IRWXG | stat.S_IRWXO
FileT = TypeVar("FileT", bound=Struct)


class PublicKey(Struct, frozen=True, forbid_unknown_fields=True):
    """`server.pub`."""

    public: str


class KeyPair(Struct, frozen=True, forbid_unknown_fields=True):
    """`server.key` and `clients/<name>.key`."""

    public: str
    secret: str

    def __repr__(self) -> str:  # a pair that finds its way into a log or a traceback tells nothing
        return f"KeyPair(public={self.public!r})"


class Allowed(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`allowed/<name>.pub`: whoever holds the secret of `public` may be any of `roles`."""

    public: str
    roles: tuple[Role, ...]
    name: str = ""
    """From the file's name."""


class ClientKeys(Struct, frozen=True):
    """What a client needs to come in: its own pair, and the broker's public key so that it is not deceived."""

    pair: KeyPair
    server: str


def default_directory() -> Path:
    """`$TIDEMILL_KEYS`, else `~/.config/tidemill/keys`."""
    named = os.environ.get(DIRECTORY_VARIABLE, "")
    return Path(named).expanduser() if named else Path.home() / ".config" / "tidemill" / "keys"


def directory_for(endpoint: str, configured: str) -> KeyDirectory | None:
    """The keys that a broker at `endpoint` asks for; None where it asks for none: ipc, and loopback unless a directory is named.

    Raises ConfigError for a routable address without keys, and for keys that cannot be used.
    """
    if not endpoint.startswith("tcp://"):
        return None
    named = configured or os.environ.get(DIRECTORY_VARIABLE, "")
    if not named and not is_routable(endpoint):
        return None
    keys = KeyDirectory(Path(configured).expanduser() if configured else default_directory())
    if not keys.exists:
        why = "others can reach this address" if is_routable(endpoint) else "keys are asked for"
        raise ConfigError(f"broker.endpoint {endpoint}: {why}, and there are no keys in {keys.path}; make some: tidemill keys new NAME")
    keys.server()
    return keys


class KeyDirectory:
    """One directory of keys. Raises ConfigError, with the file and what to do, for all that is wrong with it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def exists(self) -> bool:
        """Whether a broker can use it."""
        return (self.path / "server.key").is_file()

    def server(self) -> KeyPair:
        """The broker's own pair."""
        return read_pair(self.path / "server.key")

    def client_file(self, name: str) -> Path:
        """Where the secret of `name` is."""
        return self.path / "clients" / f"{name}.key"

    def new(self, name: str, roles: tuple[Role, ...]) -> Allowed:
        """A new client pair, allowed at once; the broker's pair too if there is none yet. The secret is written before it is allowed."""
        if not NAME.fullmatch(name):
            raise ConfigError(f"keys: {name!r} is no name for a key; use letters, digits, '.', '_' and '-', at most 64")
        if not roles:
            raise ConfigError("keys: a key without a role opens nothing; name at least one --role")
        self._make_folders()
        self._check_nobody_else_writes()
        if not self.exists:
            self._new_server()
        if (self.path / "allowed" / f"{name}.pub").exists():
            raise ConfigError(f"keys: {name} is there already; revoke it first: tidemill keys revoke {name}")
        pair = _new_pair()
        _write_new(self.client_file(name), pair, secret=True)
        allowed = Allowed(pair.public, roles)
        _write_new(self.path / "allowed" / f"{name}.pub", allowed)
        return msgspec.structs.replace(allowed, name=name)

    def _make_folders(self) -> None:
        try:
            for folder in (self.path, self.path / "clients", self.path / "allowed"):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            why = "a file is in the way" if isinstance(error, FileExistsError | NotADirectoryError) else error.strerror
            raise ConfigError(f"{self.path}: no keys can be kept here ({why}); name a folder that may be written in") from None

    def _new_server(self) -> None:
        pair = _new_pair()
        (self.path / "server.pub").unlink(missing_ok=True)  # left behind without its secret
        _write_new(self.path / "server.pub", PublicKey(pair.public))
        _write_new(self.path / "server.key", pair, secret=True)

    def revoke(self, name: str) -> None:
        """Takes `name` off the allow-list, and its secret away if it is here."""
        if not NAME.fullmatch(name) or not (self.path / "allowed" / f"{name}.pub").exists():
            known = ", ".join(sorted(file.stem for file in (self.path / "allowed").glob("*.pub"))) or "none"
            raise ConfigError(f"keys: no key {name!r} in {self.path}; there are: {known}")
        (self.path / "allowed" / f"{name}.pub").unlink()
        self.client_file(name).unlink(missing_ok=True)
        DiskFiles().sync_directory(self.path / "allowed")

    def allowed(self) -> tuple[list[Allowed], list[str]]:
        """The allow-list, and what is wrong with files that are therefore not on it. No directory allows nobody."""
        found: dict[str, Allowed] = {}
        wrong: list[str] = []
        for file in sorted((self.path / "allowed").glob("*.pub")):
            try:
                entry = _read(file, Allowed)
                _check_key(file, entry.public)
                if entry.public in found:
                    raise ConfigError(f"{file}: the same key as {found[entry.public].name}; each name needs its own")
                found[entry.public] = msgspec.structs.replace(entry, name=file.stem)
            except ConfigError as error:
                wrong.append(str(error))
        return list(found.values()), wrong

    def stamp(self) -> tuple[tuple[str, int, int], ...]:
        """Changes whenever the allow-list does."""
        try:
            with os.scandir(self.path / "allowed") as entries:
                return tuple(sorted((entry.name, entry.stat().st_mtime_ns, entry.inode()) for entry in entries))
        except FileNotFoundError:  # the folder, or a file while it was looked at
            return ()

    def check(self) -> None:
        """Raises ConfigError where a broker should not start with these keys."""
        self._check_nobody_else_writes()
        self.server()
        wrong = self.allowed()[1]
        if wrong:
            raise ConfigError("\n".join(wrong))

    def _check_nobody_else_writes(self) -> None:
        for folder in (self.path, self.path / "allowed"):
            mode = folder.stat().st_mode if folder.exists() else 0
            if mode & (stat.S_IWGRP | stat.S_IWOTH):
                danger = f"others may write here (mode {stat.S_IMODE(mode):o}) and let themselves in"
                raise ConfigError(f"{folder}: {danger}; chmod 700 {folder}")


def read_pair(file: Path) -> KeyPair:
    """A secret key. Raises ConfigError where it is missing, damaged or readable by others."""
    try:
        mode = file.stat().st_mode
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({error.strerror}); keys are made by: tidemill keys new NAME") from None
    if not stat.S_ISREG(mode):
        raise ConfigError(f"{file}: is {'a folder' if stat.S_ISDIR(mode) else 'no file'}; name the file with the secret key, NAME.key")
    if _is_public(file):
        raise ConfigError(f"{file}: a public key; name the file with the secret key, NAME.key")
    if mode & OTHERS:
        raise ConfigError(f"{file}: a secret key that others may read (mode {stat.S_IMODE(mode):o}); chmod 600 {file}")
    pair = _read(file, KeyPair)
    _check_key(file, pair.public)
    if not KEY.fullmatch(pair.secret) or zmq.curve_public(pair.secret.encode()).decode() != pair.public:
        raise ConfigError(f"{file}: public and secret key do not belong together; make a new pair: tidemill keys new NAME")
    return pair


def client_keys(key: str = "", server_key: str = "") -> ClientKeys | None:
    """A client's keys: `key` names a file, `server_key` a file or the public key itself; empty ones are taken from the environment.

    None where neither is given. Raises ConfigError where one lacks the other or cannot be used.
    """
    key, server_key = key or os.environ.get(KEY_VARIABLE, ""), server_key or os.environ.get(SERVER_KEY_VARIABLE, "")
    if not key and not server_key:
        return None
    if not key or not server_key:
        lacks = f"--key FILE or {KEY_VARIABLE}" if not key else f"--server-key or {SERVER_KEY_VARIABLE} (server.pub of the broker's keys)"
        raise ConfigError(f"keys: both sides of a connection need their key; give {lacks} as well")
    if KEY.fullmatch(key) and not Path(key).exists():  # not repeated here: it may be the secret itself
        raise ConfigError(f"keys: --key and {KEY_VARIABLE} name a file; a secret given in their place can be seen by others")
    return ClientKeys(read_pair(Path(key).expanduser()), read_server_key(server_key))


def read_server_key(named: str) -> str:
    """The broker's public key: from a file, or as it is."""
    file = Path(named).expanduser()
    if KEY.fullmatch(named) and not file.exists():
        return named
    public = _read(file, PublicKey).public
    _check_key(file, public)
    return public


def _new_pair() -> KeyPair:
    public, secret = zmq.curve_keypair()
    return KeyPair(public.decode(), secret.decode())


def _is_public(file: Path) -> bool:
    """Whether it is a key file without a secret; of a file that cannot be read that is for others to say."""
    try:
        named = msgspec.toml.decode(file.read_bytes(), type=dict[str, object])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, ValueError):
        return False
    return "public" in named and "secret" not in named


def _check_key(file: Path, key: str) -> None:
    if not KEY.fullmatch(key):
        raise ConfigError(f"{file}: 'public' is not a key of 40 characters in Z85")


def _read(file: Path, kind: type[FileT]) -> FileT:
    try:
        return msgspec.toml.decode(file.read_bytes(), type=kind)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({error.strerror})") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError):  # its text may hold a secret: not repeated
        raise ConfigError(f"{file}: not a {kind.__name__} file as `tidemill keys` writes it") from None


def _write_new(file: Path, what: Struct, *, secret: bool = False) -> None:
    """Whole or not at all, and never over another: a link is refused where the name is taken."""
    written = file.with_name(f".{file.name}.{os.getpid()}")
    descriptor = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644)
    try:
        with os.fdopen(descriptor, "wb") as out:
            out.write(_toml(what))
            out.flush()
            os.fsync(out.fileno())
        os.link(written, file)
    except FileExistsError:
        raise ConfigError(f"{file}: is there already, and is not written over; move it away first") from None
    finally:
        written.unlink()
    DiskFiles().sync_directory(file.parent)


def _toml(what: Struct) -> bytes:
    values = msgspec.to_builtins(what)
    return "".join(f"{name} = {msgspec.json.encode(value).decode()}\n" for name, value in values.items()).encode()
