"""Our SQL92 against Apache's own, over expressions of every kind, the wrong ones included, and messages."""

from __future__ import annotations

import base64
import random
import re
import subprocess
from pathlib import Path

from metaq._core import Expression
from metaq.broker.sql92 import BadExpression, compile_expression
from tests.support.apache import java_command

SOURCE = Path(__file__).with_name("ApacheFilter.java")
CASES = 6_000
SEED = 20_240


def each(text: str, separator: str | None = None) -> list[str]:
    return text.split(separator)


NUMBERS = each(
    "0 1 5 5L 10 3 2147483647 2147483648 9223372036854775807 9223372036854775808 1.5 5. .5 1e2 1E+2 5.e1 "
    "0.0 1e400 1e-400 4.9e-324 0l 007 00.5 1e"
)
TEXTS = ["'a'", "'true'", "'5'", "''", "'it''s'", "'ü'", "''''", "'a\nb'", "'abc'"]
NAMES = each("a b c $x _y a1 A NOTx null_ Not$")
WORDS = each(
    "AND,and,OR,NOT,not,IS NULL,is not null,BETWEEN,IN,CONTAINS,STARTSWITH,endswith,=,<>,<,<=,>,>=,(,),+,-,"
    "TRUE,FALSE,NULL,/* c */,-- x\n,--,/**/,!=,;,IS NOT,IS",
    ",",
)
VALUES = each(
    "5|a|abc|true|TRUE|5.0|1.5|-1|0|-0|+5| 5|5 |2147483648|9223372036854775808|1e2|NaN|Infinity|-Infinity|"
    "inf|nan|ü|it's|10|100|5f|0.0|-0.0|'|1e400|4.9e-324|1.5d|1_0|..|-|+",
    "|",
)


class Writer:
    """Writes expressions: right ones, nearly right ones, and heaps of words."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def case(self) -> tuple[str, dict[str, str]]:
        kind = self.random.random()
        if kind < 0.6:
            expression = self.expression()
        elif kind < 0.8:
            expression = self.mistake(self.expression())
        else:
            heap = [
                self.one_of(self.one_of(NUMBERS, TEXTS, NAMES, WORDS, WORDS)) for _ in range(self.up_to(7))
            ]
            expression = " ".join(heap)
        properties = {name: self.one_of(VALUES) for name in NAMES if self.random.random() < 0.7}
        return expression, properties

    def one_of(self, *choices: object) -> object:
        return self.random.choice(choices[0] if len(choices) == 1 else choices)  # type: ignore[arg-type]

    def up_to(self, most: int) -> int:
        return self.random.randint(1, most)

    def expression(self, depth: int = 0) -> str:
        if depth > 3:
            return f"{self.one_of(NAMES)} = {self.one_of(NUMBERS)}"
        kind = self.random.random()
        if kind < 0.35:
            return self.condition(depth)
        if kind < 0.85:
            word = self.one_of(["AND", "and", "OR", "or"])
            return f"{self.expression(depth + 1)} {word} {self.expression(depth + 1)}"
        return f"{self.one_of(['', 'NOT '])}({self.expression(depth + 1)})"

    def condition(self, depth: int) -> str:
        left, right = self.value(depth), self.value(depth)
        negated = self.one_of(["", "", " NOT"])
        texts = ", ".join(str(self.one_of(TEXTS)) for _ in range(self.up_to(7)))
        search = self.one_of(["CONTAINS", "startswith", "EndsWith"])
        return str(
            self.one_of(
                f"{left} = {right}",
                f"{left}<>{right}",
                f"{left} {self.one_of(['>', '>=', '<', '<='])} {right}",
                f"{left}{negated} BETWEEN {right} AND {self.value(depth)}",
                f"{left}{negated} IN ({texts})",
                f"{left}{negated} {search} {self.one_of(TEXTS)}",
                f"{left}{self.one_of([' IS NULL', ' is not null'])}",
                left,
            )
        )

    def value(self, depth: int) -> str:
        kind = self.random.random()
        if kind < 0.75:
            return str(self.one_of(self.one_of(NAMES, NAMES, NAMES, NUMBERS, TEXTS)))
        if kind < 0.82:
            return str(self.one_of(["TRUE", "FALSE", "NULL", "true"]))
        if kind < 0.9:
            return f"{self.one_of(['-', '+', '- ', 'NOT '])}{self.value(depth + 1)}"
        return f"({self.expression(depth + 1)})"

    def mistake(self, expression: str) -> str:
        at = self.random.randrange(len(expression) + 1)
        more = self.one_of([*"'()-/*. \n0=<>aE$ü\\\"", "AND", "--"])
        return str(
            self.one_of(expression[:at] + expression[at + 1 :], f"{expression[:at]}{more}{expression[at:]}")
        )


def apache_says(cases: list[tuple[str, dict[str, str]]], home: Path) -> list[str]:
    lines = []
    for expression, properties in cases:
        parts = [expression, *(part for entry in properties.items() for part in entry)]
        lines.append("\t".join(base64.b64encode(part.encode()).decode() for part in parts))
    outcome = subprocess.run(
        java_command(str(SOURCE), home, heap="256m"),
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stderr[-4000:]
    return outcome.stdout.splitlines()[-len(cases) :]


def we_say(expression: str, properties: dict[str, str]) -> str:
    try:
        program = compile_expression(expression)
    except BadExpression as bad:
        behind = re.search(r"line (\d+), column (\d+): .* was not expected here", bad.remark)
        if behind is None:
            return "refused"
        # We refuse text after a whole expression; Apache's parser ignores it.
        line, column = map(int, behind.groups())
        at = sum(len(text) + 1 for text in expression.split("\n")[: line - 1]) + column - 1
        return we_say(expression[:at], properties) if 0 < at < len(expression) else "refused"
    return str(Expression(program).matches(properties)).lower()


def test_the_same_as_apache(tmp_path: Path) -> None:
    writer = Writer(SEED)
    cases = [writer.case() for _ in range(CASES)]
    told = apache_says(cases, tmp_path)
    assert len(told) == CASES
    differing = [
        (expression, properties, apache, ours)
        for (expression, properties), apache in zip(cases, told, strict=True)
        if (ours := we_say(expression, properties)) != apache
    ]
    assert differing == []
    counts = {verdict: told.count(verdict) for verdict in ("true", "false", "refused")}
    assert min(counts.values()) > CASES // 20, counts
