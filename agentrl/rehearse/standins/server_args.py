"""SGLang's ServerArgs: the fields that slime reads, and those that launch scripts set most often.

slime ignores flags that its parsers do not know, so a flag without a field here is ignored, as in slime.
"""

from __future__ import annotations

import dataclasses
from typing import Any

_LONG_NAMES = {
    "tp_size": "--tensor-parallel-size",
    "dp_size": "--data-parallel-size",
    "pp_size": "--pipeline-parallel-size",
    "ep_size": "--expert-parallel-size",
    "moe_dp_size": "--moe-data-parallel-size",
}
_TYPES = {"int": int, "float": float, "str": str}


@dataclasses.dataclass
class ServerArgs:
    """The arguments of an engine. Most have no effect on agentrl's engine."""

    model_path: str = ""
    served_model_name: str | None = None
    trust_remote_code: bool = False
    dtype: str = "auto"
    load_format: str = "auto"
    context_length: int | None = None
    random_seed: int | None = None
    log_level: str = "info"
    api_key: str | None = None
    host: str = "127.0.0.1"
    port: int = 30000
    nccl_port: int | None = None
    dist_init_addr: str | None = None
    nnodes: int = 1
    node_rank: int = 0
    base_gpu_id: int = 0
    gpu_id_step: int = 1
    tp_size: int = 1
    dp_size: int = 1
    pp_size: int = 1
    ep_size: int = 1
    moe_dp_size: int = 1
    moe_dense_tp_size: int | None = None
    enable_dp_attention: bool = False
    enable_dp_lm_head: bool = False
    moe_a2a_backend: str = "none"
    moe_runner_backend: str = "auto"
    deepep_mode: str = "auto"
    ep_num_redundant_experts: int = 0
    mem_fraction_static: float | None = None
    max_running_requests: int | None = None
    max_prefill_tokens: int | None = None
    chunked_prefill_size: int | None = None
    page_size: int | None = None
    kv_cache_dtype: str = "auto"
    attention_backend: str | None = None
    cuda_graph_max_bs: int | None = None
    cuda_graph_backend_prefill: str | None = None
    disable_cuda_graph: bool = False
    disable_radix_cache: bool = False
    disable_overlap_schedule: bool = False
    enable_memory_saver: bool = False
    enable_draft_weights_cpu_backup: bool = False
    enable_metrics: bool = False
    enable_return_routed_experts: bool = False
    enable_deterministic_inference: bool = False
    enable_prefill_only_deterministic_inference: bool = False
    skip_server_warmup: bool = False
    watchdog_timeout: float = 300.0
    chat_template: str | None = None
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    speculative_algorithm: str | None = None
    speculative_num_steps: int | None = None
    speculative_eagle_topk: int | None = None
    speculative_num_draft_tokens: int | None = None
    disaggregation_mode: str = "null"

    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @staticmethod
    def add_cli_args(parser: Any) -> None:
        """Add a flag for each field to an argparse parser, with SGLang's names."""
        for field in dataclasses.fields(ServerArgs):
            flag = "--" + field.name.replace("_", "-")
            if field.type == "bool":
                parser.add_argument(flag, action="store_true", default=field.default)
                continue
            flags = [_LONG_NAMES[field.name], flag] if field.name in _LONG_NAMES else [flag]
            kind = _TYPES[str(field.type).partition(" ")[0]]
            parser.add_argument(*flags, dest=field.name, type=kind, default=field.default)
