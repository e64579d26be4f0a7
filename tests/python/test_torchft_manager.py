"""wherry.torchft with torchft's Manager: replicas are killed, restarted and healed."""

import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta

import halting
import launch
import pytest
import torch
import torch.distributed as dist
import wherry.torchft
from torch_states import differences


def last_step():
    """The step at which all replicas end. The restarted replica sets it, a few steps ahead."""
    return launch.wait_for("last step") if launch.is_said("last step") else sys.maxsize


def replica_body(lighthouse, asynchronous, how, life):
    """A replica of one rank. Rank 1 kills itself in its first life. Returns the weights."""
    import wherry.torchft
    from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

    limit = timedelta(seconds=20)
    rank = launch.rank()
    # Each replica starts with other weights. The first step makes them equal.
    torch.manual_seed(rank)
    model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
    adam = torch.optim.Adam(model.parameters(), 1e-2)

    def state():
        return {"model": model.state_dict(), "optimizer": adam.state_dict()}

    def load(found):
        model.load_state_dict(found["model"])
        adam.load_state_dict(found["optimizer"])

    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    transport = wherry.torchft.Transport(limit) if how == "plain" else None
    if how == "default":
        wherry.torchft.use_by_default(timeout=limit)
        wherry.torchft.use_by_default(timeout=limit)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=limit), min_replica_size=2, load_state_dict=load, state_dict=state, replica_id=f"replica_{rank}",
        store_addr="localhost", store_port=store.port, rank=0, world_size=1, lighthouse_addr=lighthouse, timeout=limit,
        quorum_timeout=limit, connect_timeout=limit, use_async_quorum=asynchronous, checkpoint_transport=transport,
    )  # fmt: skip
    if how == "attach":
        transport = wherry.torchft.attach(manager)
        assert wherry.torchft.attach(manager) is transport
    transport = transport or manager._checkpoint_transport
    assert type(transport) is wherry.torchft.Transport
    wrapped = DistributedDataParallel(manager, model)
    optimizer = Optimizer(manager, adam)
    while manager.current_step() < last_step():
        if rank == 1 and life == 1 and manager.current_step() == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        torch.manual_seed(100 * manager.current_step() + rank)
        optimizer.zero_grad()
        wrapped(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        if (
            rank == 1
            and life == 2
            and manager.current_step() > 3
            and not launch.is_said("last step")
        ):
            launch.say("last step", manager.current_step() + 4)
        time.sleep(0.02)
    lane = transport.last_stats.lane if transport.last_stats else None
    weights = {name: value.tolist() for name, value in model.state_dict().items()}
    moments = [value["exp_avg"].tolist() for value in adam.state_dict()["state"].values()]
    launch.say(f"done {rank}")
    for other in range(3):  # The lighthouse counts live replicas.
        launch.wait_for(f"done {other}")
    manager.shutdown(wait=False)
    return [weights, moments, lane]


@pytest.mark.parametrize(
    "asynchronous, how",
    [(True, "plain"), (True, "attach"), (False, "attach"), (True, "default")],
)
def test_a_replica_that_is_killed_is_healed(asynchronous, how):
    coordination = pytest.importorskip(
        "torchft.coordination", reason="torchft is not installed: pip install torchft"
    )
    lighthouse = coordination.LighthouseServer(
        bind="0.0.0.0:0", min_replicas=2, join_timeout_ms=100
    )
    try:
        with launch.job(3, {"TORCHFT_LIGHTHOUSE": lighthouse.address()}, store=False) as job:
            for rank in range(3):
                job.start(rank, replica_body, lighthouse.address(), asynchronous, how, 1)
            until = time.monotonic() + 60
            while job.ranks[1].status is None and time.monotonic() < until:
                time.sleep(0.05)
            assert job.ranks[1].status == -signal.SIGKILL, job.ranks[1].output
            job.start(1, replica_body, lighthouse.address(), asynchronous, how, 2)
            results = job.finish(120)
    finally:
        lighthouse.shutdown()
    assert not differences(results[0][:2], results[1][:2]) and not differences(
        results[0][:2], results[2][:2]
    )
    assert results[1][2] in ("cma", "ring")


EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "examples/torchft_recover.py"


@pytest.mark.parametrize("options", [[], ["--sync"]])
def test_the_example_has_the_losses_of_an_undisturbed_run(options):
    pytest.importorskip("torchft", reason="torchft is not installed: pip install torchft")
    done = subprocess.run(
        [sys.executable, EXAMPLE, *options], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "replica 1 was healed in step" in done.stdout and "\nOK: " in done.stdout


# ---- what attach() does, without a lighthouse ----


class Stand:
    """What attach() uses of a Manager. The quorum runs in another thread."""

    def __init__(self, state, asynchronous=True):
        self._use_async_quorum = asynchronous
        self._is_state_dict_read_allowed = True
        self._user_state_dicts = {"default": lambda: state}
        self._checkpoint_transport = self
        self._timeout = timedelta(seconds=10)
        self.closed = False
        self.step = 0
        self.read_in = []

    def shutdown(self, wait):
        self.closed = True

    def state_dict(self):
        return {"step": self.step}

    def _manager_state_dict(self):
        self.read_in.append(threading.current_thread().name)
        return {"user": self._user_state_dicts["default"](), "torchft": self.state_dict()}

    def start_quorum(self, work):
        found = []
        thread = threading.Thread(target=lambda: found.append(work()), name="quorum")
        thread.start()
        thread.join()
        return found[0]


def state_of(seed):
    torch.manual_seed(seed)
    return {"large": torch.randn(1 << 19), "small": torch.randn(10), "count": seed}


@pytest.mark.parametrize("asynchronous", [True, False])
def test_the_state_is_read_in_the_training_thread(asynchronous):
    """Two managers: the state of one is healed from that of the other, in place."""
    states = [state_of(1), state_of(2)]
    managers = [Stand(state, asynchronous) for state in states]
    large, small = states[1]["large"], states[1]["small"]
    source, receiver = (wherry.torchft.attach(one) for one in managers)
    assert all(one.closed for one in managers)

    def send():
        managers[0].step = 7  # The step changes after the state was read.
        source.send_checkpoint([1], 7, managers[0]._manager_state_dict(), 10)

    with source, receiver:
        managers[0].start_quorum(send)
        received = managers[1].start_quorum(
            lambda: receiver.recv_checkpoint(0, source.metadata(), 7, 10)
        )
        assert received["torchft"] == {"step": 7} and received["user"]["count"] == 1
        assert received["user"]["large"] is large and torch.equal(large, states[0]["large"])
        # A forward pass may change small buffers while an asynchronous quorum heals.
        assert (received["user"]["small"] is small) != asynchronous
        assert torch.equal(received["user"]["small"], states[0]["small"])
        source.disallow_checkpoint()
    expected = "MainThread" if asynchronous else "quorum"
    assert [one.read_in for one in managers] == [[expected], [expected]]


def sharded_model(seed):
    """A model under FSDP2, and its input. Its weights are larger than buffers."""
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.Linear(1024, 512, bias=False))
    for layer in (*model, model):
        fully_shard(layer)
    return model, torch.randn(4, 512)


def sharded_body():
    """The healed replica runs forward and backward passes while the heal writes."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    (one, _), (two, data) = sharded_model(1), sharded_model(2)
    healed = threading.Event()
    managers = [Stand(one.state_dict()), Stand(None)]
    managers[1]._user_state_dicts = {"default": two.state_dict}
    source, receiver = (wherry.torchft.attach(manager) for manager in managers)
    found = []

    def heal():
        found.append(receiver.recv_checkpoint(0, source.metadata(), 7, 20))
        healed.set()

    with source, receiver:
        source.send_checkpoint([1], 7, managers[0]._manager_state_dict(), 20)
        managers[1].start_quorum(lambda: threading.Thread(target=heal).start())
        while not healed.wait(0):
            two(data).sum().backward()
        two.load_state_dict(found[0]["user"])
        source.disallow_checkpoint()
    assert managers[1].read_in == ["MainThread"]
    sent, received, now = (
        {name: value.to_local() for name, value in state.items()}
        for state in (one.state_dict(), found[0]["user"], two.state_dict())
    )
    return [
        [name for name in sent if received[name].data_ptr() == now[name].data_ptr()],
        [name for name in sent if torch.equal(sent[name], now[name])],
        torch.equal(one(data), two(data)),
    ]


def test_a_sharded_model_is_healed_while_it_runs():
    with launch.job(1, store=False) as job:
        (found,) = job.run(sharded_body, timeout=100)
    in_place, equal, same_output = found
    assert in_place == ["0.weight", "1.weight"]  # The bias is not in place, because it is small.
    assert equal == ["0.weight", "0.bias", "1.weight"] and same_output


def test_a_state_that_differs_goes_to_new_memory():
    state = state_of(1)
    with wherry.torchft.Transport(10) as source:
        manager = Stand({"large": torch.zeros(7), "small": None})
        with wherry.torchft.attach(manager) as receiver:
            source.send_checkpoint([1], 1, {"user": state, "torchft": {"step": 1}}, 10)
            large = receiver.recv_checkpoint(0, source.metadata(), 1, 10)["user"]["large"]
            assert torch.equal(large, state["large"])


def test_new_memory_is_said_once(caplog):
    """The source has a large tensor that the target lacks."""
    caplog.set_level("INFO", "wherry")
    with wherry.torchft.Transport(10) as source:
        with wherry.torchft.attach(Stand({"large": torch.zeros(1 << 19)})) as receiver:
            for step in (1, 2):
                state = {**state_of(step), "moments": torch.ones(1 << 19)}
                source.send_checkpoint([1], step, {"user": state, "torchft": {"step": 0}}, 10)
                found = receiver.recv_checkpoint(0, source.metadata(), step, 10)
                assert torch.equal(found["user"]["moments"], state["moments"])
    # The new tensors are the moments, and a buffer of 40 bytes.
    (line,) = [one for one in caplog.messages if "arrived in new memory" in one]
    assert line.startswith("2 tensors (2.1 MB) arrived in new memory: "), line


SERVE_SLOWLY = """
import torch
import wherry.torchft

with wherry.torchft.Transport(60) as source:
    state = {"user": {"large": torch.ones(1 << 23)}, "torchft": {"step": 1}}
    source.send_checkpoint([1], 1, state, 60)
    print(source.metadata(), flush=True)
    sys.stdin.read()
"""


def test_a_half_written_state_is_not_served():
    target = {"user": {"large": torch.zeros(1 << 23)}, "torchft": {"step": 0}}

    def fail(progress):
        while not target["user"]["large"][0]:
            time.sleep(0.001)
        raise KeyboardInterrupt

    with halting.source(SERVE_SLOWLY) as source:
        metadata = source.stdout.readline().strip()
        manager = Stand(target["user"])
        slow = {"lanes": "stream", "threads": 1, "verify": True, "progress": fail}
        with wherry.torchft.attach(manager, **slow) as receiver:
            with pytest.raises(KeyboardInterrupt):
                receiver.recv_checkpoint(0, metadata, 1, 60)
            with pytest.raises(wherry.errors.InvalidArgument, match="half written"):
                receiver.send_checkpoint([1], 1, target, 60)
            receiver._progress = None
            source.send_signal(signal.SIGCONT)
            receiver.recv_checkpoint(0, metadata, 1, 60)
            receiver.send_checkpoint([1], 1, target, 60)


def test_memory_is_kept_for_the_next_heal():
    with wherry.torchft.Transport(10) as source, wherry.torchft.Transport(10) as receiver:
        found = []
        for step in (1, 2):
            source.send_checkpoint([1], step, state_of(step), 10)
            found.append(receiver.recv_checkpoint(0, source.metadata(), step, 10))
            assert torch.equal(found[-1]["large"], state_of(step)["large"])
        assert found[0]["large"] is found[1]["large"] and found[1]["count"] == 2
        # This state does not fit into the target.
        source.send_checkpoint([1], 3, {"large": torch.ones(3)}, 10)
        assert receiver.recv_checkpoint(0, source.metadata(), 3, 10)["large"].tolist() == [1, 1, 1]


def test_a_manager_that_is_not_known():
    with pytest.raises(wherry.errors.Unsupported, match="no Manager._checkpoint_transport"):
        wherry.torchft.attach(object())


def titan_body(lighthouse):
    """torchtitan's manager, which makes a torchft.Manager without a transport."""
    import wherry.torchft

    wherry.torchft.use_by_default()
    from torchtitan.experiments.torchft.manager import TorchFTManager

    rank = launch.rank()
    os.environ.update(TORCHFT_LIGHTHOUSE=lighthouse, WORLD_SIZE="1", RANK="0")
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(store.port))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    titan = TorchFTManager(TorchFTManager.Config(enable=True, replica_id=rank, min_replica_size=2))
    weights = {"w": torch.full((1 << 19,), float(rank))}
    titan.manager.register_state_dict_fn("weights", weights.update, lambda: weights)
    transport = titan.manager._checkpoint_transport
    assert type(transport) is wherry.torchft.Transport
    titan.manager.start_quorum()  # In step 0, all replicas get the state of the first one.
    titan.manager.allreduce(torch.ones(1)).wait()  # This waits for the quorum and the heal.
    assert titan.manager.should_commit()
    launch.say(f"done {rank}")
    for other in range(2):
        launch.wait_for(f"done {other}")
    titan.manager.shutdown(wait=False)
    return [weights["w"].unique().tolist(), transport.last_stats is not None]


def test_torchtitan_heals_through_wherry():
    pytest.importorskip("tyro", reason="tyro is not installed: pip install tyro")
    pytest.importorskip(
        "torchtitan", reason="torchtitan is not installed: pip install --no-deps torchtitan==0.3.0"
    )
    coordination = pytest.importorskip("torchft.coordination", reason="torchft is not installed")
    lighthouse = coordination.LighthouseServer(
        bind="0.0.0.0:0", min_replicas=2, join_timeout_ms=100
    )
    try:
        with launch.job(2, store=False) as job:
            found = job.run(titan_body, lighthouse.address(), timeout=100)
    finally:
        lighthouse.shutdown()
    assert found[0][0] == found[1][0] and found[0][1] != found[1][1]
