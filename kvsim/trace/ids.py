"""Lists of block ids, read only as far as they are new: a prompt's list mostly begins with the one before it.

A session of 500 turns writes its first block id 500 times. Nearly all of such a file are ids, and nearly all of
them stand in the list before too, text by text. So the lists are lifted out of the JSON before it is parsed, compared
as text, and only what is behind the common beginning becomes numbers.
"""

from __future__ import annotations

import json
import re

from kvsim.chain import ChainError, Kept, Leaf, PrefixTree
from kvsim.errors import UserError
from kvsim.trace.fields import Fields, parse_json

_KEY = '"hash_ids"'
_OPENS = re.compile(r"\s*:\s*\[")


class IdText(str):
    """What stands between the brackets of a list of ids in a JSON text."""

    __slots__ = ()


def parse_with_ids(text: str, where: str) -> object:
    """Like `parse_json` for a whole file, with every list named ``hash_ids`` as an `IdText`, not looked into.

    Where the rest is not JSON then, the lists are left in it, so that complaints name the place in the file.
    """
    lists: list[IdText] = []
    rest: list[str] = []
    at, key = 0, text.find(_KEY)
    while key >= 0:
        opens = _OPENS.match(text, key + len(_KEY))
        # (Behind a backslash the quote does not begin a key.)
        if opens and text[key - 1 : key] != "\\" and (end := text.find("]", opens.end())) >= 0:
            lists.append(IdText(text[opens.end() : end]))
            rest += (text[at : opens.end() - 1], "NaN")
            at = end + 1
        key = text.find(_KEY, max(at, key + 1))
    # A constant that JSON does not have stands for a list: the decoder asks what it means, one after the other.
    if "NaN" not in text and "Infinity" not in text:
        following = iter(lists)
        try:
            found: object = json.loads("".join(rest) + text[at:], parse_constant=lambda _name: next(following))
        except (ValueError, RecursionError):
            pass
        else:
            return found
    return parse_json(text, where, whole_file=True)


class PromptReader:
    """Adds the prompts of one file to the tree.

    Args:
        tree: grows.
        namespace: scope of the ids.
        block_tokens: tokens per id.
        text: the file, for complaints.
        where: its name.
    """

    def __init__(self, tree: PrefixTree, namespace: str, block_tokens: int, text: str, where: str) -> None:
        self._tree, self._namespace, self._block_tokens = tree, namespace, block_tokens
        self._text, self._where = text, where
        self._last, self._num_last = "", 0  # the list before, and how many ids it has

    def add(self, row: Fields, expected: int, why: str) -> Leaf:
        """The prompt whose ids are in a row: so many (`why` says where the number comes from).

        Raises:
            UserError: they are not so many integers, or not chained.
        """
        value, kept = row.get("hash_ids"), None
        if isinstance(value, IdText):
            kept, ids = self._split(row, value)
            row.check_ids("hash_ids", ids, expected, why, kept.num_ids if kept else 0)
        else:
            ids = row.ids("hash_ids", expected, why)
        try:
            leaf = self._tree.add(self._namespace, ids, self._block_tokens, kept)
        except ChainError as error:
            raise UserError(
                f"{row.where}: hash_ids: {error}, expected every id to have one position and one predecessor"
            ) from error
        if isinstance(value, IdText) and expected:
            self._last, self._num_last = value, expected
        return leaf

    def _split(self, row: Fields, text: str) -> tuple[Kept | None, list[int]]:
        """What a list has in common with the one before, and the ids behind that."""
        last = self._last
        end = _common_ids(text, last)
        if not end:
            return None, self._numbers(row, text)
        kept = Kept(self._num_last - last.count(",", end), int(text[text.rfind(",", 0, end) + 1 : end]))
        return kept, self._numbers(row, f"0{text[end:]}")[1:]

    def _numbers(self, row: Fields, text: str) -> list[int]:
        try:
            found: list[int] = json.loads(f"[{text}]")
        except ValueError:
            parse_json(self._text, self._where, whole_file=True)  # says where the mistake is
            row.fail("hash_ids", "a list of integers")
        return found


def _common_ids(text: str, other: str) -> int:
    """Length of the common beginning of two lists, in characters, up to the end of an id in both."""
    low, high = 0, min(len(text), len(other))
    if text.startswith(other):
        low = high
    while low < high:
        middle = (low + high + 1) // 2
        if text[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    if text[low : low + 1] in ("", ",") and other[low : low + 1] in ("", ","):
        return low
    return max(text.rfind(",", 0, low), 0)
