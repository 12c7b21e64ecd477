"""The kernel of the triton backend; imported only where triton is."""

from __future__ import annotations

import triton
import triton.language as tl


# Compiled once for any count; without that, counts of 1 and multiples of 16 would be compiled apart, during a replay.
@triton.jit(do_not_specialize=["count"])  # type: ignore[untyped-decorator]
def copy_descriptors(sources, destinations, sizes, count, WORDS: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """Programs take descriptors in turn and copy them by words of 64 bits, then the last bytes."""
    for index in range(tl.program_id(0), count, tl.num_programs(0)):
        source = tl.load(sources + index)
        destination = tl.load(destinations + index)
        size = tl.load(sizes + index)
        from_words = source.to(tl.pointer_type(tl.int64))
        to_words = destination.to(tl.pointer_type(tl.int64))
        words = size // 8
        for start in range(0, words, WORDS):
            offsets = start + tl.arange(0, WORDS)
            inside = offsets < words
            tl.store(to_words + offsets, tl.load(from_words + offsets, mask=inside), mask=inside)
        from_bytes = source.to(tl.pointer_type(tl.uint8))
        to_bytes = destination.to(tl.pointer_type(tl.uint8))
        tail = words * 8 + tl.arange(0, 8)
        rest = tail < size
        tl.store(to_bytes + tail, tl.load(from_bytes + tail, mask=rest), mask=rest)
