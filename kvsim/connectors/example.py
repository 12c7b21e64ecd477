"""vLLM's ExampleConnector (once SharedStorageConnector): whole prompts in files, and the GPU waits for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from kvsim.connectors.base import KVConnector, SchedulerOutput, WorkerOutput
from kvsim.connectors.waiting_worker import WaitingWorker
from kvsim.hardware import Transfer
from kvsim.request import Request

EMPTY_PROMPT = -1  # name of the folder of a prompt without a full block: all such prompts share it

Folder = int  # hash of the prompt's last aligned block, which stands for all tokens up to there


class Load(NamedTuple):
    """A prompt to be loaded."""

    blocks: int
    is_there: bool  # whether its files exist and are long enough


@dataclass(slots=True)
class ExampleMeta:
    """This step's work: prompts to load, and the blocks of each prompt to store."""

    loads: list[Load] = field(default_factory=list)
    stores: list[int] = field(default_factory=list)


class ExampleConnector(KVConnector):
    """A prompt is found if a folder bears the hash of *all* its tokens, as far as they fill blocks; else nothing is.

    The storage is shared, unbounded and never evicted. A store leaves out the last token, a lookup the last two, so
    that a prompt of n x block_size + 1 tokens looks for another folder than it stores. Nothing is stored of a prompt
    that loads. Generated tokens and what a later chunk of the prompt computes are not stored at all.
    Rules: vLLM 0.33.0 distributed/kv_transfer/kv_connector/v1/example_connector.py; 0.23.0 decides alike.

    ``num_salts``: tenants whose block hashes are interleaved (see `kvsim.request.Salted`); folders know no salts.

    Where vLLM's would break down this one goes on as if the file were there, and counts: see `cautions`.
    """

    def __init__(self, *, block_size: int, num_salts: int = 1) -> None:
        self._block_size, self._num_salts = block_size, num_salts
        self._folders: dict[Folder, int] = {}  # -> blocks
        self._need_load: dict[Request, None] = {}
        self._saving: dict[Folder, int] = {}  # in this step
        self.num_load_jobs = self.num_store_jobs = 0
        self.num_cut_stores = 0
        self.num_missing_files = 0

    def _folder(self, request: Request, tokens: int) -> tuple[Folder, int]:
        """Folder of the first ``tokens`` tokens as vLLM aligns them (never all of them), and its length in blocks."""
        blocks = max(tokens - 1, 0) // self._block_size
        return (request.block_hashes[blocks - 1] // self._num_salts if blocks else EMPTY_PROMPT), blocks

    def _found(self, request: Request) -> bool:
        return self._folder(request, request.num_prompt_tokens - 1)[0] in self._folders

    def get_num_new_matched_tokens(self, request: Request, num_local_tokens: int) -> tuple[int | None, bool]:
        """May be negative: what is hit locally beyond the folder's length is then computed again."""
        if not self._found(request):
            return 0, False
        _, blocks = self._folder(request, request.num_prompt_tokens - 1)
        return blocks * self._block_size - num_local_tokens, False

    def may_defer(self) -> bool:
        return False

    @property
    def num_offloaded_chunks(self) -> int:
        return sum(self._folders.values())

    def update_state_after_alloc(self, request: Request, table: list[int], num_external_tokens: int) -> None:
        if num_external_tokens > 0:
            self._need_load[request] = None

    def build_connector_meta(self, output: SchedulerOutput) -> ExampleMeta:
        """Loads take the whole prompt, what is on the GPU already too; stores what has blocks so far."""
        meta = ExampleMeta()
        for request in output.new:
            folder, blocks = self._folder(request, request.num_prompt_tokens)
            if request in self._need_load:
                self._load(meta, folder, blocks)
            elif not self._found(request):
                has = min(blocks, len(output.tables[request]))
                self.num_cut_stores += has < blocks
                meta.stores.append(has)
                self._saving[folder] = has
        for request in output.resumed:
            if request in self._need_load:
                tokens = request.num_computed_tokens + output.num_scheduled_tokens[request]
                self._load(meta, *self._folder(request, tokens))
        self._need_load.clear()
        self.num_load_jobs += len(meta.loads)
        self.num_store_jobs += len(meta.stores)
        return meta

    def _load(self, meta: ExampleMeta, folder: Folder, blocks: int) -> None:
        has = self._folders.get(folder, 0)
        self.num_missing_files += has < blocks
        meta.loads.append(Load(blocks, is_there=has >= blocks))
        self._saving.setdefault(folder, has)  # vLLM makes the folder even before it looks for the file

    def request_finished(self, request: Request, table: list[int]) -> bool:
        return False

    def update_connector_output(self, output: WorkerOutput) -> None:
        """What this step has saved can be found from the next on."""
        self._folders |= self._saving
        self._saving = {}

    def cautions(self) -> list[str]:
        found: list[str] = []
        if self.num_cut_stores:
            found.append(
                f"{self.num_cut_stores} prompts were stored when only their first chunk had been computed: vLLM's"
                " ExampleConnector leaves files there that are too short (raise engine.max_num_batched_tokens)."
            )
        if self.num_missing_files:
            found.append(
                f"{self.num_missing_files} loads wanted a file that is missing or too short: vLLM's ExampleConnector"
                " would have raised an error and ended the engine."
            )
        return found

    def check(self, *, at_end: bool) -> None:
        assert not self._need_load, "a load was never handed out"


StorageOp = Callable[[int], Transfer]  # blocks of one layer, all ranks -> the copy, which has been started


class ExampleWorker(WaitingWorker[ExampleMeta]):
    """Everything is done by the host, one after the other, while the GPU waits.

    Before the forward pass: for each prompt and layer, read a file and copy it to the GPU. Behind each layer: for each
    prompt, copy from the GPU and write a file. Nothing overlaps, as in vLLM's, which says that it is for debugging.
    """

    def __init__(self, num_layers: int, read: StorageOp, to_gpu: StorageOp, from_gpu: StorageOp, write: StorageOp):
        super().__init__(num_layers, ExampleMeta)
        self._loading, self._storing = (read, to_gpu), (from_gpu, write)

    def has_layer_work(self) -> bool:
        return bool(self._meta.loads or self._meta.stores)

    def before_forward(self) -> Iterator[Transfer]:
        for blocks, _ in self._meta.loads:
            for _layer in range(self.num_layers):
                for copy in self._loading:
                    yield copy(blocks)

    def wait_for_layer_load(self, layer: int) -> Iterator[Transfer]:
        return iter(())

    def save_kv_layer(self, layer: int) -> Iterator[Transfer]:
        for blocks in self._meta.stores:
            for copy in self._storing:
                yield copy(blocks)

    def wait_for_save(self) -> Iterator[Transfer]:
        return iter(())
