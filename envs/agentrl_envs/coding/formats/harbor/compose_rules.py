"""The keys of a docker-compose.yaml that are applied, ignored and refused. docs/services.md has the same table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentrl import ConfigError
from agentrl_envs.coding.formats.harbor import compose_values as values

_IGNORED = frozenset(
    (
        *("annotations", "attach", "blkio_config", "cap_drop", "container_name", "cpu_count", "cpu_percent"),
        *("cpu_period", "cpu_quota", "cpu_rt_period", "cpu_rt_runtime", "cpu_shares", "cpuset", "develop"),
        *("dns", "dns_opt", "dns_search", "domainname", "expose", "label_file", "labels", "logging"),
        *("mac_address", "mem_reservation", "mem_swappiness", "memswap_limit", "oom_kill_disable"),
        *("oom_score_adj", "platform", "ports", "pull_policy", "read_only", "stop_grace_period", "stop_signal"),
        "storage_opt",
    )
)
"""Keys that are ignored, as they have no effect here: no port is published, and all containers of a sandbox are
removed together."""
ESCAPES = "it is a way out of the sandbox"
_REFUSED = {
    **dict.fromkeys(("privileged", "devices", "device_cgroup_rules", "cgroup", "cgroup_parent"), ESCAPES),
    **dict.fromkeys(("pid", "uts", "userns_mode", "use_api_socket", "credential_spec", "runtime"), ESCAPES),
    **dict.fromkeys(("gpus", "models", "provider"), "a sandbox has no such hardware or service"),
    **dict.fromkeys(("volumes_from", "external_links", "extends"), "write out what it takes from there"),
    **dict.fromkeys(("secrets", "configs"), "mount the file by a line of volumes"),
    **dict.fromkeys(("post_start", "pre_stop"), "make it a part of the service's command"),
    "sysctls": "it sets the kernel, which is shared",
    "group_add": "name the group in user, as user: name:group",
    "isolation": "it is for Windows",
}
_HONOURED = frozenset(
    (
        *("build", "cap_add", "command", "cpus", "depends_on", "deploy", "entrypoint", "env_file"),
        *("environment", "extra_hosts", "healthcheck", "hostname", "image", "init", "ipc", "links"),
        *("mem_limit", "network_mode", "networks", "pids_limit", "profiles", "restart", "scale"),
        *("security_opt", "shm_size", "stdin_open", "tmpfs", "tty", "ulimits", "user", "volumes"),
        "working_dir",
    )
)
TOP = frozenset(["services", "networks", "volumes", "version", "name"])
BUILD = frozenset(["context", "dockerfile", "dockerfile_inline", "args", "target"])
BUILD_IGNORED = frozenset(
    (
        *("cache_from", "cache_to", "labels", "no_cache", "platforms", "provenance", "pull", "sbom"),
        *("shm_size", "tags"),
    )
)


class CannotRunError(ConfigError):
    """The task may be right, but cannot be run here. The message gives the reason and the remedy."""


def check_service(service: Mapping[str, Any]) -> None:
    """Raises CannotRunError for the first setting that is refused."""
    _check_keys(service)
    for option in map(values.text, values.items(service.get("security_opt"))):
        if not option.startswith(("no-new-privileges", "label")):
            raise CannotRunError(f"security_opt {option} is refused: {ESCAPES}")
    if values.text(service.get("ipc") or "private") not in ("private", "shareable"):
        raise CannotRunError(f"ipc {service['ipc']} is refused: {ESCAPES}")
    deploy = service.get("deploy") or {}
    if ((deploy.get("resources") or {}).get("reservations") or {}).get("devices"):
        raise CannotRunError("deploy.resources.reservations.devices is refused: a sandbox has no such hardware")
    if any(values.text(count) != "1" for count in (service.get("scale", 1), deploy.get("replicas", 1))):
        raise CannotRunError("more than one replica is refused: write a service for each")


def _check_keys(service: Mapping[str, Any]) -> None:
    for key, value in service.items():
        key = str(key)
        if key.startswith("x-") or key in _IGNORED or value in (None, False, [], {}, ""):
            continue
        if key in _REFUSED:
            raise CannotRunError(f"{key} is refused: {_REFUSED[key]}")
        if key not in _HONOURED:
            raise CannotRunError(f"{key} is refused: it is not known here")
