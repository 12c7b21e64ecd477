"""The connector's worker side, called as vLLM's model runner does, with copies that count steps below it."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from copies import Failures, Lanes, Log, OffloadingCopies, ReadyAt, SimpleCopies
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.v1.outputs import KVConnectorOutput


class Worker:
    """vLLM's worker-side connector without a GPU."""

    def __init__(self, vllm_config: Any, kv_cache_config: Any, options: dict[str, Any], log: Log) -> None:
        self._connector: Any = KVConnectorFactory.create_connector(vllm_config, KVConnectorRole.WORKER, kv_cache_config)
        self._files = None
        if options["connector"] == "example":
            from files import Files

            self._files = Files(self._connector, options["num_gpu_blocks"], options["block_size"], log)
            return
        lanes = Lanes(options["load_delay"], options["store_delay"])
        self._failures = Failures(options["load_failures"] or ())
        self._log = log
        if options["connector"] == "stub":
            return
        if options["connector"] == "offloading":
            self._connector.connector_worker.worker = OffloadingCopies(lanes, _transfer_result, log, self._failures)
            return
        handler = self._connector.worker_handler
        if handler is not None:  # there is none without prefix caching
            torch.cuda.current_stream = lambda *_args, **_kwargs: None  # stores wait for it
            handler._backend = SimpleCopies(lanes, log, self._failures)
            if hasattr(handler, "_store_compute_done"):
                handler._store_compute_done = ReadyAt(0)

    def execute(self, output: Any) -> KVConnectorOutput:
        """One step of the worker.

        The order is that of vLLM: v1/worker/gpu_model_runner.py (preemptions before an early exit) and
        v1/worker/kv_connector_model_runner_mixin.py. From 0.33 on, loads start behind the forward pass unless
        something waits for them, and `wait_for_save` is called without a forward pass too.
        """
        connector, meta = self._connector, output.kv_connector_metadata
        connector.handle_preemptions(meta)
        connector.bind_connector_metadata(meta)
        for blocks in getattr(meta, "loads", ()):  # the stub's
            self._log.append(["load", self._failures.num_loads, [], blocks])
            self._failures.on_load(blocks, lambda: True)
        if self._files is not None:
            self._files.forward(meta)
        else:
            connector.start_load_kv(None)  # before or behind the forward pass: here that takes no time
        if output.total_num_scheduled_tokens > 0 or hasattr(output, "has_sync_kv_loads"):
            connector.wait_for_save()
        if hasattr(connector, "get_transfer_results"):
            results = connector.get_transfer_results(output.finished_req_ids)
            sent, received = results.finished_sending, results.finished_recving
        else:
            sent, received = connector.get_finished(output.finished_req_ids)
        report = KVConnectorOutput()
        # vLLM passes sets on; sorted, the order does not depend on the hash seed.
        report.finished_sending = sorted(sent or ()) or None
        report.finished_recving = sorted(received or ()) or None
        report.invalid_block_ids = self._failures.take()
        report.kv_connector_worker_meta = connector.build_connector_worker_meta()
        connector.clear_connector_metadata()
        return report


def _transfer_result(job_id: int) -> Any:
    try:
        module = importlib.import_module("vllm.v1.kv_offload.worker.worker")
        kind = module.TransferResult
    except (ImportError, AttributeError):
        kind = importlib.import_module("vllm.v1.kv_offload.base").TransferResult
    return kind(job_id=job_id, success=True)
