"""The settings of a Python recipe, without running it.

Idea   A recipe is a function: it takes another one's configuration, or makes one of keywords, sets some of
       its fields, and returns it. Its statements are followed one by one; of a value that only Python could
       work out the words are kept.
Limit  Straight lines: a loop, or a condition, that sets a field of the configuration is refused.

Glossary
    configuration   fields with their values, by dotted names: {"training.seq_len": 8192}
    section         a field that has fields, as training
    call            what makes a value, as FullAC.Config(): its dotted name, and what it is given
"""

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ndparallel.base.errors import UserError, unknown
from ndparallel.base.words import listed
from ndparallel.launch_flags.settings import Configuration

MOST = 100_000  # values in a file
LONGEST = 1_000  # values of a list, letters of a text
LARGEST = 10**15  # of a number
DEEPEST = 8  # functions that take one another's configurations


class Call(NamedTuple):
    """A call that is not worked out, and its words."""

    name: str
    arguments: list
    options: Mapping[str, Any]
    words: str


class Words(str):
    """An expression that is not worked out, as it is written."""


class NoConfigurationError(UserError):
    """A function that returns another thing."""


UNKNOWN = object()  # what an expression is worth that is not worked out


@dataclass(frozen=True)
class Recipes:
    """The functions and the constants of a file, and what its imported names stand for. `imported` finds the
    configuration of a function that is elsewhere; None where it is none."""

    functions: Mapping[str, ast.FunctionDef]
    constants: Mapping[str, ast.expr]
    names: Mapping[str, str]
    sections: frozenset[str]
    imported: Callable[[str], Configuration | None]
    found: dict[str, Configuration] = field(default_factory=dict)
    left: Iterator[int] = field(default_factory=lambda: iter(range(MOST)))  # values that may still be made

    def configuration(self, name: str, depth: int = 0) -> Configuration:
        """A copy of the configuration that a function returns. Raises UserError, with the line, for what
        cannot be followed."""
        if depth > DEEPEST:
            raise UserError(f"{name}() takes its configuration from itself, or from too many others in turn.")
        if name not in self.found:
            self.found[name] = RecipeReader(self, depth).returned(self.functions[name])
        return dict(self.found[name])

    def makes_one(self, name: str) -> bool:
        """Whether a function returns a configuration, or would if it could be followed."""
        try:
            self.configuration(name)
        except NoConfigurationError:
            return False
        except UserError:
            pass
        return True


def recipes_in(
    text: str, sections: frozenset[str], imported: Callable[[str], Configuration | None], package: str
) -> Recipes:
    """Read a file of the `package` from which it imports names with a dot. Raises UserError for what is no
    Python."""
    tree = parsed(text)
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    constants = {
        node.targets[0].id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    return Recipes(functions, constants, imported_names(tree, package), sections, imported)


def parsed(text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f"line {error.lineno}: " if isinstance(error, SyntaxError) and error.lineno else ""
        raise UserError(f"{line}it is no Python that can be read.") from None


def imported_names(tree: ast.Module, package: str) -> dict[str, str]:
    """The names that a file imports from modules, each with its module."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            path = [package if node.level else "", node.module or ""]
            for alias in node.names:
                names[alias.asname or alias.name] = ".".join(filter(None, [*path, alias.name]))
    return names


def chosen(recipes: Recipes, name: str | None) -> Configuration:
    """The configuration of the function of that name; of the only one where none is named. Raises UserError
    where there is no such function, or are several."""
    public = [each for each in recipes.functions if not each.startswith("_")]
    if name is not None and name not in recipes.functions:
        raise unknown("configuration", name, public)
    able = [name] if name else [each for each in public if recipes.makes_one(each)]
    if not able:
        raise UserError("no function in it returns a configuration of torchtitan.")
    if len(able) > 1:
        more = f" and {len(able) - 12} more" if len(able) > 12 else ""
        raise UserError(
            f"it has {len(able)} configurations: {listed(able[:12])}{more}. Choose one, as with "
            f'--script-arguments "--config {able[0]}".'
        )
    return recipes.configuration(able[0])


@dataclass
class RecipeReader:
    """Follows the statements of a function, one by one."""

    recipes: Recipes
    depth: int
    known: dict[str, Any] = field(default_factory=dict)  # variables
    configurations: dict[str, Configuration] = field(default_factory=dict)

    def returned(self, function: ast.FunctionDef) -> Configuration:
        for name, value in self.recipes.constants.items():
            self.known[name] = self.value(value)
        for statement in function.body:
            if isinstance(statement, ast.Return):
                if (made := self.made(statement.value)) is not None:
                    return made
                break
            self.follow(statement)
        raise NoConfigurationError(f"{function.name}() returns no configuration of torchtitan.")

    def follow(self, statement: ast.stmt) -> None:
        match statement:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ):
                self.set_variable(name, value)
            case ast.Assign(targets=[ast.Attribute() as target], value=value):
                self.set_field(target, value)
            case ast.AugAssign(target=ast.Attribute() as target, op=op, value=value):
                self.set_field(target, ast.BinOp(target, op, value))
            case ast.If() | ast.For() | ast.While() | ast.With() | ast.Try() | ast.Match():
                self.refuse_fields_in(statement)

    def set_variable(self, name: str, value: ast.expr) -> None:
        if (made := self.made(value)) is not None:
            self.configurations[name] = made
        else:
            self.known[name] = self.value(value)

    def set_field(self, target: ast.Attribute, expression: ast.expr) -> None:
        configuration, name = self.field_of(target)
        value = self.value(expression)
        if not (isinstance(value, Call) and value.name.rpartition(".")[2] == "replace"):
            for key in [key for key in configuration if key.startswith(f"{name}.")]:
                del configuration[key]
        configuration |= self.flat(name, value)

    def refuse_fields_in(self, statement: ast.stmt) -> None:
        for node in ast.walk(statement):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and self.field_of(node)[1]:
                raise UserError(
                    f"line {node.lineno}: {ast.unparse(node)} is set behind a condition or in a loop, which "
                    "is not followed: write the value that it gets."
                )

    def made(self, value: ast.expr | None) -> Configuration | None:
        """The configuration that an expression makes or is; None for any other value."""
        if isinstance(value, ast.Name):
            return self.configurations.get(value.id)
        if not isinstance(value, ast.Call):
            return None
        name = ast.unparse(value.func)
        if name in self.recipes.functions:
            return self.recipes.configuration(name, self.depth + 1)
        if any(each.arg == "model_spec" for each in value.keywords):
            given = {each.arg: self.value(each.value) for each in value.keywords if each.arg}
            return {
                key: each for option, made in given.items() for key, each in self.flat(option, made).items()
            }
        return self.recipes.imported(self.full(name))

    def flat(self, name: str, value: Any) -> Configuration:
        """A field; of a section, its fields."""
        if name in self.recipes.sections and isinstance(value, Call):
            return {f"{name}.{option}": given for option, given in value.options.items()}
        return {name: value}

    def field_of(self, target: ast.Attribute) -> tuple[Configuration, str]:
        """The configuration and the field in it that an attribute is; no name for another's attribute."""
        root, _, name = ast.unparse(target).partition(".")
        return (self.configurations[root], name) if root in self.configurations else ({}, "")

    def full(self, name: str) -> str:
        """A name with the module that it was imported from."""
        first, dot, rest = name.partition(".")
        return self.recipes.names.get(first, first) + dot + rest

    # ------------------------------------------------------------------------------------------------ values

    def value(self, node: ast.expr) -> Any:
        """What an expression is worth; its words where that takes more than numbers, text and lists."""
        if next(self.recipes.left, None) is None:
            raise UserError(f"it makes more than {MOST} values, which no recipe does.")
        found = self.worked_out(node)
        return Words(ast.unparse(node)[:LONGEST]) if found is UNKNOWN else found

    def worked_out(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name) if name in self.known:
                return self.known[name]
            case ast.Attribute() if (place := self.field_of(node))[1] in place[0]:
                return place[0][place[1]]
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                return [each for element in elements for each in self.elements(element)]
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
                return -number
            case ast.BinOp(left=left, op=op, right=right):
                return self.result(self.value(left), op, self.value(right))
            case ast.JoinedStr(values=parts):
                return "".join(str(self.value(part)) for part in parts)[:LONGEST]
            case ast.FormattedValue(value=value, format_spec=None):
                return self.value(value)
            case ast.ListComp(elt=element, generators=[ast.comprehension(target=ast.Name(id=name), ifs=[])]):
                return self.listed(name, node.generators[0].iter, element)
            case ast.Call(func=function, args=given, keywords=keywords):
                options = {each.arg: self.value(each.value) for each in keywords if each.arg}
                arguments = [self.value(each) for each in given]
                return Call(self.full(ast.unparse(function)), arguments, options, ast.unparse(node)[:LONGEST])
        return UNKNOWN

    def elements(self, node: ast.expr) -> list:
        """What an element puts into a list: several where it begins with a star."""
        value = self.value(node.value if isinstance(node, ast.Starred) else node)
        return value if isinstance(node, ast.Starred) and isinstance(value, list) else [value]

    def result(self, left: Any, op: ast.operator, right: Any) -> Any:
        """The sum, the difference or the product of two numbers, or two lists in one; UNKNOWN for
        what is neither, or larger than any setting."""
        if isinstance(left, list) and isinstance(right, list) and isinstance(op, ast.Add):
            return left + right if len(left) + len(right) <= LONGEST else UNKNOWN
        if not all(type(each) in (int, float) and abs(each) <= LARGEST for each in (left, right)):
            return UNKNOWN
        match op:
            case ast.Add():
                return left + right
            case ast.Sub():
                return left - right
            case ast.Mult():
                return left * right
            case ast.FloorDiv() if right:
                return left // right
        return UNKNOWN

    def listed(self, name: str, over: ast.expr, element: ast.expr) -> Any:
        """A list that a loop over a range of numbers makes, and no loop in it; UNKNOWN for another."""
        call = self.value(over)
        if not isinstance(call, Call) or call.name != "range" or not 1 <= len(call.arguments) <= 2:
            return UNKNOWN
        whole = all(type(each) is int and abs(each) <= LONGEST for each in call.arguments)
        if not whole or any(isinstance(node, ast.ListComp) for node in ast.walk(element)):
            return UNKNOWN
        made = []
        for number in range(*call.arguments):
            self.known[name] = number
            made.append(self.value(element))
        return made
