"""Errors for arguments of a wrong type, and how help() shows the types of arguments.

The extension's own TypeError lists C++ signatures, whose arguments have numbers instead of names.
"""

from __future__ import annotations

import collections.abc
import contextlib
import functools
import inspect
import operator
import reprlib
import sys
import typing
from collections.abc import Callable, Sequence
from typing import Any, Optional, ParamSpec, TypeVar, Union

import torch

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

# Texts of the TypeErrors of pybind11, and of list(...).
_OF_TYPES = (
    "incompatible function arguments",
    "incompatible constructor arguments",
    "object is not iterable",
)
# One, and several of them.
_WORDS = {
    bool: ("a bool", "bools"),
    int: ("an int", "ints"),
    float: ("a number", "numbers"),
    str: ("a str", "strs"),
    type(None): ("None", "None"),
    torch.device: ("a torch.device", "torch.devices"),
    collections.abc.Callable: ("a function", "functions"),
}
# What the extension takes for such a type has one of these methods.
_CONVERTED = {float: ("__float__", "__index__"), bool: ("__bool__",)}


def _words(kind: Any, several: bool = False) -> str:
    """The type `kind` in words."""
    origin, of = typing.get_origin(kind), typing.get_args(kind)
    if (origin or kind) in _WORDS:
        return _WORDS[origin or kind][several]
    if origin is Union:
        return " or ".join(_words(each, several) for each in of)
    if origin is collections.abc.Sequence:
        return f"{'lists' if several else 'a list'} of {_words(of[0], True)}"
    if origin is tuple:
        return f"{'tuples' if several else 'a tuple'} of {' and '.join(map(_words, of))}"
    name = getattr(origin or kind, "__name__", str(kind))
    return name if several else f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"


def _wrong(name: str, value: Any, kind: Any) -> Optional[str]:
    """What is wrong with a value that should be of the type `kind`. None if nothing is."""
    origin, of = typing.get_origin(kind), typing.get_args(kind)
    text = f"{name} must be {_words(kind)}, not {type(value).__name__}: {reprlib.repr(value)}"
    if origin is Union:
        of = [each for each in of if each is not type(None) or value is None]
        if len(of) == 1:
            return _wrong(name, value, of[0])
        return None if any(_wrong(name, value, each) is None for each in of) else text
    if origin is collections.abc.Sequence:
        # The extension also takes arrays and what can only be iterated.
        if not hasattr(value, "__iter__") or isinstance(value, (str, bytes, collections.abc.Mapping)):
            return text
        found = (_wrong(f"each of {name}", each, of[0]) for each in value)
        return next(filter(None, found), None)
    if kind is int:
        if isinstance(value, bool):
            return text
        try:
            number = operator.index(value)
        except TypeError:
            return text
        return None if -(2**63) <= number < 2**63 else f"{name} is out of range: {number}"
    if kind in _CONVERTED:
        return None if any(hasattr(value, method) for method in _CONVERTED[kind]) else text
    checked = object if kind is Any else origin or kind
    if isinstance(checked, type) and issubclass(checked, tuple) and isinstance(value, tuple):
        return None  # a named tuple may be given as a plain one
    return text if isinstance(checked, type) and not isinstance(value, checked) else None


def checked(name: str, value: Any, kind: Any, hint: str = "") -> Any:
    """`value`, an int as an int and what holds several as a list.

    Raises TypeError if it is not of the type `kind`. hint: what to do then.
    """
    several = any(typing.get_origin(each) is Sequence for each in (kind, *typing.get_args(kind)))
    if several and not isinstance(value, (str, bytes)):
        with contextlib.suppress(TypeError):  # of what cannot be iterated
            value = list(value)
    text = _wrong(name, value, kind)
    if text is not None:
        raise TypeError(f"{text}; {hint}" if hint else text)
    if kind == Sequence[int]:
        return [operator.index(each) for each in value]
    return operator.index(value) if kind is int else value


def named(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """`function`, whose TypeError says which argument the extension does not take."""

    @functools.wraps(function)
    def call(*given: Parameters.args, **by_name: Parameters.kwargs) -> Result:
        try:
            return function(*given, **by_name)
        except TypeError as error:
            if not any(text in str(error) for text in _OF_TYPES):
                raise
            kinds = typing.get_type_hints(function)
            values = inspect.signature(function).bind(*given, **by_name).arguments
            found = (_wrong(name, value, kinds.get(name, Any)) for name, value in values.items())
            text = next(filter(None, found), None)
            if text is None:
                raise
        raise TypeError(text)

    return call


class _Annotation(str):
    """The text of an annotation, which help() would show in quotes."""

    __repr__ = str.__str__


def unquote_annotations() -> None:
    """Has help() show the annotations of gpipe's functions and methods without quotes."""
    modules = [each for name, each in list(sys.modules.items()) if f"{name}.".startswith("gpipe.")]
    classes = [
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__ == module.__name__
    ]
    for owner in modules + classes:
        for value in vars(owner).values():
            function = inspect.unwrap(getattr(value, "__func__", value))
            if inspect.isfunction(function) and function.__module__.startswith("gpipe."):
                function.__annotations__ = {
                    name: _Annotation(text) if isinstance(text, str) else text
                    for name, text in function.__annotations__.items()
                }
