"""``calculator``: arithmetic, evaluated from the syntax tree. Nothing that Python could run is ever run."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from typing import Any, ClassVar

from tools.base import Tool

_MAX_CHARS = 500
#: Longest integer, in bits, that any step may produce (some 1,200 digits).
_MAX_BITS = 4096

Number = int | float


class CalculatorError(ValueError):
    """Words for the model."""


def evaluate(expression: str) -> Number:
    """The finite value of an arithmetic expression in Python's notation. Raises ``CalculatorError``.

    Bounded before it is computed: expressions of 500 characters, integers of 4,096 bits.
    """
    if len(expression) > _MAX_CHARS:
        raise CalculatorError(f"the expression has {len(expression)} characters; {_MAX_CHARS} are the limit")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
        return _value(tree.body)
    except SyntaxError as error:
        raise CalculatorError(f"not an arithmetic expression ({error.msg})") from None
    except ZeroDivisionError:
        raise CalculatorError("division by zero") from None
    except OverflowError:
        raise CalculatorError("the result is too large") from None
    except (RecursionError, MemoryError):
        raise CalculatorError("nested too deeply") from None
    except ValueError as error:
        raise CalculatorError(str(error)) from None
    except TypeError as error:
        raise CalculatorError(f"wrong kind of number: {error}") from None


def _value(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return _bounded(value)
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _power(_value(left), _value(right))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _bounded(_OPERATORS[type(op)](_value(left), _value(right)))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            return _bounded(_FUNCTIONS[name](*map(_value, arguments)))
        case ast.BinOp(op=ast.BitXor()):
            raise CalculatorError("^ is not known; write ** for powers")
        case ast.Tuple():
            raise CalculatorError("write numbers without thousands separators, and one expression at a time")
        case ast.Name(id=name):
            raise CalculatorError(f"{name!r} is not known; there are {', '.join(_CONSTANTS)}, {', '.join(_FUNCTIONS)}")
        case ast.Call():
            raise CalculatorError(f"no such function; there are {', '.join(_FUNCTIONS)}")
    raise CalculatorError(f"{type(node).__name__} is not arithmetic")


def _power(base: Number, exponent: Number) -> Number:
    whole = isinstance(base, int) and isinstance(exponent, int)
    if whole and base.bit_length() * max(exponent, 0) > _MAX_BITS and abs(base) > 1:
        raise CalculatorError("the result is too large")
    return _bounded(base**exponent)


def _factorial(n: Number) -> int:
    if n > 500:  # 500! is within _MAX_BITS
        raise CalculatorError("the result is too large")
    return math.factorial(n)


def _comb(n: Number, k: Number) -> int:
    if n > _MAX_BITS:  # comb(n, k) < 2 ** n
        raise CalculatorError("the result is too large")
    return math.comb(n, k)


def _round(value: Number, digits: int = 0) -> Number:
    if not isinstance(digits, int) or abs(digits) > 300:  # a whole number is rounded by way of 10 ** -digits
        raise CalculatorError("round takes a whole number of digits, 300 at most")
    return round(value, digits) if digits else round(value)


def _bounded(value: Any) -> Number:
    if isinstance(value, complex):
        raise CalculatorError("the result is not a real number")
    if isinstance(value, float) and not math.isfinite(value):
        raise CalculatorError("the result is not finite")
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        raise CalculatorError("the result is too large")
    return value


_CONSTANTS = {"pi": math.pi, "e": math.e}
_OPERATORS: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_FUNCTIONS: dict[str, Callable[..., Number]] = {
    **{name: getattr(math, name) for name in ("sqrt", "exp", "log", "log2", "log10", "sin", "cos", "tan")},
    **{name: getattr(math, name) for name in ("asin", "acos", "atan", "degrees", "radians", "floor", "ceil")},
    **{name: getattr(math, name) for name in ("gcd", "lcm", "hypot")},
    **{"abs": abs, "round": _round, "min": min, "max": max, "factorial": _factorial, "comb": _comb},
}


class Calculator(Tool):
    """Answers with the value, floats to 12 significant digits; ``data`` is the value in full."""

    name: ClassVar[str] = "calculator"
    description: ClassVar[str] = "Evaluate an arithmetic expression, e.g. (3 + 4) * 2 ** 5 / sqrt(2)."
    parameters: ClassVar[dict] = {
        "type": "object",
        "properties": {"expression": {"type": "string", "description": "the expression"}},
        "required": ["expression"],
        "additionalProperties": False,
    }
    timeout_s = 1.0

    async def execute(self, expression: str) -> tuple[str, Number]:
        """On the event loop: every expression is bounded to a millisecond or so."""
        value = evaluate(expression)
        return (f"{value:.12g}" if isinstance(value, float) else str(value)), value
