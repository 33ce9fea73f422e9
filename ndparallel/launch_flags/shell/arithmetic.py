"""A shell's arithmetic, `$((...))` and `$[...]`, of whole numbers and of variables that are known.

Idea   It is Python's, but for the choice of one of two and division, which rounds towards zero: Python reads
       it, and what is no such sum stays as it is written.
Limit  Sums that a shell's own integers do not hold are left as they are written.
"""

import ast
import operator
import re
from collections.abc import Mapping

LARGEST_NUMBER = 2**63  # as the shell's
SUMS = {  # whose division rounds towards zero
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda over, under: over // under if over * under > 0 else -(-over // under),
    ast.Mod: lambda over, under: over % under if over * under > 0 else -(-over % under),
}
COMPARED = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
}
CHOICE = re.compile(r"(?P<condition>[^?:]+)\?(?P<yes>[^?:]+):(?P<no>[^?:]+)")


def sum_of(found: re.Match, variables: Mapping[str, list[str]]) -> int | str:
    """What `$((...))` or `$[...]` comes to; as it stands where it is no sum of known whole numbers."""
    value = value_of_sum(found["sum"] or found["older"] or "", variables)
    return found[0] if value is None else value


def value_of_sum(text: str, variables: Mapping[str, list[str]]) -> int | None:
    """What a sum comes to; None where it is none of known whole numbers."""
    try:
        return whole_number(parsed(text), variables)
    except (SyntaxError, ValueError, KeyError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def parsed(text: str) -> ast.expr:
    return ast.parse(in_python(text), mode="eval").body


def in_python(text: str) -> str:
    """The shell's arithmetic, with its choice of one of two."""
    text = text.replace("&&", " and ").replace("||", " or ")
    chosen = CHOICE.fullmatch(text)
    return ("({yes}) if ({condition}) else ({no})".format(**chosen.groupdict()) if chosen else text).strip()


def whole_number(node: ast.AST, variables: Mapping[str, list[str]]) -> int:
    match node:
        case ast.BinOp(left, sign, right):
            sum_ = SUMS[type(sign)](whole_number(left, variables), whole_number(right, variables))
            if abs(sum_) > LARGEST_NUMBER:
                raise ValueError
            return sum_
        case ast.Compare(left, [sign], [right]):
            return int(COMPARED[type(sign)](whole_number(left, variables), whole_number(right, variables)))
        case ast.BoolOp(ast.And(), parts):
            return int(all(whole_number(part, variables) for part in parts))
        case ast.BoolOp(ast.Or(), parts):
            return int(any(whole_number(part, variables) for part in parts))
        case ast.IfExp(condition, yes, no):
            return whole_number(yes if whole_number(condition, variables) else no, variables)
        case ast.Name(name):
            return whole_number(parsed(" ".join(variables[name])), {})
        case ast.UnaryOp(ast.USub(), operand):
            return -whole_number(operand, variables)
        case ast.Constant(int() as value) if type(value) is int:
            return value
    raise ValueError
