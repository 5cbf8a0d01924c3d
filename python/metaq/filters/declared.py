"""Finds the functions that are marked with `@function` in folders and modules, and describes them."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_type_hints, overload

from metaq.errors import MetaqError
from metaq.filters.exchange import Description, Parameter

Body = TypeVar("Body", bound=Callable[..., bool])

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}(\.[A-Za-z][A-Za-z0-9_]{0,63}){0,7}")
KINDS: dict[object, str] = {str: "text", int: "whole number", float: "number", bool: "truth value"}
DOC_CHARACTERS_MAX = 2_000


class FunctionError(MetaqError):
    """A filter function, its folder or its module breaks a rule."""


@dataclass(frozen=True, slots=True)
class Declared:
    """A function with the name under which consumers call it."""

    function: Callable[..., object]
    description: Description


_declared: dict[str, Declared] = {}


@overload
def function(body: Body, /) -> Body: ...
@overload
def function(*, name: str) -> Callable[[Body], Body]: ...
def function(body: Any = None, /, *, name: str | None = None) -> Any:
    """Lets consumers filter by this function, under its own name or another one.

    The function takes a FilterMessage and the arguments that the consumer writes. It returns whether the
    consumer gets the message. Raises FunctionError for a function that cannot be called like that.
    """

    def declare(body: Body) -> Body:
        called = name or body.__name__
        known = _declared.get(called)
        if known is not None and _home(known.function) != _home(body):
            homes = f"{' '.join(_home(known.function))} and {' '.join(_home(body))}"
            raise FunctionError(f"two filter functions are called {called}: {homes}")
        _declared[called] = Declared(body, describe(called, body))
        return body

    return declare if body is None else declare(body)


def _home(body: Callable[..., object]) -> tuple[str, str]:
    return body.__module__, getattr(body, "__qualname__", "")


def describe(name: str, body: Callable[..., object]) -> Description:
    """Returns what the broker must know to check a call. Raises FunctionError."""
    if not NAME.fullmatch(name):
        raise FunctionError(
            f"{name!r} is not a valid name for a filter function: use letters, digits and _, a letter first"
        )
    if inspect.iscoroutinefunction(body) or inspect.isgeneratorfunction(body):
        raise FunctionError(f"{name} must be a plain function that returns True or False")
    parameters = list(inspect.signature(body).parameters.values())
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if not parameters or parameters[0].kind not in positional:
        raise FunctionError(f"{name} must take the message as its first argument")
    hints = _hints(body)
    taken: list[Parameter] = []
    for parameter in parameters[1:]:
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            continue
        is_required = parameter.default is inspect.Parameter.empty
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            if is_required:
                raise FunctionError(
                    f"{name} cannot be called: {parameter.name} is keyword-only and has no default"
                )
            continue
        variadic = parameter.kind is inspect.Parameter.VAR_POSITIONAL
        taken.append(
            Parameter(
                name=parameter.name,
                kind=KINDS.get(hints.get(parameter.name), ""),
                required=is_required and not variadic,
                variadic=variadic,
            )
        )
    doc = (inspect.getdoc(body) or "")[:DOC_CHARACTERS_MAX]
    return Description(name=name, doc=doc, module=body.__module__, parameters=tuple(taken))


def _hints(body: Callable[..., object]) -> Mapping[str, object]:
    try:
        return get_type_hints(body)
    except Exception:
        return {}  # Some names exist only for type checkers. Only the number of arguments is checked then.


def load(sources: Iterable[str]) -> dict[str, Declared]:
    """Loads the functions of folders and modules. Raises FunctionError, and whatever their import raises."""
    _declared.clear()
    for source in sources:
        before = len(_declared)
        if Path(source).is_absolute():
            _load_folder(Path(source))
        else:
            importlib.import_module(source)
        if len(_declared) == before:
            raise FunctionError(f"{source} has no function with the decorator @metaq.filters.function")
    return dict(_declared)


def _load_folder(folder: Path) -> None:
    """Imports all files whose names do not start with `_`. They may import each other."""
    if not folder.is_dir():
        raise FunctionError(f"{folder} is not a folder")
    sys.path.append(str(folder))
    for path in sorted(folder.glob("*.py")):
        if path.name.startswith("_"):
            continue
        name = path.stem if path.stem.isidentifier() else f"metaq_filter_{len(sys.modules)}"
        if name in sys.modules:
            # Another file has imported it already, or an unrelated module has the same name.
            if getattr(sys.modules[name], "__file__", None) == str(path):
                continue
            name = f"metaq_filters_{name}"
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise FunctionError(f"{path} cannot be imported")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
