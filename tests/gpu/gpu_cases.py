"""Cases with two ranks on one GPU. Each case is a function that both ranks run. Rank 0 is the
source unless the case says otherwise."""

import gc
import threading
import time

import gpu_states as gpu
import torch
import torch.distributed as dist
import wherry
from gpu_states import (
    DEVICE,
    MIB,
    ON_GPU,
    assert_same,
    expect_lane,
    mixed_state,
    one_way,
    plain_state,
    transport,
    zeroed,
)
from torch import nn


def rank():
    return dist.get_rank()


# ---- memory: the first case, so that the memory that a first transfer allocates counts ----


class Watch:
    """The peak of the GPU's memory in use, minus the memory in use before."""

    def __enter__(self):
        torch.cuda.synchronize()
        self.before = self.lowest = torch.cuda.mem_get_info()[0]
        self.end = threading.Event()
        self.thread = threading.Thread(target=self.look)
        self.thread.start()
        return self

    def look(self):
        while not self.end.wait(0.0005):
            self.lowest = min(self.lowest, torch.cuda.mem_get_info()[0])

    def __exit__(self, *_):
        self.end.set()
        self.thread.join()
        self.grown = (self.before - self.lowest) / MIB


def case_memory_growth():
    """At most 128 MiB of GPU memory beyond source and destination, for both ranks together."""
    if not ON_GPU:
        return
    state = {f"w{i}": torch.full((64 * MIB // 4,), float(i), device=DEVICE) for i in range(16)}
    target = zeroed(state)
    for lanes in (None, "^cuda_ipc"):
        dist.barrier()
        with Watch() as watch:
            received, stats = one_way(state, target, lanes=lanes)
            dist.barrier()
        if rank():
            assert_same(state["w7"], received["w7"])
            print(f"{stats.lane}: {watch.grown:.0f} MiB more")
            assert watch.grown <= 128, f"{stats.lane}: {watch.grown} MiB"


# ---- contents and devices ----


def case_plain_arrives_on_the_host():
    received, stats = one_way(plain_state(1))
    if rank():
        assert_same(plain_state(1), received)
        assert gpu.devices_of(received) == {"cpu"}
        assert received["tied"][0].data_ptr() == received["tied"][1].data_ptr()
        assert isinstance(received["parameter"], nn.Parameter)
        print("lane:", stats.lane, stats.reasons)


def case_new_on_the_device():
    """New tensors come from torch's caching allocator, and their memory goes back to it."""
    gc.collect()
    before = torch.cuda.memory_allocated() if ON_GPU else 0
    state = plain_state(2, mib=64)
    received, stats = one_way(state, new_device=DEVICE)
    if rank() == 0:
        return
    assert_same(state, received)
    assert gpu.devices_of(received) == {DEVICE.type}
    expect_lane(stats, "cuda_ipc")
    del state
    gc.collect()
    if ON_GPU:
        held = torch.cuda.memory_allocated() - before
        assert 64 * MIB <= held <= 67 * MIB, held
        del received
        gc.collect()
        assert torch.cuda.memory_allocated() == before


def case_mixed_in_place():
    """In a state on a GPU, a tensor on the host is received too."""
    state = mixed_state(3)
    target = zeroed(state)
    received, stats = one_way(state, target)
    if rank():
        assert received["model"]["weight"] is target["model"]["weight"]
        assert received["optimizer"]["step"] is target["optimizer"]["step"]
        assert target["optimizer"]["step"].item() == 3.0
        assert_same(state, received)
        expect_lane(stats, "cuda_ipc")


def case_device_to_host_in_place():
    state = plain_state(4)
    target = zeroed(plain_state(4))
    target["big"] = target["big"].cpu()
    target["small"] = [one.cpu() for one in target["small"]]
    received, _ = one_way(state, target)
    if rank():
        assert received["big"] is target["big"] and target["big"].device.type == "cpu"
        assert_same(state, received)


def case_host_to_device_in_place():
    torch.manual_seed(5)
    state = {"a": torch.randn(3 * MIB), "b": [torch.randn(7, 9).t(), torch.arange(11)]}
    target = gpu.on_device(zeroed(state))
    received, _ = one_way(state, target)
    if rank():
        assert received["a"] is target["a"] and gpu.devices_of(received) == {DEVICE.type}
        assert_same(state, received)


def case_views():
    """Views, ties, strides, conj and neg; bytes that no view covers stay as they are."""
    torch.manual_seed(6)
    base = torch.randn(64, 640, device=DEVICE)
    numbers = torch.randn(30, 40, dtype=torch.complex64, device=DEVICE)
    state = {
        "part": base[3:9, 5:50],
        "turned": base[10:40].t(),
        "steps": base[50:, ::3],
        "expanded": torch.randn(1, 6, device=DEVICE).expand(5, 6),
        "conj": numbers.conj(),
        "neg": numbers.conj().imag,
    }
    received, _ = one_way(state)
    if rank():
        assert_same(state, received)
        assert [one.stride() for one in received.values()] == [
            one.stride() for one in state.values()
        ]
    room = torch.full((70, 700), -1.0, device=DEVICE)
    target = {
        "part": room[:6, 10:55],
        "turned": room[10:40, :640].t(),
        "steps": room[50:64, 1:643:3],
    }
    received, _ = one_way({name: state[name] for name in target}, target)
    if rank():
        for name, one in target.items():
            assert_same(state[name], one)
        written = sum(one.numel() for one in target.values())
        assert int((room == -1.0).sum()) == room.numel() - written


def case_many_small_in_place():
    state = {f"layers.{i}.bias": torch.full((1024,), float(i), device=DEVICE) for i in range(5000)}
    target = {name: torch.zeros(1024, device=DEVICE) for name in state}
    received, stats = one_way(state, target)
    if rank():
        assert torch.equal(torch.stack(list(target.values())), torch.stack(list(state.values())))
        expect_lane(stats, "cuda_ipc")


def case_a_model_with_adam():
    """A trained model heals a new one."""
    torch.manual_seed(rank())
    model = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters())
    torch.manual_seed(7)
    data = torch.randn(2, 5, 64).to(DEVICE)
    if rank() == 0:
        for _ in range(3):
            model(data).square().mean().backward()
            optimizer.step()
    received, _ = one_way(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
    )
    if rank():
        assert (
            received["optimizer"]["state"][0]["exp_avg"].device.type == DEVICE.type
        )  # The tensors are new, on `device`.
        assert received["optimizer"]["state"][0]["step"].device.type == "cpu"
        optimizer.load_state_dict(received["optimizer"])
    outcome = torch.stack(
        [model(data).sum().detach(), optimizer.state_dict()["state"][3]["exp_avg_sq"].sum()]
    ).cpu()
    others = [torch.zeros(2), torch.zeros(2)]
    dist.all_gather(others, outcome)
    assert torch.equal(*others), others


def case_ring():
    """Each rank sends to the other, in turn and at once."""
    for step in range(2):
        received, _ = one_way({"from": 0, **plain_state(step)})
        back, _ = one_way({"from": 1, **plain_state(10 + step)}, source=1)
        assert_same(
            *({"from": 1, **plain_state(10 + step)}, back)
            if rank() == 0
            else ({"from": 0, **plain_state(step)}, received)
        )
    mine, theirs = plain_state(20 + rank()), plain_state(21 - rank())
    with transport() as out, transport(new_device=DEVICE) as into:
        sending = threading.Thread(target=out.send_checkpoint, args=([1 - rank()], mine))
        sending.start()
        assert_same(theirs, into.recv_checkpoint(1 - rank()))
        sending.join()


# ---- DTensor and ShardedTensor ----


def case_dtensor():
    from torch.distributed.tensor import DeviceMesh, DTensor, Replicate, Shard

    mesh = DeviceMesh(DEVICE.type, torch.arange(2), mesh_dim_names=("dp",), _init_backend=False)
    torch.manual_seed(8)
    whole = torch.randn(13, 7).to(DEVICE)

    def placed(full, placement):
        local = full.chunk(2, 0)[rank()].contiguous() if isinstance(placement, Shard) else full
        return DTensor.from_local(
            local, mesh, [placement], run_check=False, shape=full.shape, stride=full.stride()
        )

    state = {"copies": placed(whole, Replicate()), "shard": placed(whole, Shard(0))}
    received, _ = one_way(state)
    if rank():
        assert received["shard"]._spec == state["shard"]._spec
        assert_same(whole.chunk(2, 0)[0], received["shard"]._local_tensor)
    target = {"copies": placed(torch.zeros_like(whole), Replicate())}
    received, stats = one_way({"copies": state["copies"]}, target)
    if rank():
        assert received["copies"] is target["copies"]
        assert_same(whole, target["copies"]._local_tensor)
        expect_lane(stats, "cuda_ipc")


def case_sharded_tensor():
    from torch.distributed._shard.metadata import ShardMetadata
    from torch.distributed._shard.sharded_tensor import Shard, ShardedTensor

    def made(fill, place):
        text = f"rank:{place}/{DEVICE}"
        boxes = [
            ShardMetadata([2 * place, 0], [2, 4], text),
            ShardMetadata([4 + place, 0], [1, 4], text),
        ]
        torch.manual_seed(fill)
        shards = [Shard(torch.randn(box.shard_sizes).to(DEVICE), box) for box in boxes]
        return ShardedTensor._init_from_local_shards(shards, 6, 4)

    state = {"w": made(30 + rank(), rank())}
    target = {"w": made(40, rank())}
    torch.manual_seed(30)
    sent = [torch.randn(2, 4).to(DEVICE), torch.randn(1, 4).to(DEVICE)]
    received, stats = one_way(state, new_device=DEVICE)
    if rank():
        shards = received["w"].local_shards()
        assert_same(sent, [shard.tensor for shard in shards])
        assert {str(shard.metadata.placement) for shard in shards} == {f"rank:1/{DEVICE}"}
        for shard in shards:
            shard.tensor.add_(1.0)
        expect_lane(stats, "cuda_ipc")
    # The state goes back, in place.
    back, _ = one_way(received, target, source=1)
    if rank() == 0:
        assert back["w"] is target["w"]
        assert_same(
            [one + 1.0 for one in sent], [shard.tensor for shard in target["w"].local_shards()]
        )


# ---- streams ----


def slowly(seconds=0.3):
    """Keeps the current stream busy."""
    if ON_GPU:
        torch.cuda._sleep(int(seconds * 1.5e9))


def on_stream(side, body):
    if side and ON_GPU:
        with torch.cuda.stream(torch.cuda.Stream()):
            return body()
    return body()


def case_a_slow_kernel_before_the_send():
    for side in (False, True):

        def body():
            tensor = torch.zeros(3 * MIB, device=DEVICE)
            if ON_GPU:
                torch.cuda.current_stream().synchronize()
            if rank() == 0:
                slowly()
                tensor.fill_(7.0)
            received, _ = one_way({"x": tensor})
            if rank():
                assert bool((received["x"] == 7.0).all()), (
                    f"read before it was written; side stream: {side}"
                )

        on_stream(side, body)


def case_a_slow_kernel_before_the_receive():
    """Work that the receiver has queued on its target is done first. An operation right after the
    receive sees the received bytes."""
    for side in (False, True):

        def body():
            state, target = (
                {"x": torch.full((3 * MIB,), 5.0, device=DEVICE)},
                {"x": torch.zeros(3 * MIB, device=DEVICE)},
            )
            if ON_GPU:
                torch.cuda.current_stream().synchronize()
            if rank():
                slowly()
                target["x"].fill_(3.0)
            received, _ = one_way(state, target)
            if rank():
                doubled = received["x"] * 2
                other = torch.empty_like(doubled)
                on_stream(True, lambda: other.copy_(received["x"]))
                assert bool((doubled == 10.0).all()), f"side stream: {side}"
                if ON_GPU:
                    torch.cuda.synchronize()
                assert bool((other == 5.0).all())

        on_stream(side, body)


def case_memory_that_is_freed_while_kernels_run():
    """New tensors get memory that was just freed, while kernels that use it are still queued."""
    for _ in range(3):
        if rank() and ON_GPU:
            old = torch.empty(64 * MIB, dtype=torch.uint8, device=DEVICE)
            slowly(0.2)
            old.fill_(9)
            del old
        state = (
            {"x": torch.full((64 * MIB,), 4, dtype=torch.uint8, device=DEVICE)}
            if rank() == 0
            else None
        )
        received, _ = one_way(state, new_device=DEVICE)
        if rank():
            assert bool((received["x"] == 4).all())


# ---- lanes ----


def case_every_lane():
    state = {**plain_state(9, mib=40), **mixed_state(9)}
    for lanes in (None, "^cuda_ipc", "ring", "stream", "group"):
        target = zeroed(state)
        received, stats = one_way(state, target, lanes=lanes, verify=True)
        if rank():
            assert_same(state, received)
            print(
                f"lanes={lanes}: {stats.lane}, {stats.bytes_moved / max(stats.data_seconds, 1e-9) / 1e9:.1f} GB/s"
            )


def case_keep_open():
    """The same memory in several transfers, and other memory at the same addresses."""
    for turn in range(6):
        state = {"w": [torch.full((9 * MIB,), float(turn), device=DEVICE) for _ in range(4)]}
        received, stats = one_way(state, zeroed(state), keep_open=turn != 4)
        if rank():
            assert_same(state, received)
            print(
                f"turn {turn}: {stats.total_seconds * 1e3:.2f} ms, data {stats.data_seconds * 1e3:.2f} ms"
            )
        if turn == 2 and ON_GPU:
            del state, received
            torch.cuda.empty_cache()


# ---- errors ----


def case_mismatches():
    """A mismatch is found before any byte is written, and the next transfer works."""
    good = {"w": torch.full((40,), 2.0, device=DEVICE), "v": torch.ones(3, device=DEVICE)}
    bad = {
        "shapes differ": {
            "w": torch.full((41,), 7.0, device=DEVICE),
            "v": torch.ones(3, device=DEVICE),
        },
        "dtypes differ": {
            "w": torch.full((40,), 7.0, device=DEVICE, dtype=torch.float16),
            "v": torch.ones(3, device=DEVICE),
        },
    }
    for text, target in bad.items():
        try:
            one_way(good, target)
            raise AssertionError(f"not refused: {text}")
        except wherry.errors.Mismatch as error:
            assert rank() == 1 and error.path == "w" and text in str(error), error
            assert bool((target["w"] == 7.0).all()) and bool((target["v"] == 1.0).all())
        except wherry.errors.Aborted as error:
            assert rank() == 0 and text in str(error), error
    target = zeroed(good)
    one_way(good, target)
    assert rank() == 0 or bool((target["w"] == 2.0).all())


def case_a_timeout_leaves_the_device_usable():
    if rank():
        with transport(timeout=0.3) as way:
            try:
                way.recv_checkpoint(0)
                raise AssertionError("nobody sent")
            except wherry.errors.Timeout:
                pass
    assert float(torch.ones(3, device=DEVICE).sum()) == 3.0
    dist.barrier()


# ---- other interfaces ----


def case_torchft():
    from wherry.torchft import Transport

    state = {"model": plain_state(11), "step": 4}
    store = dist.distributed_c10d._get_default_store()
    turn = f"torchft/{time.monotonic_ns() if rank() == 0 else 0}"
    everywhere = [turn, None]
    dist.broadcast_object_list(everywhere, 0)
    turn = everywhere[0]
    if rank() == 0:
        served = Transport(30)
        slowly()
        state["model"]["big"].fill_(1.5)
        served.send_checkpoint([1], 4, state, 30)
        store.set(turn, served.metadata())
        store.wait([turn + "/done"])
        served.disallow_checkpoint()
        served.shutdown()
        return
    state["model"]["big"].fill_(1.5)
    for target, device in ((None, None), (None, DEVICE), (zeroed(state), None)):
        taking = Transport(
            30,
            state_dict=None if target is None else (lambda target=target: target),
            device=DEVICE,
            new_device=device,
        )
        received = taking.recv_checkpoint(0, store.get(turn).decode(), 4, 30)
        assert_same(state, received)
        assert gpu.devices_of(received) == (
            {"cpu"} if target is None and device is None else {DEVICE.type}
        )
        taking.shutdown()
    store.set(turn + "/done", "1")


def case_a_group_of_wherry():
    """wherry.send and wherry.recv with tensors on the device."""
    import pathlib

    place = [f"/tmp/wherry-gpu-{time.monotonic_ns()}", None]
    dist.broadcast_object_list(place, 0)
    state = plain_state(12)
    with wherry.Group.join(f"unix://{place[0]}?rank={rank()}&size=2", timeout=30) as group:
        if rank() == 0:
            wherry.send(group, 1, state, timeout=30)
            wherry.send(group, 1, state, timeout=30)
        else:
            assert_same(state, wherry.recv(group, 0, timeout=30))
            into = zeroed(state)
            assert wherry.recv(group, 0, into, timeout=30)["big"] is into["big"]
            assert_same(state, into)
        group.barrier(1, timeout=30)
    pathlib.Path(place[0]).unlink(missing_ok=True)


CASES = {name[5:]: body for name, body in list(globals().items()) if name.startswith("case_")}
