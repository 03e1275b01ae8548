"""Code of a user that a pipeline names: found as `module:name`, imported in the stage's process, and told apart by its source.

Promises: whatever the import does, one error says what was named, what is wrong and what to do.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import reduce
from importlib import import_module
from types import ModuleType

import xxhash

from schemas.errors import ConfigError


@dataclass(frozen=True)
class Kind:
    """What may be named under a key of the pipeline, and the error where it is not there."""

    key: str
    section: str
    """Its section, whose `path` lists folders with modules."""
    form: str
    not_found: type[ConfigError]


def find(path: str, kind: Kind) -> object:
    """Imports `module:name`. Raises `kind.not_found`."""
    module, _, name = path.partition(":")
    if not module or not name:
        raise kind.not_found(f"{kind.key} is {path!r}; write it as {kind.form}")
    try:
        return reduce(getattr, name.split("."), _imported(path, module, kind))
    except AttributeError as error:
        raise kind.not_found(f"{path}: the module {module} has no {name}") from error


def _imported(path: str, module: str, kind: Kind) -> ModuleType:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        own = module == error.name or module.startswith(f"{error.name}.")
        there = (f"no module {error.name!r} on the path; put the folder that holds it into `path` of [{kind.section}]; "
                 "on another host, install it there or name its folder in PYTHONPATH")  # fmt: skip
        cause = there if own else f"its own import of {error.name!r} fails; install that here"
        raise kind.not_found(f"{path}: {cause}") from error
    except SystemExit as error:
        raise kind.not_found(f"{path} cannot be imported: it calls sys.exit({error.code!r}) when it is imported") from error
    except Exception as error:  # the module is user code and may raise anything
        raise kind.not_found(f"{path} cannot be imported: {told(error)}") from error


def told(error: BaseException) -> str:
    """Type and text of what user code raised, as one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def source_fingerprint(found: object) -> str:
    """xxh3-64 (16 hex digits) of the source of the module that defines `found`; of its name where it has none."""
    module = inspect.getmodule(found)
    try:
        text = inspect.getsource(module) if module else repr(found)
    except OSError:
        text = module.__name__ if module else repr(found)
    return xxhash.xxh3_64_hexdigest(text.encode())
