"""Name -> variant: files in `variants/`, packages under the entry-point group `bench.variants`, files a user names.

Names, claims and knobs are read from the source text, so listing and validating import nothing: no torch, and a
plugin that would crash on import stops nobody. `load` imports, and only workers call it.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import importlib
import importlib.machinery
import importlib.metadata
import importlib.util
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt
from pydantic import TypeAdapter, ValidationError

import variants
from bench.errors import UserError, unknown
from bench.variant import Claims

GROUP = "bench.variants"
BUILT_IN = Path(variants.__file__).parent
MEASURING = ("variant", "pairs", "machine", "model", "measure", "worker")  # rooms that make a timed cell's figures
TRAINING = (*MEASURING, "tasks")


@dataclass(frozen=True)
class Knob:
    """A keyword-only argument of a variant: its annotation (a type with bounds) and default."""

    name: str
    annotation: Any
    default: Any


@dataclass(frozen=True)
class Entry:
    """One variant as declared in its source. `broken` says why it cannot be used, else None."""

    name: str
    origin: str
    path: Path | None = None
    module: str | None = None
    attribute: str | None = None
    claims: Claims | None = None
    knobs: dict[str, Knob] = field(default_factory=dict)
    summary: str = ""
    broken: str | None = None

    def source(self) -> dict[str, str | None]:
        """What a worker needs to load the class, as plain data."""
        return {
            "name": self.name,
            "path": str(self.path),
            "module": self.module,
            "attribute": self.attribute,
        }


def entries(files: Iterable[str] = ()) -> list[Entry]:
    """All variants: built-in, from installed packages, and from the given files, broken ones included."""
    built_in = [_built_in(path) for path in sorted(BUILT_IN.glob("[!_]*.py"))]
    plugins = [_plugin(point) for point in sorted(importlib.metadata.entry_points(group=GROUP), key=lambda p: p.name)]
    return [*built_in, *plugins, *(_user_file(name) for name in files)]


def find(name: str, known: Sequence[Entry]) -> Entry:
    """The usable entry of that name; UserError when it is unknown, broken, or defined twice."""
    found = [entry for entry in known if entry.name == name]
    if not found:
        raise unknown("variant", name, (entry.name for entry in known))
    if len(found) > 1:
        origins = " and ".join(entry.origin for entry in found)
        raise UserError(f"variant '{name}' is defined twice: {origins}; rename or uninstall one of them")
    if found[0].broken:
        raise UserError(f"variant '{name}' ({found[0].origin}) is broken: {found[0].broken}")
    return found[0]


def is_file(name: str) -> bool:
    """Whether the user named a file rather than a variant."""
    return name.endswith(".py") or "/" in name or "\\" in name


def resolve_knobs(entry: Entry, given: dict[str, Any]) -> dict[str, Any]:
    """Every knob of a variant with the given or default value; UserError on an unknown name, type or range."""
    resolved = {}
    for name in given:
        if name not in entry.knobs:
            raise unknown(f"knob of variant '{entry.name}'", name, entry.knobs)
    for knob in entry.knobs.values():
        value = given.get(knob.name, knob.default)
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"variant '{entry.name}': knob {knob.name} must be a finite number, got {value}")
        try:
            resolved[knob.name] = TypeAdapter(knob.annotation).validate_python(value, strict=True)
        except ValidationError as error:
            message = error.errors()[0]["msg"].replace("Input should", "must")
            raise UserError(f"variant '{entry.name}': knob {knob.name} {message}, got {value!r}") from error
    return resolved


def load(source: dict[str, str | None]) -> Any:
    """Import the class of a variant from `Entry.source()`; whatever its import raises passes through."""
    if source["module"] is not None:
        module = importlib.import_module(source["module"])
    else:
        assert source["path"] is not None
        spec = importlib.util.spec_from_file_location(f"_variant_{source['name']}", source["path"])
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    cls = getattr(module, str(source["attribute"]))
    if not isinstance(cls, type) or not isinstance(getattr(cls, "claims", None), Claims):
        raise TypeError(f"{source['attribute']} is not a class marked by @variant")
    return cls


def source_hash(entry: Entry, rooms: Sequence[str] = MEASURING) -> str:
    """SHA-256 of all source that makes the figures of a variant: what changed is never mixed with old rows.

    The variant's file; for a built-in the shared files `variants/_*.py`, for a plugin its whole package; and the named
    rooms of the harness.
    """
    return hash_of(entry.source(), rooms)


def hash_of(source: dict[str, str | None], rooms: Sequence[str]) -> str:
    """`source_hash` from `Entry.source()`."""
    path = Path(str(source["path"]))
    files = {path, *_neighbours(path, source["module"])}
    harness = Path(__file__).parent
    for room in rooms:
        files.update((harness / room).rglob("*.py") if (harness / room).is_dir() else [harness / f"{room}.py"])
    digest = hashlib.sha256()
    for content in sorted(path.read_bytes() for path in files):
        digest.update(hashlib.sha256(content).digest())
    return digest.hexdigest()[:16]


def _neighbours(path: Path, module: str | None) -> Iterable[Path]:
    """Source files that a variant may import: shared maths of built-ins, the whole package of a plugin."""
    if module is None:
        return []
    if module.startswith(f"{variants.__name__}."):
        return BUILT_IN.glob("_*.py")
    depth = module.count(".") + (path.name == "__init__.py")
    return path.parents[depth - 1].rglob("*.py") if depth else []


def near_miss_groups() -> list[str]:
    """Notes on installed packages whose entry-point group looks like a misspelt `bench.variants`."""
    notes = []
    for group in sorted(importlib.metadata.entry_points().groups):
        if group != GROUP and difflib.SequenceMatcher(None, group, GROUP).ratio() > 0.8:
            points = importlib.metadata.entry_points(group=group)
            packages = sorted({point.dist.name for point in points if point.dist})
            notes.append(f"package {', '.join(packages)} uses the group '{group}', which is not read: '{GROUP}' is")
    return notes


def _built_in(path: Path) -> Entry:
    return read_source(path, path.stem, f"built-in variants/{path.name}", module=f"variants.{path.stem}")


def _user_file(name: str) -> Entry:
    path = Path(name).resolve()
    if not path.is_file():
        raise UserError(f"variant file '{name}' does not exist (a variant is one .py file; make one: new-variant NAME)")
    return read_source(path, path.stem, f"file {name}")


def _plugin(point: importlib.metadata.EntryPoint) -> Entry:
    package = f"{point.dist.name} {point.dist.version}" if point.dist else "unknown package"
    origin = f"package {package} ({GROUP}: {point.name} = {point.value})"
    path = _module_file(point.module)
    if path is None:
        return Entry(point.name, origin, broken=f"module '{point.module}' does not exist")
    return read_source(path, point.name, origin, module=point.module, attribute=point.attr)


def _module_file(name: str) -> Path | None:
    """The source file of a module, found without importing its parents."""
    search: Sequence[str] | None = None
    spec = None
    for part in name.split("."):
        spec = importlib.machinery.PathFinder.find_spec(part, search)
        if spec is None and search is None:  # editable installs bring finders of their own; top level imports nothing
            spec = importlib.util.find_spec(part)
        if spec is None:
            return None
        search = spec.submodule_search_locations
    return Path(spec.origin) if spec and spec.origin and spec.origin.endswith(".py") else None


def read_source(path: Path, name: str, origin: str, module: str | None = None, attribute: str | None = None) -> Entry:
    """The entry declared in a source file: its one class marked by `@variant`, or the one called `attribute`."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        marked = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef) and _mark(node)}
        node = _choose(marked, attribute)
        call = _mark(node)
        assert call is not None
        claims = Claims(**{str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords})
        knobs = _knobs(node)
    except (SyntaxError, ValueError, TypeError, OSError) as error:
        reason = f"{type(error).__name__}: {error}" if not isinstance(error, ValueError) else str(error)
        return Entry(name, origin, path, module, attribute, broken=" ".join(reason.split()))
    summary = (ast.get_docstring(node) or "").split("\n", 1)[0]
    return Entry(name, origin, path, module, node.name, claims, knobs, summary)


def _mark(node: ast.ClassDef) -> ast.Call | None:
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Call):
            called = decorator.func
            if (called.id if isinstance(called, ast.Name) else getattr(called, "attr", None)) == "variant":
                return decorator
    return None


def _choose(marked: dict[str, ast.ClassDef], attribute: str | None) -> ast.ClassDef:
    if attribute is not None:
        if attribute not in marked:
            raise ValueError(f"no class '{attribute}' marked by @variant (found: {', '.join(marked) or 'none'})")
        return marked[attribute]
    if len(marked) != 1:
        raise ValueError(f"a variant file has one class marked by @variant, found {', '.join(marked) or 'none'}")
    return next(iter(marked.values()))


def _knobs(node: ast.ClassDef) -> dict[str, Knob]:
    init = next((f for f in node.body if isinstance(f, ast.FunctionDef) and f.name == "__init__"), None)
    if init is None:
        return {}
    knobs = {}
    for argument, default in zip(init.args.kwonlyargs, init.args.kw_defaults, strict=True):
        if argument.annotation is None or default is None:
            raise ValueError(f"knob {argument.arg} needs a type and a default: {argument.arg}: int = 1")
        knobs[argument.arg] = Knob(argument.arg, _annotation(argument.annotation), ast.literal_eval(default))
    return knobs


_TYPES = {"int": int, "float": float, "bool": bool, "str": str}
_BOUNDS = {"Ge": Ge, "Gt": Gt, "Le": Le, "Lt": Lt}


def _annotation(node: ast.expr) -> Any:
    """The type an annotation means: int, float, bool, str, None, X | Y, Literal[...], Annotated[X, Ge(1)]."""
    match node:
        case ast.Name(id=name) if name in _TYPES:
            return _TYPES[name]
        case ast.Constant(value=None):
            return None
        case ast.Constant(value=str() as text):
            return _annotation(ast.parse(text, mode="eval").body)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _annotation(left) | _annotation(right)
        case ast.Subscript(value=ast.Name(id="Literal"), slice=inner):
            values = ast.literal_eval(inner)
            return Literal[values if isinstance(values, tuple) else (values,)]
        case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[base, *bounds])):
            return Annotated[(_annotation(base), *map(_bound, bounds))]
    raise ValueError(f"knob type '{ast.unparse(node)}' is not known (int, float, bool, str, Literal, Annotated)")


def _bound(node: ast.expr) -> Any:
    match node:
        case ast.Call(func=ast.Name(id=name), args=[value]) if name in _BOUNDS:
            return _BOUNDS[name](ast.literal_eval(value))
    raise ValueError(f"bound '{ast.unparse(node)}' is not known (Ge, Gt, Le, Lt)")
