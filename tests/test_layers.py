"""The import rules of the house, read from the source itself.

Knowledge runs one way: schemas <- broker <- stages <- tools. Deciding code is pure. Nothing of ours pickles.
A package that does not exist yet is passed over; once it exists its files are held to the rules.
"""

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

HOUSE = Path(__file__).resolve().parents[1]
LAYERS = ("schemas", "broker", "stages", "tools")
SHARED_STAGES = ("stages.service", "stages.model", "stages.blobs")
OF_SHARED = {"stages.blobs": ("stages.service",)}
"""What is shared imports no stage; the blob server is a process of its own too, in the loop that runs them all."""
TORCHLESS = ("schemas", "broker", "stages.service", "stages.blobs", "stages.env", "stages.reward", "stages.weight_sync", "stages.host")
HEAVY = ("torch", "transformers", "zmq")
# `from random import Random` stays legal as a type: the generator itself is handed in.
IMPURE = (
    *("time", "datetime", "random", "secrets", "uuid", "numpy.random"),
    *("os", "sys", "io", "pathlib", "shutil", "tempfile", "socket", "select", "signal", "subprocess"),
    *("threading", "asyncio", "multiprocessing", "concurrent"),
    *("logging", "structlog", "warnings", "rich", "typer"),
    *HEAVY,
)
PICKLERS = ("pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve")
PICKLING_CALLS = ("torch.load", "torch.save", "np.save", "numpy.save")
VAGUE_NAMES = frozenset({"util", "utils", "common", "helper", "helpers", "manager", "managers", "misc"})


@cache
def files(*packages: str) -> tuple[Path, ...]:
    """Every Python file of the dotted packages; nothing for a package that is not there yet."""
    found: list[Path] = []
    for package in packages:
        place = HOUSE.joinpath(*package.split("."))
        found += sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
    return tuple(file for file in found if file.is_file())


def module_name(file: Path) -> str:
    parts = file.relative_to(HOUSE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), filename=str(file))


def imported(file: Path) -> Iterator[tuple[str, int]]:
    """Each dotted name a file imports, wherever in the file it does so, with its line; relative imports resolved."""
    package = module_name(file) if file.name == "__init__.py" else module_name(file).rpartition(".")[0]
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1]) if node.level else ""
            source = ".".join(part for part in (above, node.module or "") if part)
            yield from ((f"{source}.{alias.name}", node.lineno) for alias in node.names)


def within(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def breaches(checked: tuple[Path, ...], forbidden: Callable[[str], bool]) -> list[str]:
    return [f"{file.relative_to(HOUSE)}:{line} imports {name}" for file in checked for name, line in imported(file) if forbidden(name)]


def impure(name: str) -> bool:
    return within(name, *IMPURE) and name != "random.Random"


def stage_packages() -> list[str]:
    stages = HOUSE / "stages"
    return [f"stages.{place.name}" for place in sorted(stages.glob("*")) if any(place.glob("*.py"))]


def deciding_files_of_stages() -> tuple[Path, ...]:
    """`core` and `policy` of each stage: one file or a folder of that name."""
    faces = [f"{stage}.{face}" for stage in stage_packages() for face in ("core", "policy")]
    return files(*faces)


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_knows_only_the_layers_below_it(layer: str) -> None:
    above = LAYERS[LAYERS.index(layer) + 1 :]
    assert breaches(files(layer), lambda name: within(name, *above)) == []


def test_stages_do_not_import_each_other() -> None:
    for stage in stage_packages():
        others = [other for other in stage_packages() if other != stage]
        allowed = SHARED_STAGES if stage not in SHARED_STAGES else OF_SHARED.get(stage, ())
        forbidden = [other for other in others if other not in allowed]
        assert breaches(files(stage), lambda name, forbidden=forbidden: within(name, *forbidden)) == []  # type: ignore[misc]


def test_our_code_never_imports_the_tests() -> None:
    assert breaches(files(*LAYERS), lambda name: within(name, "tests")) == []


def test_schemas_import_neither_torch_nor_sockets() -> None:
    assert breaches(files("schemas"), lambda name: within(name, *HEAVY)) == []


def test_processes_that_need_no_torch_do_not_import_it() -> None:
    assert breaches(files(*TORCHLESS), lambda name: within(name, "torch", "safetensors.torch")) == []


def test_the_brokers_core_and_policies_are_pure() -> None:
    assert breaches(files("broker.core", "broker.policy", "broker.diagnosis"), impure) == []


def test_the_brokers_core_knows_only_pure_parts_of_the_broker() -> None:
    pure = ("broker.core", "broker.policy")
    assert breaches(files(*pure), lambda name: within(name, "broker") and not within(name, *pure)) == []


def test_the_deciding_files_of_stages_are_pure() -> None:
    assert breaches(deciding_files_of_stages(), impure) == []


def test_nothing_of_ours_pickles() -> None:
    assert breaches(files(*LAYERS), lambda name: within(name, *PICKLERS)) == []
    calls = [
        f"{file.relative_to(HOUSE)}:{node.lineno} calls {ast.unparse(node.func)}"
        for file in files(*LAYERS)
        for node in ast.walk(tree(file))
        if isinstance(node, ast.Call) and (pickles(node) or ast.unparse(node.func) in ("eval", "exec"))
    ]
    assert calls == []


def pickles(call: ast.Call) -> bool:
    return ast.unparse(call.func) in PICKLING_CALLS or any(word.arg == "allow_pickle" for word in call.keywords)


def test_no_file_is_named_after_nothing() -> None:
    named = [str(file.relative_to(HOUSE)) for file in files(*LAYERS, "tests") if VAGUE_NAMES & {file.stem, file.parent.name}]
    assert named == []


@pytest.mark.parametrize("module", ["schemas.config", "broker.core", "broker.policy"])
def test_a_light_module_loads_nothing_heavy(module: str) -> None:
    if not files(module):
        pytest.skip(f"{module} is not there yet")
    probe = f"import sys, {module}; print(*[name for name in {HEAVY!r} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", probe], cwd=HOUSE, capture_output=True, text=True, check=False)
    assert loaded.returncode == 0, loaded.stderr
    assert loaded.stdout.split() == []
