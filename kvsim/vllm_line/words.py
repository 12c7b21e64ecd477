"""A pasted shell text as words, read as bash would: quotes, variables, line ends, comments, redirections.

It is more patient than bash where a paste is damaged in ways that people would not notice (a blank after a backslash,
flags on lines of their own, JSON that lost its quotes), and says so. A variable that nobody assigned stays in its word,
marked, so that nobody takes it for empty or for 1.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from kvsim.errors import UserError
from kvsim.vllm_line.arithmetic import computed

OPEN, CLOSE = "\ue000", "\ue001"  # around what is not resolved
_SPLIT = "\ue002"  # where bash splits what a variable without quotes holds
_UNRESOLVED = re.compile(f"{OPEN}(.*?){CLOSE}", re.DOTALL)
_PROMPT = re.compile(r"[ \t]*(?:\([\w.-]+\)[ \t]*)?(?:\S+@\S*[$#]|[$>%])[ \t]+|[ \t]*\([\w.-]+\)[ \t]+(?=\S)")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=")
_REDIRECTION = re.compile(r"(?:\d*|&)(?:>>?|<)(?:&\d|&-)?")
_PLACEHOLDER = re.compile(r"<([A-Za-z][^<>\n]*)>")
_NAME = re.compile(r"[A-Za-z_]\w*")
_ARRAY = re.compile(r'"?\$\{(\w+)\[[@*]\]\}"?')
_ANSI_C = re.compile(r"\$'((?:[^'\\]|\\.)*)'", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t"}
_LOST_QUOTES = re.compile(r"\{\s*(?:[\"'](?!\$)|\})")


@dataclass(frozen=True)
class Statement:
    """One command.

    Attributes:
        words: without assignments in front.
        environment: what it sees: exported before it, or assigned in front of it.
        hidden: assigned before it without ``export``: it does not see them.
    """

    words: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    hidden: Mapping[str, str] = field(default_factory=dict)


def unresolved(word: str) -> list[str]:
    """Names of what a word still wants."""
    return _UNRESOLVED.findall(word)


def mark(name: str) -> str:
    """What stands in a word for something that is not resolved."""
    return f"{OPEN}{name}{CLOSE}"


def shown(word: str) -> str:
    """A word with its marks as people know them."""
    return _UNRESOLVED.sub(lambda found: f"${found[1]}" if _NAME.fullmatch(found[1]) else found[1], word)


def shell_statements(text: str, known: Mapping[str, str] | None = None) -> tuple[list[Statement], list[str]]:
    """Commands of a shell text, and notes about what was read more patiently than bash would.

    Args:
        text: as pasted.
        known: environment variables that are there before.

    Raises:
        UserError: a quote or bracket that nothing closes.
    """
    shell = _Shell(text.replace("\r\n", "\n"), known or {})
    return shell.statements(), list(dict.fromkeys(shell.notes))


class _Shell:
    """Reads one text from its start to its end."""

    def __init__(self, text: str, known: Mapping[str, str]) -> None:
        self.text, self.at = text, 0
        self.variables: dict[str, str] = dict(known)
        self.arrays: dict[str, list[str]] = {}
        self.exported: set[str] = set(known)
        self.export_all = False
        self.notes: list[str] = []

    def statements(self) -> list[Statement]:
        found: list[Statement] = []
        while self.at < len(self.text):
            statement = self._statement()
            if statement is not None:
                found.append(statement)
        return found

    # ------------------------------------------------------------ commands

    def _statement(self) -> Statement | None:
        """Up to a newline or an operator; assignments alone change what later ones see."""
        assigned: dict[str, str] = {}
        words: list[str] = []
        self._skip_prompt()
        while self._skip_blanks(words):
            name = None if words else _ASSIGNMENT.match(self.text, self.at)
            if name is not None and self.text[name.end() : name.end() + 1] == "(":
                self.at = name.end() + 1
                self.arrays[name[1]] = self._array()
            elif name is not None:
                self.at = name.end()
                assigned[name[1]] = "".join(self._word()).replace(_SPLIT, " ")
            elif (array := _ARRAY.match(self.text, self.at)) is not None and array[1] in self.arrays:
                self.at = array.end()
                words += self.arrays[array[1]]
            else:
                words += self._word()
        if not words:
            self.variables |= assigned
            if self.export_all:
                self.exported |= set(assigned)
            return None
        return self._builtin(words) or self._seen_by(words, assigned)

    def _builtin(self, words: list[str]) -> Statement | None:
        """``export`` and its like change what later commands see."""
        if words[0] == "set" and words[1:2] in (["-a"], ["-o"]):
            self.export_all = self.export_all or words[1:] in (["-a"], ["-o", "allexport"])
        if words[0] not in ("export", "declare", "typeset"):
            return None
        for word in words[1:]:
            name, equals, value = word.partition("=")
            if _NAME.fullmatch(name):
                self.exported.add(name)
                if equals:
                    self.variables[name] = value
        return Statement(())

    def _seen_by(self, words: list[str], assigned: dict[str, str]) -> Statement:
        exported = {name: value for name, value in self.variables.items() if name in self.exported}
        hidden = {name: value for name, value in self.variables.items() if name not in self.exported}
        return Statement(tuple(words), exported | assigned, {n: v for n, v in hidden.items() if n not in assigned})

    def _array(self) -> list[str]:
        words: list[str] = []
        while True:
            while self.at < len(self.text) and self.text[self.at] in " \t\n\\":
                self.at += 1
            if self.at >= len(self.text):
                raise UserError("a bracket ( that opens a bash array is not closed")
            if self.text[self.at] == ")":
                self.at += 1
                return words
            if self.text[self.at] == "#":
                self._skip_comment()
                continue
            words += self._word(")")

    def _skip_prompt(self) -> None:
        found = _PROMPT.match(self.text, self.at)
        if found is not None:
            self.at = found.end()

    def _skip_comment(self) -> None:
        end = self.text.find("\n", self.at)
        self.at = len(self.text) if end < 0 else end

    def _skip_blanks(self, words: list[str]) -> bool:
        """Go to the next word; False where the statement ends, behind its end."""
        while self.at < len(self.text):
            rest = self.text[self.at : self.at + 2]
            if rest[0] in " \t":
                self.at += 1
            elif rest[0] == "#":
                self._skip_comment()
            elif rest[0] == "\\" and (joined := re.compile(r"\\([ \t]*)(?:\n|$)").match(self.text, self.at)):
                self._join(joined)
            elif rest[0] == "\n":
                self.at += 1
                following = re.compile(r"(?:[ \t]*(?:#[^\n]*)?\n)*[ \t]*(?:>[ \t]+)?(?=-{1,2}[A-Za-z])").match(
                    self.text, self.at
                )
                if not (words and following):
                    return False
                self.at = following.end()
            elif rest in ("&>", "<<") or (_REDIRECTION.match(self.text, self.at) and not self._is_placeholder()):
                self._skip_redirection()
            elif rest[0] in ";|&":
                self.at += 2 if rest in ("&&", "||", ";;") else 1
                return False
            else:
                return True
        return False

    def _is_placeholder(self) -> bool:
        return _PLACEHOLDER.match(self.text, self.at) is not None

    def _skip_redirection(self) -> None:
        found = _REDIRECTION.match(self.text, self.at)
        assert found is not None
        self.at = found.end()
        if "&" in found[0][1:]:
            return
        while self.text[self.at : self.at + 1] in (" ", "\t", "<"):
            self.at += 1
        self._word()

    def _join(self, found: re.Match[str]) -> None:
        """A backslash at the end of a line: the next line goes on."""
        if found[1]:
            self.notes.append(
                "a backslash with blanks behind it, where bash would end the command: the next line goes on"
            )
        self.at = found.end()
        self._skip_prompt()

    # ------------------------------------------------------------ words

    def _word(self, end: str = "") -> list[str]:
        """The word here; several, if a variable without quotes holds blanks; none, if it is empty."""
        parts: list[str] = []
        quoted = False
        while self.at < len(self.text):
            c = self.text[self.at]
            if c in " \t\n;|" or c in end or (c == "&" and parts):
                break
            if c in "<>" and (placeholder := _PLACEHOLDER.match(self.text, self.at)):
                parts.append(mark(placeholder[0]))
                self.at = placeholder.end()
            elif c in "<>":
                break
            elif c == "{" and (not parts or parts[-1].endswith("=")) and _LOST_QUOTES.match(self.text, self.at):
                parts.append(self._lost_quotes())
                quoted = True
            elif c == "'":
                parts.append(self._single_quoted())
                quoted = True
            elif c == '"':
                parts.append(self._double_quoted())
                quoted = True
            elif c == "\\":
                joined = re.compile(r"\\([ \t]*)(?:\n|$)").match(self.text, self.at)
                if joined is None:
                    parts.append(self.text[self.at + 1])
                    self.at += 2
                else:
                    self._join(joined)
            elif c == "$" and (ansi := _ANSI_C.match(self.text, self.at)):
                parts.append(re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), ansi[1]))
                self.at, quoted = ansi.end(), True
            elif self.text.startswith('$"', self.at):
                self.at += 1  # a text to be translated
            elif c in "$`":
                parts.append(re.sub(r"[ \t\n]+", _SPLIT, self._expansion()))
            else:
                parts.append(c)
                self.at += 1
        word = "".join(parts)
        if end == "" and not quoted and not word:
            return []
        return [part for part in word.split(_SPLIT) if part or quoted] if _SPLIT in word else [word]

    def _single_quoted(self) -> str:
        end = self.text.find("'", self.at + 1)
        if end < 0:
            raise UserError(f"a quote ' is not closed: {_short(self.text[self.at :])}")
        inside, self.at = self.text[self.at + 1 : end], end + 1
        return inside

    def _double_quoted(self) -> str:
        start = self.at
        parts: list[str] = []
        self.at += 1
        while self.at < len(self.text):
            c = self.text[self.at]
            if c == '"':
                self.at += 1
                return "".join(parts)
            if c == "\\" and self.text[self.at + 1 : self.at + 2] in tuple('$`"\\\n'):
                following = self.text[self.at + 1 : self.at + 2]
                parts.append("" if following == "\n" else following)
                self.at += 2
            elif c in "$`":
                parts.append(self._expansion())
            else:
                parts.append(c)
                self.at += 1
        raise UserError(f'a quote " is not closed: {_short(self.text[start:])}')

    def _lost_quotes(self) -> str:
        """A JSON object without quotes around it, up to its closing brace."""
        start, depth, inside = self.at, 0, ""
        for position in range(self.at, len(self.text)):
            c = self.text[position]
            if inside:
                inside = "" if c == inside and self.text[position - 1] != "\\" else inside
            elif c in "\"'":
                inside = c
            elif c in "{}":
                depth += 1 if c == "{" else -1
                if not depth:
                    self.at = position + 1
                    self.notes.append(
                        "JSON without quotes around it, which bash would break apart, is read as one word"
                    )
                    return self.text[start : self.at]
        raise UserError(f"a brace {{ is not closed: {_short(self.text[start:])}")

    # ------------------------------------------------------------ variables

    def _expansion(self) -> str:
        """What a ``$...`` or `` `...` `` here stands for."""
        rest = self.text[self.at :]
        if rest.startswith("$(("):
            inside = self._until("$((", "))")
            return self._arithmetic(inside)
        if rest.startswith("$("):
            return mark(f"$({self._until('$(', ')')})")
        if rest.startswith("${"):
            return self._braced(self._until("${", "}"))
        if rest.startswith("`"):
            return mark(f"`{self._until('`', '`')}`")
        found = re.match(r"\$([A-Za-z_]\w*|[0-9@*#?$!-])", rest)
        if found is None:
            self.at += 1
            return "$"
        self.at += found.end()
        return self._value(found[1])

    def _until(self, opening: str, closing: str) -> str:
        """What stands between, over brackets inside."""
        start = self.at + len(opening)
        depth, position, (outer, inner) = 1, start, (opening[-1], closing[0])
        while position < len(self.text):
            if self.text.startswith(closing, position) and depth == 1:
                self.at = position + len(closing)
                return self.text[start:position]
            if outer != inner:
                depth += (self.text[position] == outer) - (self.text[position] == inner)
            position += 1
        raise UserError(f"{opening} is not closed: {_short(self.text[self.at :])}")

    def _value(self, name: str) -> str:
        if name in self.variables:
            return self.variables[name]
        return " ".join(self.arrays[name]) if name in self.arrays else mark(name)

    def _braced(self, inside: str) -> str:
        found = re.fullmatch(r"([A-Za-z_]\w*)(?:\[[@*]\])?(?:(:?[-=])(.*))?", inside, re.DOTALL)
        if found is None:
            return mark(f"${{{inside}}}")
        name, how, default = found.groups()
        if how is None or self.variables.get(name, "") or (how in "-=" and name in self.variables):
            return self._value(name)
        inner = _Shell(f'"{default}"' if '"' not in default else default, {})
        inner.variables, inner.arrays = self.variables, self.arrays
        return " ".join(inner._word())

    def _arithmetic(self, inside: str) -> str:
        text = re.sub(r"\$\{?(\w+)\}?", r"\1", inside).strip()
        wanting = [n for n in dict.fromkeys(_NAME.findall(text)) if unresolved(self._value(n))]
        if wanting:
            return "".join(mark(name) for name in wanting)
        try:
            return str(computed(text, lambda name: int(self._value(name))))
        except ValueError:
            return mark(f"$(({inside}))")


def _short(text: str) -> str:
    line = " ".join(text.split())
    return json.dumps(line if len(line) <= 50 else f"{line[:47]}...")
