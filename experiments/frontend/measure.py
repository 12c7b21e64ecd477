# ruff: noqa: INP001, T201, PLC0415, S310 - a script, run by path; vLLM can be imported only after its stand-ins
"""CPU time of what vLLM does with a chat request before its scheduler hears of it, per prompt token and per request.

Runs vLLM's own code without a GPU: its HTTP endpoint's model, chat template, tokenizer call, engine-core message and
block hashes. See README.md for how the environment is made.

    PYTHONPATH=TOOLS:VLLM:. python experiments/frontend/measure.py --ranks TOOLS/o200k_base.js -o results.csv
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import gc
import importlib.metadata
import json
import platform
import re
import statistics
import sys
import sysconfig
import threading
import time
import urllib.request
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

SIZES = (200, 10_000, 50_000, 100_000)  # prompt tokens
TURN_TOKENS = 1_500  # of a message: the traces of coding agents have 1,000 to 3,000 per turn
MAX_MODEL_LEN = 262_144
# A template with the markers of Kimi-K2's; what it does per message is what theirs does without tools.
TEMPLATE = (
    "{%- for message in messages -%}{%- set role = message.get('name') or message['role'] -%}"
    "{%- if message['role'] == 'user' -%}<|im_user|>{{ role }}<|im_middle|>"
    "{%- elif message['role'] == 'assistant' -%}<|im_assistant|>{{ role }}<|im_middle|>"
    "{%- else -%}<|im_system|>{{ role }}<|im_middle|>{%- endif -%}"
    "{%- if message['content'] is string -%}{{ message['content'] }}{%- else -%}"
    "{%- for part in message['content'] -%}{{ part['text'] }}{%- endfor -%}{%- endif -%}<|im_end|>"
    "{%- endfor -%}{%- if add_generation_prompt -%}<|im_assistant|>assistant<|im_middle|>{%- endif -%}"
)
MARKERS = ("<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>")


# -- text
def conversation(count: Callable[[str], int], num_tokens: int) -> list[dict[str, str]]:
    """Messages of so many tokens in all: source code as users' (tools') messages, READMEs as the assistant's."""
    library = Path(sysconfig.get_path("stdlib"))
    sources = _pieces(sorted(library.glob("*.py")), count)
    readmes = _pieces(sorted(Path(sysconfig.get_path("purelib")).glob("*.dist-info/METADATA")), count)
    messages = [{"role": "system", "content": "You are a coding agent."}]
    left = num_tokens - 20
    while left > 20:
        role, source = ("assistant", readmes) if len(messages) % 2 == 0 else ("user", sources)
        text, size = next(source)
        if size > left:
            text = text[: len(text) * left // size]
            size = count(text)
        messages.append({"role": role, "content": text})
        left -= size + 4
    return messages


def _pieces(files: Sequence[Path], count: Callable[[str], int]) -> Iterator[tuple[str, int]]:
    """Lines of files, put together to about a turn's tokens each."""
    lines: list[str] = []
    size = 0
    while True:
        for file in files:
            for line in file.read_text(errors="replace").splitlines(keepends=True):
                lines.append(line)
                size += len(line)
                if size > TURN_TOKENS * 4:  # about four characters are a token
                    text = "".join(lines)
                    yield text, count(text)
                    lines, size = [], 0


# -- tokenizers
def read_ranks(path: Path) -> tuple[str, dict[bytes, int]]:
    """Pattern and ranks of a vocabulary as the npm package js-tiktoken has it."""
    data = json.loads(path.read_text().removeprefix("export default").strip().removesuffix(";"))
    ranks: dict[bytes, int] = {}
    for line in data["bpe_ranks"].splitlines():
        _, first, *tokens = line.split(" ")
        ranks.update((b64decode(token), int(first) + number) for number, token in enumerate(tokens))
    return data["pat_str"], ranks


def slow_tokenizer(encoding: Any) -> Any:
    """A transformers tokenizer in Python around tiktoken, built as Kimi-K2's is (tokenization_kimi.py).

    vLLM calls it, not its `encode`: the text is cut at special tokens by transformers, each part is encoded by
    tiktoken behind a loop over its characters (which bounds runs without blanks), tokens become texts and ids again.
    """
    from transformers.tokenization_python import PythonBackend

    names = [encoding.decode_single_token_bytes(i).decode("latin-1") for i in range(encoding.n_vocab)]
    numbers = {name: number for number, name in enumerate(names)}

    class AroundTiktoken(PythonBackend):
        vocab_files_names: ClassVar[dict[str, str]] = {}
        model_input_names: ClassVar[list[str]] = ["input_ids", "attention_mask"]

        @property
        def vocab_size(self) -> int:
            return len(names)

        def get_vocab(self) -> dict[str, int]:
            return numbers

        def _tokenize(self, text: str, **_: Any) -> list[str]:
            found: list[int] = []
            for start in range(0, len(text), 400_000):
                for part in _bounded_runs(text[start : start + 400_000], 25_000):
                    found.extend(encoding.encode(part, allowed_special="all"))
            return [names[number] for number in found]

        def _convert_token_to_id(self, token: str) -> int:
            return numbers[token]

        def _convert_id_to_token(self, index: int) -> str:
            return names[index]

    made: Any = AroundTiktoken(bos_token=MARKERS[0], eos_token=MARKERS[0], additional_special_tokens=list(MARKERS))
    made.chat_template = TEMPLATE
    return made


class DirectTokenizer:
    """What remains when the tokenizer hands the whole text to tiktoken, as Inferact/Kimi-K2.5-NVFP4 does it."""

    def __init__(self, encoding: Any) -> None:
        self._encoding = encoding

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        """As vLLM calls it."""
        found: list[int] = []
        for start in range(0, len(text), 400_000):
            for part in _bounded_runs(text[start : start + 400_000], 25_000):
                found.extend(self._encoding.encode(part, allowed_special="all"))
        return {"input_ids": found}


def _bounded_runs(text: str, most: int) -> Iterator[str]:
    """The text in parts without long runs of blanks, or of anything else."""
    start = run = 0
    was_blank = bool(text) and text[0].isspace()
    for place in range(len(text)):
        is_blank = text[place].isspace()
        if is_blank ^ was_blank:
            run, was_blank = 1, is_blank
        else:
            run += 1
            if run > most:
                yield text[start:place]
                start, run = place, 1
    yield text[start:]


def fast_tokenizer(pattern: str, ranks: dict[bytes, int]) -> Any:
    """The same vocabulary as a HuggingFace fast tokenizer (Rust), as most models have it."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    letters = bytes_to_unicode()

    def spelled(token: bytes) -> str:
        return "".join(letters[byte] for byte in token)

    merges: list[tuple[int, int, bytes, bytes]] = []
    for token, rank in ranks.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ranks and right in ranks:
                merges.append((rank, ranks[left], left, right))
    merges.sort(key=lambda each: each[:2])
    vocab = {spelled(token): rank for token, rank in ranks.items()}
    model = BPE(vocab, [(spelled(left), spelled(right)) for _, _, left, right in merges], ignore_merges=True)
    made = Tokenizer(model)
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated", invert=False)
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(name, special=True) for name in MARKERS])
    whole = PreTrainedTokenizerFast(tokenizer_object=made, bos_token=MARKERS[0], eos_token=MARKERS[0])
    whole.chat_template = TEMPLATE
    return whole


# -- the parts
def cpu_ns(work: Callable[[], Any], repeats: int) -> tuple[float, float, float]:
    """Median, least and most of the process' CPU time (all threads)."""
    work()
    found = []
    for _ in range(repeats):
        before = time.process_time_ns()
        work()
        found.append(time.process_time_ns() - before)
    return statistics.median(found), min(found), max(found)


class Endpoint:
    """FastAPI on uvicorn with vLLM's request model; only its own thread's CPU time counts."""

    def __init__(self) -> None:
        import uvicorn
        from fastapi import FastAPI
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

        app = FastAPI()

        async def chat(request) -> int:  # type: ignore[no-untyped-def]
            return len(request.messages)

        chat.__annotations__["request"] = ChatCompletionRequest
        app.post("/v1/chat/completions")(chat)
        config = uvicorn.Config(app, port=0, log_level="critical", loop="uvloop", http="httptools")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        self._port = self._server.servers[0].sockets[0].getsockname()[1]
        self._clock = time.pthread_getcpuclockid(self._thread.ident or 0)

    def cpu_ns(self, body: bytes, repeats: int) -> tuple[float, float, float]:
        """Of taking in such a request."""
        found = []
        for number in range(repeats + 1):
            before = time.clock_gettime_ns(self._clock)
            request = urllib.request.Request(f"http://127.0.0.1:{self._port}/v1/chat/completions", body)
            request.add_header("Content-Type", "application/json")
            with urllib.request.urlopen(request) as answer:
                answer.read()
            if number:
                found.append(time.clock_gettime_ns(self._clock) - before)
        return statistics.median(found), min(found), max(found)


def parts(text_only: Any, tokenizers: dict[str, Any], repeats: int) -> Iterator[tuple[str, int, float, float, float]]:
    """Part, prompt tokens, and its CPU time, for every size."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.renderers.chat_utils import parse_chat_messages_async
    from vllm.renderers.params import TokenizeParams
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256, sha256_cbor
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.engine import EngineCoreRequest
    from vllm.v1.request import Request
    from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

    endpoint = Endpoint()
    init_none_hash(sha256)
    wanted = TokenizeParams(max_total_tokens=MAX_MODEL_LEN, add_special_tokens=False).get_encode_kwargs()
    model_config = SimpleNamespace(
        multimodal_config=None, allowed_local_media_path="", allowed_media_domains=None, hf_config=SimpleNamespace(),
        enable_prompt_embeds=False, is_multimodal_model=False,
    )  # fmt: skip
    loop = asyncio.new_event_loop()
    for size in SIZES:
        few = max(repeats, 200) if size < 1_000 else repeats
        messages = conversation(partial(_count, text_only), size)
        asked = {"model": "m", "messages": messages, "max_tokens": 900, "stream": True}
        body = json.dumps(asked).encode()
        slow = tokenizers["slow"]
        template = partial(slow.apply_chat_template, messages, tokenize=False, add_generation_prompt=True)
        text = template()
        ids = list(slow(text, **wanted)["input_ids"])
        num = len(ids)
        # (The direct one cuts the whole text after 400,000 characters, and a token there may be another.)
        assert ids == list(tokenizers["fast"](text, **wanted)["input_ids"]), "two tokenizers, two answers"
        yield "http, json, pydantic", num, *endpoint.cpu_ns(body, few)
        yield "of it: json, pydantic", num, *cpu_ns(partial(_validate, ChatCompletionRequest, body), few)
        parse = partial(parse_chat_messages_async, messages, model_config, content_format="string")  # type: ignore[arg-type]
        yield "chat messages", num, *cpu_ns(partial(_await, loop, parse), few)
        yield "chat template", num, *cpu_ns(template, few)
        for name, tokenizer in tokenizers.items():
            yield f"tokenizer, {name}", num, *cpu_ns(partial(_tokenize, tokenizer, text, wanted), few)
        yield "of slow: tiktoken", num, *cpu_ns(partial(_count, text_only, text), few)
        yield "of slow: loop over characters", num, *cpu_ns(partial(_split, text), few)
        request = EngineCoreRequest(
            request_id="r", prompt_token_ids=ids, mm_features=None, sampling_params=SamplingParams(max_tokens=900),
            pooling_params=None, arrival_time=0.0, lora_request=None, cache_salt=None, data_parallel_rank=None,
        )  # fmt: skip
        encoder, decoder = MsgpackEncoder(), MsgpackDecoder(EngineCoreRequest)
        sent = [bytes(each) for each in encoder.encode(request)]
        yield "message, encoded", num, *cpu_ns(partial(encoder.encode, request), few)
        yield "message, decoded", num, *cpu_ns(partial(decoder.decode, sent), few)
        for name, function, block in (("sha256", sha256, 16), ("sha256", sha256, 64), ("sha256_cbor", sha256_cbor, 16)):
            hasher = get_request_block_hasher(block, function)
            take = partial(Request.from_engine_core_request, request, hasher)
            yield f"hashes, {name}, blocks of {block}", num, *cpu_ns(take, few)


def _count(encoding: Any, text: str) -> int:
    return len(encoding.encode(text, allowed_special="all"))


def _validate(model: Any, body: bytes) -> None:
    model.model_validate(json.loads(body))


def _await(loop: asyncio.AbstractEventLoop, begin: Callable[[], Any]) -> None:
    loop.run_until_complete(begin())


def _tokenize(tokenizer: Any, text: str, options: dict[str, Any]) -> list[int]:
    return list(tokenizer(text, **options)["input_ids"])


def _split(text: str) -> list[str]:
    return list(_bounded_runs(text, 25_000))


def machine() -> dict[str, str]:
    """What it was measured on."""
    info = Path("/proc/cpuinfo").read_text()
    name = re.search(r"model name\s*:\s*(.*)", info)
    clock = re.search(r"cpu MHz\s*:\s*(.*)", info)
    versions = {
        each: importlib.metadata.version(each)
        for each in (
            "vllm",
            "transformers",
            "tokenizers",
            "tiktoken",
            "pydantic",
            "msgspec",
            "fastapi",
            "uvicorn",
            "jinja2",
        )
    }
    return {
        "cpu": f"{name[1] if name else platform.processor()}, {clock[1] if clock else '?'} MHz",
        "python": sys.version.split()[0],
        "date": time.strftime("%Y-%m-%d"),
        **versions,
    }


def main() -> None:
    """Measure and write a row for every part and size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=Path, required=True, help="o200k_base.js of the npm package js-tiktoken")
    parser.add_argument("--stubs", type=Path, default=Path("kvsim/conform/live"), help="folder of stubs.py")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("-o", "--output", type=Path, default=Path("results.csv"))
    wanted = parser.parse_args()
    sys.path.insert(0, str(wanted.stubs))
    import fastapi  # noqa: F401 - before the stand-ins: it would take one for the tracing that it looks for
    import stubs
    import tiktoken
    import uvicorn  # noqa: F401 - as above

    stubs.install()
    pattern, ranks = read_ranks(wanted.ranks)
    markers = {name: len(ranks) + number for number, name in enumerate(MARKERS)}
    # No gaps in the numbers: o200k_base leaves one for its own special tokens.
    encoding = tiktoken.Encoding("o200k", pat_str=pattern, mergeable_ranks=ranks, special_tokens=markers)
    tokenizers = {
        "slow": slow_tokenizer(encoding),
        "direct": DirectTokenizer(encoding),
        "fast": fast_tokenizer(pattern, ranks),
    }
    gc.collect()
    gc.freeze()  # as vLLM's API servers do when they have started (utils/gc_utils.py)
    with wanted.output.open("w", newline="") as file:
        write = csv.writer(file)
        for key, value in machine().items():
            file.write(f"# {key}: {value}\n")
        write.writerow(("part", "prompt_tokens", "median_ns", "least_ns", "most_ns", "ns_per_token"))
        for part, num, median, least, most in parts(encoding, tokenizers, wanted.repeats):
            row = (part, num, round(median), round(least), round(most), f"{median / num:.2f}")
            write.writerow(row)
            file.flush()
            print(*row)


if __name__ == "__main__":
    main()
