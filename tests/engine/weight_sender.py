"""A trainer that sends weights over a process group, as a program:

    weight_sender.py URL FOLDER [flattened | silent | lost | tied]

The group is made by slime's own init_process_group where SLIME_SRC has slime, else by the same calls of torch. The
weights of FOLDER are sent in requests of three tensors.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from datetime import timedelta

import requests
import torch
from safetensors.torch import load_file

GROUP = "slime-pp_0"


def init_process_group(**options):
    if source := os.environ.get("SLIME_SRC"):
        sys.path.insert(0, source)
        from slime.utils.distributed_utils import init_process_group
    else:
        init_process_group = _torchs
    return init_process_group(**options)


def _torchs(backend, init_method, world_size, rank, group_name, timeout):
    from torch.distributed import distributed_c10d as c10d

    store, rank, world_size = next(c10d.rendezvous(init_method, rank, world_size, timeout=timeout))
    group, _ = c10d._new_process_group_helper(
        world_size,
        rank,
        [],
        c10d.Backend(backend),
        c10d.PrefixStore(group_name, store),
        group_name=group_name,
        timeout=timeout,
    )
    c10d._world.pg_group_ranks[group] = {member: member for member in range(world_size)}
    return group


def post(url, path, **body):
    return requests.post(f"{url}/{path}", json=body, timeout=200)


def main(url, folder, manner="plain"):
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    address = {"master_address": "127.0.0.1", "master_port": port, "rank_offset": 1, "world_size": 2}
    joining = threading.Thread(
        target=post, args=(url, "init_weights_update_group"), kwargs={**address, "group_name": GROUP, "backend": "gloo"}
    )
    joining.start()
    group = init_process_group(
        backend="gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        world_size=2,
        rank=0,
        group_name=GROUP,
        timeout=timedelta(seconds=60),
    )
    joining.join()
    weights = list(load_file(f"{folder}/model.safetensors").items())
    for first in range(0, len(weights), 3):
        send(url, group, weights[first : first + 3], manner)
    assert post(url, "destroy_weights_update_group", group_name=GROUP).status_code == 200


def send(url, group, weights, manner):
    body = {
        "names": [name for name, _ in weights],
        "dtypes": [str(tensor.dtype).removeprefix("torch.") for _, tensor in weights],
        "shapes": [tensor.shape for _, tensor in weights],
        "group_name": GROUP,
        "weight_version": "1",
        "load_format": "flattened_bucket" if manner == "flattened" else None,
    }
    replies = []
    asking = threading.Thread(target=lambda: replies.append(post(url, "update_weights_from_distributed", **body)))
    asking.start()
    if manner in ("silent", "lost"):
        if manner == "lost":
            time.sleep(1)  # the server waits for the broadcast by now
            os._exit(9)
        asking.join()
        print(replies[0].status_code, replies[0].text)
        os._exit(0)
    tensors = [tensor for _, tensor in weights]
    if manner == "flattened":
        tensors = [torch.cat([tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in tensors])]
    for handle in [torch.distributed.broadcast(tensor, 0, group=group, async_op=True) for tensor in tensors]:
        handle.wait()
    asking.join()
    assert replies[0].status_code == 200, replies[0].text


if __name__ == "__main__":
    main(*sys.argv[1:])
