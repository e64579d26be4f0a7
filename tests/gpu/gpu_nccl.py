"""A NCCL group of two ranks on one GPU, which claim to be on different hosts: NCCL refuses two
ranks on one GPU otherwise."""

import os

import launch
import torch
import torch.distributed as dist
from gpu_states import DEVICE, ON_GPU, assert_same, expect_lane, mixed_state, one_way, zeroed


def start():
    os.environ.update(NCCL_HOSTID=f"host{os.environ['RANK']}", NCCL_SOCKET_IFNAME="lo")
    if ON_GPU:
        torch.cuda.set_device(DEVICE)
    dist.init_process_group("nccl" if ON_GPU else "gloo")


def meets_by_the_store():
    """Nothing is sent over the NCCL group, so not even its communicator is created."""
    start()
    state = mixed_state(1)
    received, stats = one_way(state, zeroed(state))
    if dist.get_rank():
        assert_same(state, received)
        expect_lane(stats, "cuda_ipc")
    part()


def part():
    """Neither rank leaves before the other is done."""
    launch.say(f"done{dist.get_rank()}")
    launch.wait_for(f"done{1 - dist.get_rank()}")
    dist.destroy_process_group()
