"""What the flags of a command line mean together, by the rules and defaults of a release on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvsim.errors import UserError
from kvsim.steptime.capacity import default_limits
from kvsim.steptime.gpu import load_gpu
from kvsim.vllm_args import with_offloading_size
from kvsim.vllm_line.command_line import CommandLine, Ranks
from kvsim.vllm_line.effects import NOT_SIMULATED, TAKEN, without_effect
from kvsim.vllm_line.fits import config_unfit, heads_unfit
from kvsim.vllm_line.flag_table import flags_of
from kvsim.vllm_line.flags import Given, read_flags
from kvsim.vllm_line.pastes import Paste, read_paste
from kvsim.vllm_line.ranges import out_of_range
from kvsim.vllm_line.sections import Sections, make_sections
from kvsim.vllm_line.speculative import speculative_config
from kvsim.vllm_line.transfer import (
    LMCACHE_KEYS,
    describe,
    parser_refusals,
    start_failures,
    with_lmcache_settings,
    without_hma,
)
from kvsim.vllm_line.words import shown

VERSIONS = ("0.33.0", "0.23.0")
DEFAULT_MODEL = "Qwen/Qwen3-0.6B"  # of vLLM, where a line names none
DEFAULT_GPU = "h100-sxm"
_BATCHED_DP_TOKENS = 256  # vLLM config/scheduler.py: the default budget of batched all-to-all kernels
_BATCHED_DP = ("deepep_low_latency", "nixl_ep")
# Read by neither release any more.
_DEAD_VARIABLES = ("VLLM_USE_V1", "VLLM_ATTENTION_BACKEND", "VLLM_ALL2ALL_BACKEND")
_OF_VLLM = ("VLLM_", "LMCACHE_", "MOONCAKE_", "DYN_")
# Read here; those of LMCache that its config has are so too.
_READ = (
    "VLLM_USE_SIMPLE_KV_OFFLOAD", "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT", "VLLM_MOONCAKE_LOAD_RECV_THREADS",
    "VLLM_KV_OFFLOAD_MAX_BATCH_DESCRIPTORS", "VLLM_ALLOW_LONG_MAX_MODEL_LEN",
    "LMCACHE_CONFIG_FILE", "DYN_KVBM_CPU_CACHE_GB", "DYN_KVBM_DISK_CACHE_GB",
)  # fmt: skip


def parse_command_line(
    text: str, version: str | None = None, gpu: str | None = None, *, model_config: str | None = None
) -> CommandLine:
    """Read a vLLM command line as people paste it: shell, docker, compose, Kubernetes or log form.

    Args:
        text: the paste, with exports and assignments if there are any.
        version: ``0.33.0`` or ``0.23.0``; None = as the image's tag says, if it is one of them, else 0.33.0.
        gpu: a GPU preset or file; None = h100-sxm.
        model_config: the model's ``config.json``, for one that is no preset.

    Raises:
        UserError: no single vLLM command is in it, or the version or GPU is unknown. Whatever is wrong with the command
            itself is in the result.
    """
    if version is not None and version not in VERSIONS:
        raise UserError(f"vLLM version: expected one of {', '.join(VERSIONS)}, found {version!r:.40}")
    paste = read_paste(text)
    notes: list[str] = list(paste.notes)
    if version is None:
        version = paste.image_tag if paste.image_tag in VERSIONS else VERSIONS[0]
        if paste.image_tag is not None and paste.image_tag != version:
            notes.append(f"the image is vLLM {paste.image_tag}: read as {version}, of {' and '.join(VERSIONS)}")
    if gpu is None:
        gpu = DEFAULT_GPU
        notes.append(f"the line does not say which GPU: {gpu} is assumed")
    given = read_flags(paste.words, version, serve=paste.serve)
    return _Meaning(paste, given, version, gpu, model_config, [*notes, *given.notes]).command_line()


class _Meaning:
    """Works out what follows from the flags of one line."""

    def __init__(
        self, paste: Paste, given: Given, version: str, gpu: str, model_config: str | None, notes: list[str]
    ) -> None:
        self.paste, self.given, self.version, self.gpu = paste, given, version, load_gpu(gpu)
        self.gpu_name, self.model_config, self.notes = gpu, model_config, notes
        self.values, self.environment = given.values, dict(paste.environment)
        self.refusals, self.failures, self.not_simulated = list(given.refusals), list[str](), list[str]()

    def command_line(self) -> CommandLine:
        """All of it, in the order in which one thing follows from another."""
        self._variables()
        self.failures += out_of_range(self.values, self.version)
        self._flags_without_a_place()
        ranks = self._ranks()
        model, served = self._model()
        config = self._transfer_config()
        transfer = describe(config, self.environment, ranks.world_size)
        speculative, problems = speculative_config(self.values, self.version)
        self.refusals += problems.refusals
        self.failures += problems.failures
        length = self.values.get("--max-model-len")
        sections = make_sections(
            Sections(
                self.values, self.environment, self.version, self.gpu, self.gpu_name, model, served, ranks.tensor or 1,
                ranks.data or 1, ranks.expert, config, speculative, self.model_config,
            )
        )  # fmt: skip
        self.notes += sections.notes
        self.not_simulated += sections.not_simulated
        self._model_fits(sections, ranks)
        max_position = sections.spec.max_position if sections.spec is not None else None
        budget, seqs = self._limits(ranks, max_position, sections.engine)
        is_async = self._is_async(ranks, speculative)
        self._hybrid(config)
        return CommandLine(
            version=self.version,
            gpu=self.gpu_name,
            model=model,
            served_names=served,
            ranks=ranks,
            max_model_len=length if length and length > 0 else None,
            fits_model_len=length == -1,
            max_num_batched_tokens=budget,
            max_num_seqs=seqs,
            async_scheduling=is_async,
            transfer=transfer,
            transfer_config=config,
            sections=sections.as_dict(),
            speculative=speculative,
            kept=self._kept(),
            environment=self.environment,
            notes=tuple(dict.fromkeys(self.notes)),
            refusals=tuple(dict.fromkeys(self.refusals)),
            start_failures=tuple(dict.fromkeys(self.failures)),
            not_simulated=tuple(dict.fromkeys(self.not_simulated)),
        )

    def _variables(self) -> None:
        """What is not resolved: it matters where a flag decides something."""
        idle: list[str] = []
        for flag, names in self.given.wanting.items():
            listed = ", ".join(name if name.startswith(("$", "`", "<")) else f"${name}" for name in names)
            if flag in TAKEN or flag in NOT_SIMULATED:
                first = next((name for name in names if name.isidentifier()), None)
                hint = f", expected an assignment in front such as {first}=1" if first else ""
                self.refusals.append(f"{flag}: {listed} is not resolved{hint}")
            else:
                idle.append(f"{listed} of {flag}")
        if idle:
            self.notes.append(f"not resolved, without effect here: {', '.join(idle)}")
        hidden = [name for name in self.paste.hidden if name.startswith(_OF_VLLM)]
        if hidden:
            self.notes.append(f"assigned but not exported, so vLLM does not see them: {', '.join(hidden)}")
        dead = [name for name in _DEAD_VARIABLES if name in self.environment]
        if dead:
            self.notes.append(f"vLLM {self.version} does not read {', '.join(dead)} any more")
        for name, value in self.environment.items():
            self.environment[name] = shown(value)
        unread = [n for n in self.environment if n.startswith(_OF_VLLM) and n not in (*_READ, *_DEAD_VARIABLES)]
        unread = [name for name in unread if not name.startswith("LMCACHE_") or name[8:].lower() not in LMCACHE_KEYS]
        if unread:
            self.notes.append(f"without effect, environment: {', '.join(unread)}")

    def _flags_without_a_place(self) -> None:
        """What is ignored is named, by kind; what would change decisions is not simulated."""
        flags, ignored = flags_of(self.version), dict[str, list[str]]()
        for name, value in self.values.items():
            if name in TAKEN or (value is None and name not in self.given.wanting):
                continue
            if name in NOT_SIMULATED:
                inert, what = NOT_SIMULATED[name]
                if value not in inert:
                    self.not_simulated.append(f"{name} {_brief(value)}: {what}")
            else:
                ignored.setdefault(without_effect(flags[name]), []).append(name)
        self.notes += [f"without effect, {kind}: {', '.join(names)}" for kind, names in ignored.items()]
        if "--hf-overrides" in self.values:
            overrides = self.values["--hf-overrides"]
            ropes = ("rope_scaling", "rope_parameters", "rope_theta", "max_position_embeddings")
            if not (isinstance(overrides, dict) and all(key in ropes for key in overrides)):
                self.not_simulated.append("--hf-overrides: another model config, expected a config.json with it")

    def _kept(self) -> tuple[tuple[str, ...], ...]:
        """The words of flags without effect, and of names that clients use."""
        names = [name for name in self.given.words if name not in TAKEN - {"--served-model-name"}]
        return tuple(self.given.words[name] for name in names if name not in NOT_SIMULATED)

    def _ranks(self) -> Ranks:
        def count(flag: str) -> int | None:
            if flag in self.given.wanting:
                return None
            value = self.values.get(flag)
            return value if isinstance(value, int) and value > 0 else 1

        ranks = Ranks(
            count("--tensor-parallel-size"),
            count("--pipeline-parallel-size"),
            count("--prefill-context-parallel-size"),
            count("--decode-context-parallel-size"),
            count("--data-parallel-size"),
            bool(self.values.get("--enable-expert-parallel")),
        )
        for what, number in (
            ("pipeline parallelism", ranks.pipeline),
            ("prefill context parallelism", ranks.prefill_context),
            ("decode context parallelism", ranks.decode_context),
        ):
            if number is not None and number > 1:
                self.not_simulated.append(f"{what} ({number} ranks)")
        if ranks.tensor and ranks.decode_context and ranks.tensor % ranks.decode_context:
            self.failures.append(
                f"--decode-context-parallel-size: expected a divisor of --tensor-parallel-size ({ranks.tensor}),"
                f" found {ranks.decode_context}"
            )
        if self.values.get("--data-parallel-rank") is not None or self.values.get("--data-parallel-external-lb"):
            self.notes.append(
                "one command is one data-parallel rank here: all of them are simulated, behind vLLM's balancer"
            )
        elif (local := self.values.get("--data-parallel-size-local")) is not None and local != ranks.data:
            self.notes.append(f"this command starts {local} of the data-parallel ranks: all of them are simulated")
        self._visible_devices(ranks)
        return ranks

    def _visible_devices(self, ranks: Ranks) -> None:
        devices = self.environment.get("CUDA_VISIBLE_DEVICES") or self.environment.get("HIP_VISIBLE_DEVICES")
        spread = ("--nnodes", "--data-parallel-size-local", "--data-parallel-rank", "--data-parallel-external-lb")
        if devices is None or ranks.gpus is None or any(self.values.get(flag) for flag in spread):
            return
        num_devices = len(devices.split(","))
        if num_devices < ranks.gpus:
            self.failures.append(f"CUDA_VISIBLE_DEVICES={devices} shows {num_devices} GPUs, expected {ranks.gpus}")

    def _model(self) -> tuple[str, tuple[str, ...]]:
        model = self.given.model
        if model is None:
            model = DEFAULT_MODEL
            self.notes.append(f"the line names no model: vLLM serves {DEFAULT_MODEL} then")
        served = self.values.get("--served-model-name") or ()
        return shown(model), tuple(shown(name) for name in served if name is not None)

    def _transfer_config(self) -> dict[str, Any]:
        """The connector that takes effect: ``--kv-offloading-size`` puts another in its place."""
        config = self.values.get("--kv-transfer-config") or {}
        if any(parser_refusals(config)):
            return {}
        size = self.values.get("--kv-offloading-size")
        backend = self.values.get("--kv-offloading-backend") or "native"
        if size is None:
            if "--kv-offloading-backend" in self.values:
                self.notes.append("--kv-offloading-backend turns nothing on without --kv-offloading-size")
        elif size > 0:
            before = config.get("kv_connector")
            config = with_offloading_size(config, size, backend, self.environment)
            if before not in (None, config["kv_connector"]):
                self.notes.append(f"--kv-offloading-size puts {config['kv_connector']} in the place of {before}")
            if backend == "lmcache":
                self.notes.append("the size of --kv-offloading-size is lost: LMCache's server has its own")
        config, notes, problems = with_lmcache_settings(config, self.environment)
        self.notes += notes
        self.not_simulated += problems
        self.failures += start_failures(config, self.version)
        if str(config.get("kv_connector")).startswith("Nixl") and config.get("kv_role") == "kv_both":
            self.notes.append("kv_both is deprecated with NixlConnector, expected kv_producer or kv_consumer")
        if config.get("kv_connector"):
            allocator = (
                f"{self.environment.get('PYTORCH_CUDA_ALLOC_CONF')} {self.environment.get('PYTORCH_ALLOC_CONF')}"
            )
            if "expandable_segments:True" in allocator and not self.values.get("--enable-cumem-allocator"):
                self.failures.append("a KV connector with expandable_segments:True in PYTORCH_CUDA_ALLOC_CONF")
            if self.version == "0.23.0" and self.values.get("--enable-return-routed-experts"):
                self.failures.append("a KV connector with --enable-return-routed-experts")
        elif config:
            self.notes.append("--kv-transfer-config without kv_connector turns nothing on")
        return config

    def _model_fits(self, sections: Sections, ranks: Ranks) -> None:
        """What the model does not allow; a note where its config is only guessed from a name."""
        if sections.spec is None:
            return
        self.failures += heads_unfit(sections.spec, ranks)
        for text in config_unfit(sections.spec, self.values, self.environment, ranks, self.gpu):
            if sections.exact:
                self.failures.append(text)
            else:
                self.notes.append(f"would not start, unless the model's own config says otherwise: {text}")

    def _hybrid(self, config: Mapping[str, Any]) -> None:
        lacking = without_hma(config, self.version)
        if lacking and self.values.get("--disable-hybrid-kv-cache-manager") is False:
            self.failures.append(f"the hybrid KV cache manager is asked for, and {lacking} cannot do with it")

    def _limits(self, ranks: Ranks, max_position: int | None, engine: dict[str, Any]) -> tuple[int | None, int | None]:
        """Token budget and running requests: vLLM 0.23.0 and 0.33.0 engine/arg_utils.py."""
        budget, seqs = self.values.get("--max-num-batched-tokens"), self.values.get("--max-num-seqs")
        wanting = self.given.wanting.keys() & {"--max-num-batched-tokens", "--max-num-seqs"}
        default_budget, default_seqs = default_limits(self.gpu.memory_bytes, self.gpu.name, self.version)
        batched = self.values.get("--all2all-backend") in _BATCHED_DP and ranks.expert and (ranks.data or 1) > 1
        default_budget = _BATCHED_DP_TOKENS if batched else default_budget
        factor = 2 if self.values.get("--performance-mode") == "throughput" else 1
        given_length = self.values.get("--max-model-len")
        length = given_length if given_length and given_length > 0 else max_position
        chunked = self.values.get("--enable-chunked-prefill") is not False
        found_seqs = seqs or default_seqs * factor
        found = budget or default_budget * factor
        if budget is None and length is not None:
            found = min(found if chunked else max(found, length), found_seqs * length)
        elif budget is not None and length is not None and not chunked and budget < length:
            self.failures.append(
                f"--max-num-batched-tokens {budget}: expected at least --max-model-len ({length})"
                " without chunked prefill"
            )
        found_seqs = min(found_seqs, found) if seqs is None else found_seqs
        if found < found_seqs and not wanting:
            self.failures.append(f"--max-num-batched-tokens {found}: expected at least --max-num-seqs ({found_seqs})")
        if factor > 1 or batched:
            engine["max_num_batched_tokens"], engine["max_num_seqs"] = found, found_seqs
        return (
            None if "--max-num-batched-tokens" in wanting else found,
            None if "--max-num-seqs" in wanting else found_seqs,
        )

    def _is_async(self, ranks: Ranks, speculative: Mapping[str, Any] | None) -> bool:
        """VLLM config/vllm.py: unless it is said, on where nothing is incompatible with it."""
        wanted = self.values.get("--async-scheduling")
        method = speculative.get("method") if speculative else None
        # The drafters that the model runner of 0.23.0 can be a step ahead of; 0.33.0 has another runner by default.
        drafts = method in (None, "eagle", "eagle3", "mtp", "dflash", "ngram_gpu") or self.version != "0.23.0"
        pools = self.values.get("--runner") == "pooling"
        if wanted and not drafts:
            self.failures.append(f"--async-scheduling: expected none with speculative decoding by {method}")
        return bool(wanted) if wanted is not None else drafts and not pools


def _brief(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
