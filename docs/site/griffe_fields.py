"""Constructors for the API reference: of classes whose annotated fields are the constructor's arguments."""

from __future__ import annotations

import re
from typing import Any

from griffe import (
    Attribute,
    Class,
    Extension,
    Function,
    Module,
    Parameter,
    ParameterKind,
    Parameters,
)

ARGUMENT = re.compile(r"^ {4}\*{0,2}(\w+)(?: \([^)]*\))?:", re.MULTILINE)
OF_SUBCLASSES = re.compile(r"^ {4}(?:multi_agent|as_learner_connector):.*\n?(?: {5,}.*\n?)*", re.MULTILINE)
"""The keywords that `Piece` documents for those subclasses that take them."""


class Fields(Extension):
    """Give each documented class without `__init__` one: with the fields that its docstring has as arguments."""

    def on_package(self, *, pkg: Module, **kwargs: Any) -> None:
        """Visit a package.

        Args:
            pkg: The package.
            **kwargs: Not used.
        """
        self._visit(pkg)

    def _visit(self, owner: Any) -> None:
        if isinstance(owner, Class) and "__init__" not in owner.members and owner.docstring is not None:
            if owner.name == "Piece":
                owner.docstring.value = OF_SUBCLASSES.sub("", owner.docstring.value)
            _add_constructor(owner, owner.docstring.value)
        for member in [*owner.members.values()]:
            if not member.is_alias and (member.is_class or member.is_module or member.is_function):
                self._visit(member)


def _add_constructor(owner: Class, docstring: str) -> None:
    fields: dict[str, Any] = {}
    for base in [*reversed(_bases(owner)), owner]:
        fields |= {name: member for name, member in base.members.items() if isinstance(member, Attribute)}
        init = base.members.get("__init__")
        fields |= {parameter.name: parameter for parameter in init.parameters} if isinstance(init, Function) else {}
    section = re.split(r"\n\n\S", docstring.partition("Args:\n")[2])[0]
    names = [name for name in ARGUMENT.findall(section) if name in fields and fields[name].annotation is not None]
    if not names:
        return
    is_tuple = any(str(base).endswith("NamedTuple") for base in owner.bases)
    kind = ParameterKind.positional_or_keyword if is_tuple else ParameterKind.keyword_only
    parameters = Parameters(Parameter("self", kind=ParameterKind.positional_or_keyword))
    for name in names:
        field = fields[name]
        default = field.default if isinstance(field, Parameter) else field.value
        parameters.add(Parameter(name, annotation=field.annotation, kind=kind, default=default))
    owner.set_member("__init__", Function("__init__", lineno=0, endlineno=0, parent=owner, parameters=parameters))


def _bases(owner: Class) -> list[Class]:
    try:
        return owner.mro()
    except ValueError:  # a base class of another package
        return []
