"""How far a prefix can be loaded when its KV lies in several groups."""

from __future__ import annotations

from collections.abc import Sequence

from kvsim.connectors.group_plan import GroupPlan
from kvsim.offload.group_context import GroupContext
from kvsim.offload.ledger import Ledger


class GroupLookup:
    """Each group cuts the prefix down to what it can serve, until none does.

    Full attention needs every chunk behind the local hit, a window only the last ones, a state only the last one.
    Rules: vLLM 0.33.0 distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py, _lookup_complete_chunks.
    """

    def __init__(self, manager: Ledger, plans: Sequence[GroupPlan]) -> None:
        self._manager = manager
        self._full = [plan for plan in plans if plan.window_chunks is None]
        windows = [plan for plan in plans if plan.window_chunks is not None]
        self._windows = sorted(windows, key=lambda plan: plan.window_chunks or 0, reverse=True)
        self._states = next((plan.chunk_tokens for plan in plans if plan.keeps_states), None)

    def tokens(self, context: GroupContext, num_tokens: int, local_tokens: int) -> int | None:
        """Loadable tokens behind the local hit; None = ask again next step."""
        limit = num_tokens
        if self._windows:
            limit -= 1  # the last token has to be computed, and a window must be there for it
            if self._states is not None:
                limit -= limit % self._states
        found, deferred = 0, False
        groups: Sequence[GroupPlan] = [*self._full, *self._windows]
        while groups:
            seen_window, todo = False, list(groups)
            groups = ()
            for plan in todo:
                numbers, size = context.numbers[plan.group], plan.chunk_tokens
                limit = min(limit, len(numbers) * size)
                if limit - local_tokens < size:
                    return 0
                first, last = local_tokens // size, min(-(-limit // size), len(numbers))
                chunks = self._hits(context, plan, numbers[first:last], min(limit, last * size))
                if chunks == 0:
                    return 0
                if chunks is None:
                    deferred = True
                else:
                    limit = min(limit, size * (first + chunks))
                now = limit - local_tokens
                if now < size:
                    return 0
                if now < found:
                    if deferred:  # all groups once more: perhaps there is no need to wait any longer
                        deferred, groups = False, [*self._full, *self._windows]
                    elif seen_window and not groups:
                        groups = self._windows
                seen_window |= plan.window_chunks is not None
                found = now
        return None if deferred else found

    def _hits(self, context: GroupContext, plan: GroupPlan, numbers: Sequence[int], end: int) -> int | None:
        window = plan.window_chunks
        if window is None:
            return self._prefix(context, numbers)
        return self._window(context, numbers, window, plan.load_window_chunks(end) or window)

    def _ask(self, context: GroupContext, number: int) -> tuple[bool, bool]:
        """(it is there, the answer may change)."""
        chunks, pending = self._manager.lookup_prefix(context, number, number + 1)
        return bool(chunks), pending

    def _prefix(self, context: GroupContext, numbers: Sequence[int]) -> int | None:
        hits, deferred = 0, False
        for number in numbers:
            there, pending = self._ask(context, number)
            if not there and not pending:
                break
            deferred |= pending
            hits += there
        return None if deferred else hits

    def _window(self, context: GroupContext, numbers: Sequence[int], window: int, first_window: int) -> int | None:
        """The end of the last run of so many hits; the rightmost run may have to be longer."""
        unknown = pending_in_run = False
        run, wanted = 0, first_window
        for i in range(len(numbers) - 1, -1, -1):
            there, pending = self._ask(context, numbers[i])
            if there:
                pending_in_run |= pending
                run += 1
            else:
                unknown |= pending
                run, pending_in_run, wanted = 0, False, window
            if run == wanted:
                return None if unknown or pending_in_run else i + wanted
        return None if unknown or pending_in_run else run


def loaded_numbers(context: GroupContext, plan: GroupPlan, local_tokens: int, end_tokens: int) -> Sequence[int]:
    """Numbers of the chunks that a load of tokens ``local_tokens .. end_tokens-1`` would read of one group."""
    size = plan.chunk_tokens
    numbers = context.numbers[plan.group][local_tokens // size : -(-end_tokens // size)]
    window = plan.load_window_chunks(end_tokens)
    return numbers if window is None else numbers[-window:]
