"""Rewriting of imports with libcst, and the uses of ray that new imports do not reach."""

from __future__ import annotations

from typing import Any

import libcst as cst
from libcst.helpers import get_full_name_for_node
from libcst.metadata import ImportAssignment, MetadataWrapper, PositionProvider, ScopeProvider

from .rllib_names import advice_for, column_of, home_of, is_of_ray, module_here, offered_names, reason_for

_LINE_LENGTH = 88
_PRAGMAS = ("# noqa", "# type:", "# pylint:", "# isort:", "# pragma:", "# pyright:")


class ImportRewriter(cst.CSTTransformer):
    """A module with its imports changed.

    Args:
        text: Python source.
        used: The names that it uses.

    Attributes:
        text: the source with its imports changed.
        changed: number of changed import statements.
        missing: imported names that are not here: line, name, reason, line in the changed source.
        uses: uses of ray besides imports: line, name, reason.
        from_stars: names that a star import has to bring, and that are not here: line, name, reason.
    """

    METADATA_DEPENDENCIES = (PositionProvider, ScopeProvider)

    def __init__(self, text: str, used: set[str]) -> None:
        super().__init__()
        self.changed = 0
        self.missing: list[tuple[int, str, str, int]] = []
        self.uses: set[tuple[int, str, str]] = set()
        self._used = used
        self._alone = True
        self._stars: list[str] = []
        self._growth: list[tuple[int, int]] = []
        try:
            wrapper = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
        except cst.ParserSyntaxError as error:  # syntax of a newer Python
            raise SyntaxError(error.message) from error
        code = wrapper.visit(self).code
        self.text = f"{code}\r" if text.endswith("\r") and not code.endswith("\r") else code  # libcst drops the last
        self.from_stars = self._names_of_stars(wrapper) if self._stars else []

    def line_after(self, line: int) -> int:
        """Return the line in the changed source of a line of the original."""
        return line + sum(lines for end, lines in self._growth if end < line)

    def _line(self, node: cst.CSTNode) -> int:
        return int(self.get_metadata(PositionProvider, node).start.line)

    # ------------------------------------------------------------------------------------------- import a.b as c

    def visit_Import(self, node: cst.Import) -> bool:
        return False

    def leave_Import(self, original_node: cst.Import, updated_node: cst.Import) -> cst.Import:
        line, names = self._line(original_node), []
        for alias in original_node.names:
            path = alias.evaluated_name
            our_module = module_here(path)
            if is_of_ray(path) and our_module is not None and offered_names(our_module) is not None:
                alias = alias.with_changes(name=cst.parse_expression(our_module))
            elif is_of_ray(path):
                parent, _, leaf = path.rpartition(".")
                reason = reason_for(parent, leaf) if parent else "not needed any more if nothing below uses it"
                self.missing.append((line, path, reason, self.line_after(line)))
            names.append(alias)
        self.changed += names != list(original_node.names)
        return original_node.with_changes(names=names)

    # ----------------------------------------------------------------------------------------- from a.b import c

    def visit_SimpleStatementLine(self, node: cst.SimpleStatementLine) -> None:
        self._alone = len(node.body) == 1

    def visit_SimpleStatementSuite(self, node: cst.SimpleStatementSuite) -> None:
        self._alone = False

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        return False

    def leave_ImportFrom(
        self, original_node: cst.ImportFrom, updated_node: cst.ImportFrom
    ) -> cst.ImportFrom | cst.FlattenSentinel[cst.ImportFrom]:
        node, ray_module = original_node, "" if original_node.relative else _dotted(original_node.module)
        if not is_of_ray(ray_module):
            return node
        if isinstance(node.names, cst.ImportStar):
            return self._port_star(node, ray_module)
        groups: dict[str, list[int]] = {}
        before, after = [_as_written(alias.evaluated_name, alias.evaluated_alias) for alias in node.names], []
        for position, alias in enumerate(node.names):
            name = alias.evaluated_name
            home = home_of(ray_module, name)
            groups.setdefault(home.module if home else ray_module, []).append(position)
            moved = home is not None and home.name != name
            after.append(_as_written(home.name, alias.evaluated_alias or name) if home and moved else before[position])
        lines = [self.line_after(self._line(alias)) for alias in node.names]
        self.changed += before != after or [*groups] != [ray_module]
        if before == after and len(groups) == 1:
            parts = [node.with_changes(module=cst.parse_expression(next(iter(groups))))]
        else:
            parts = self._split(node, groups, after, lines)
        for position in groups.get(ray_module, ()):
            name, bound = node.names[position].evaluated_name, node.names[position].evaluated_alias
            reason = reason_for(ray_module, name)
            is_unused = (bound or name) not in self._used
            reason = f"not used below: delete it ({reason})" if is_unused else reason
            self.missing.append((self._line(node.names[position]), f"{ray_module}.{name}", reason, lines[position]))
        return cst.FlattenSentinel(parts)

    def _port_star(self, node: cst.ImportFrom, ray_module: str) -> cst.ImportFrom:
        line, our_module = self._line(node), module_here(ray_module)
        if our_module is None or offered_names(our_module) is None:
            self.missing.append((line, f"{ray_module}.*", reason_for(ray_module, ""), self.line_after(line)))
            return node
        self._stars.append(ray_module)
        self.changed += 1
        return node.with_changes(module=cst.parse_expression(our_module))

    def _split(
        self, node: cst.ImportFrom, groups: dict[str, list[int]], texts: list[str], lines: list[int]
    ) -> list[cst.ImportFrom]:
        """Return one statement for each module, and write the new lines of the imported names into `lines`."""
        where = self.get_metadata(PositionProvider, node)
        statements: list[cst.BaseSmallStatement] = []
        first = line = self.line_after(where.start.line)
        head, names = _with_comments(node, texts)
        for module, members in groups.items():
            rows = [f"from {module} import {', '.join(texts[member] for member in members)}"]
            long = where.end.line > where.start.line and where.start.column + len(rows[0]) > _LINE_LENGTH
            if head or long or any(len(names[member]) > 1 or "#" in names[member][0] for member in members):
                rows = [f"from {module} import ({head}", *(row for member in members for row in names[member]), ")"]
                head = ""
            for member in members:
                lines[member] = line + next(i for i, row in enumerate(rows) if texts[member] in row)
            line += len(rows) - (not self._alone)
            (statement,) = cst.parse_module("\n".join(rows)).body
            statements += cst.ensure_type(statement, cst.SimpleStatementLine).body
        self._growth.append((where.end.line, line - first - (where.end.line - where.start.line + self._alone)))
        return [cst.ensure_type(statement, cst.ImportFrom) for statement in statements]

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine | cst.FlattenSentinel[cst.SimpleStatementLine]:
        if len(original_node.body) == len(updated_node.body) or len(original_node.body) > 1:
            return updated_node
        comment = updated_node.trailing_whitespace.comment
        repeated = comment is not None and comment.value.startswith(_PRAGMAS)
        lines = [cst.SimpleStatementLine([part]) for part in updated_node.body]
        for number, part in enumerate(updated_node.body):
            plain = isinstance(part, cst.ImportFrom) and part.lpar is None
            if number == len(lines) - 1 or (repeated and plain):
                lines[number] = lines[number].with_changes(trailing_whitespace=updated_node.trailing_whitespace)
        lines[0] = lines[0].with_changes(leading_lines=updated_node.leading_lines)
        return cst.FlattenSentinel(lines)

    # ------------------------------------------------------------------------------------------------- other uses

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        parts, root = [node.attr.value], node.value
        while isinstance(root, cst.Attribute):
            parts.insert(0, root.attr.value)
            root = root.value
        if isinstance(root, cst.Name):
            for module in self._modules_bound_to(root):
                self._note_use(self._line(node), module, parts)
        return not isinstance(root, cst.Name)

    def _modules_bound_to(self, name: cst.Name) -> set[str]:
        """Return the modules of ray, or the `SampleBatch`, that a name may stand for."""
        scope = self.get_metadata(ScopeProvider, name)
        bound = scope[name.value] if scope is not None else set()
        if not bound and name.value == "ray":
            return {"ray"}
        modules = set()
        for assignment in bound:
            if isinstance(assignment, ImportAssignment):
                (path,) = (qualified.name for qualified in assignment.get_qualified_names_for(name.value))
                parent, _, leaf = path.rpartition(".")
                home = home_of(parent, leaf)
                is_module = home.is_module if home else parent in ("ray", "ray.rllib") and leaf.islower()
                if isinstance(assignment.node, cst.Import) or is_module or leaf == "SampleBatch":
                    modules |= {path} if is_of_ray(path) else set()
        return modules

    def _note_use(self, line: int, module: str, parts: list[str]) -> None:
        path, our_module = ".".join([module, *parts]), module_here(module)
        if module.endswith(".SampleBatch"):
            if column_of(parts[0]):  # the import itself is listed
                self.uses.add((line, f"{module}.{parts[0]}", advice_for(f"{module}.{parts[0]}", "as an attribute")))
        elif module == "ray" or our_module is None or offered_names(our_module) is None:
            self.uses.add((line, path, advice_for(path, "as an attribute")))
        elif home_of(module, parts[0]) is None:  # the module is ported, but lacks this name
            self.uses.add((line, f"{module}.{parts[0]}", reason_for(module, parts[0])))

    def _names_of_stars(self, wrapper: MetadataWrapper) -> list[tuple[int, str, str]]:
        """Return the names that a star import has to bring, and that the module here lacks."""
        offered = {"__file__"}.union(*(offered_names(module_here(theirs) or "") or () for theirs in self._stars))
        scopes = {scope for scope in wrapper.resolve(ScopeProvider).values() if scope is not None}
        unbound = [access.node for scope in scopes for access in scope.accesses if not access.referents]
        where = wrapper.resolve(PositionProvider)
        names = [(where[node].start.line, node.value) for node in unbound if isinstance(node, cst.Name)]
        first = {name: line for line, name in sorted(names, reverse=True) if name not in offered}
        theirs = self._stars[0]
        return [(first[n], f"{theirs}.{n}", f"from the star import: {reason_for(theirs, n)}") for n in first]


def _dotted(node: cst.BaseExpression | None) -> str:
    return (get_full_name_for_node(node) if node is not None else None) or ""


def _as_written(name: str, bound: str | None) -> str:
    return f"{name} as {bound}" if bound else name


def _with_comments(node: cst.ImportFrom, texts: list[str]) -> tuple[str, list[list[str]]]:
    """Return the comment after the opening parenthesis, and the lines of each name with its comments."""
    left, right, aliases = node.lpar, node.rpar, node.names
    if (
        not isinstance(left, cst.LeftParen)
        or not isinstance(right, cst.RightParen)
        or isinstance(aliases, cst.ImportStar)
    ):
        return "", [[f"    {text},"] for text in texts]
    gaps: list[list[Any]] = [[left.whitespace_after]]
    for alias in aliases:
        comma = alias.comma
        gaps.append([comma.whitespace_before, comma.whitespace_after] if isinstance(comma, cst.Comma) else [])
    gaps[-1].append(right.whitespace_before)
    (head, leading), *comments = map(_comments, gaps)
    names = []
    for text, (trailing, following) in zip(texts, comments):
        names.append([*leading, f"    {text},{trailing}"])
        leading = following
    names[-1] += leading
    return head, names


def _comments(spaces: list[Any]) -> tuple[str, list[str]]:
    """Return the comments on the first line of some white space, and the lines of the others."""
    spaces = [space for space in spaces if isinstance(space, cst.ParenthesizedWhitespace)]
    first = [space.first_line.comment for space in spaces]
    comments = [line.comment for space in spaces for line in space.empty_lines]
    trailing = "".join(f"  {comment.value}" for comment in first if comment)
    return trailing, [f"    {comment.value}" for comment in comments if comment]
