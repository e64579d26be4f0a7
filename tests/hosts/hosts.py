"""Hosts made of namespaces, with their own networks.

    with hosts.World(4) as world:
        with launch.job(8, hosts=world.hosts * 2, env=world.environment()) as job:
            job.run(body)      # rank r runs on host r % 4

Each host has its own namespaces for network, pids, mounts, host name and System V objects, and its
own boot id: everything that distinguishes two machines. All hosts share the files. The networks are
bridges in another network namespace, so that the machine's own network is untouched. Their
addresses, 10.77.NETWORK.HOST, exist only inside.

A link can have a rate (tbf), and the first host's link a delay and a loss (wire.py). A link that is
cut drops everything but keeps its carrier, like a dead switch: nobody is told.

Processes hold the namespaces. They end when the pipe to this process is closed, and the namespaces
end with them. So nothing is left if a test is killed. `lacking()` says why a machine cannot have
such hosts."""

from __future__ import annotations

import functools
import os
import pathlib
import shutil
import subprocess
import sys
import uuid

HERE = pathlib.Path(__file__).resolve().parent
SUBNET = "10.77"
PORT = 29500

#: The queue of the qdisc that limits the rate. It is about as long as that of a real link.
BURST_BYTES = 256 << 10
QUEUE_BYTES = 3 << 20


@functools.cache
def lacking(*, wire: bool = False) -> str:
    """Why this machine cannot have such hosts; "" if it can."""
    for tool in ("ip", "tc", "unshare", "nsenter"):
        if shutil.which(tool) is None:
            return f"there is no command '{tool}': scripts/install-deps hosts installs it"
    if os.geteuid() != 0:
        return "making namespaces needs root"
    trial = "mount -t tmpfs none /mnt && ip link add name v0 type veth peer name v1 && ip link add name b0 type bridge"
    trial += " && tc qdisc add dev v0 root tbf rate 1mbit burst 10k limit 10k"
    if wire:
        trial += " && ip tuntap add dev t0 mode tap"
    done = subprocess.run(
        ["unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--mount-proc", "sh", "-c", trial],
        capture_output=True, text=True,
    )  # fmt: skip
    return (
        ""
        if done.returncode == 0
        else f"namespaces with veth, bridge, tbf and TAP: {done.stderr.strip() or 'refused'}"
    )


class Keeper:
    """A process that holds namespaces until it is closed or this process ends."""

    def __init__(
        self, namespaces: list[str], script: str = "", shared: dict[str, Keeper] | None = None
    ):
        """
        :param namespaces: new namespaces, such as "net".
        :param shared: namespaces to take from other keepers.
        """
        enter = [f"--{kind}={keeper.namespace(kind)}" for kind, keeper in (shared or {}).items()]
        new = [f"--{kind}" for kind in namespaces]
        if "mount" in namespaces:
            new += ["--fork", "--kill-child", "--mount-proc"]
        self.process = subprocess.Popen(
            [*(["nsenter", "--no-fork", *enter] if enter else []), "unshare", *new]
            + ["sh", "-e", "-c", f"{script}\necho ready\nexec cat >/dev/null"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n", f"no namespaces: {script}"

    @property
    def pid(self) -> int:
        return self.process.pid

    def namespace(self, kind: str) -> str:
        """The path of a namespace; for pids, that of the children."""
        return f"/proc/{self.pid}/ns/{'pid_for_children' if kind == 'pid' else kind}"

    def ip(self, *lines: str) -> None:
        """Runs ip(8) commands in the network namespace."""
        subprocess.run(
            ["nsenter", "-t", str(self.pid), "-n", "ip", "-batch", "-"],
            input="\n".join(lines),
            check=True,
            text=True,
        )

    def run(self, *command: str) -> str:
        """Runs a command in the network namespace. Returns its output."""
        enter = ["nsenter", "-t", str(self.pid), "-n"]
        return subprocess.run([*enter, *command], check=True, capture_output=True, text=True).stdout

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


class Host(Keeper):
    """One host. `pid` is a process in its namespaces; launch.py needs it."""

    def __init__(self, number: int, boot: str, names: str, shared: dict[str, Keeper] | None = None):
        """
        :param boot: the host's boot id.
        :param names: the host's /etc/hosts.
        """
        self.number = number
        self.name = f"host{number}"
        super().__init__(
            [kind for kind in ("net", "mount", "uts", "ipc", "pid") if kind not in (shared or {})],
            f"hostname {self.name}\n"
            "mount -t sysfs none /sys\n"  # UCX looks for interfaces there
            "mount -t tmpfs none /mnt\n"  # files of this host only
            "mount -t tmpfs none /dev/shm\n"  # shared memory of this host only
            f"echo {boot} >/mnt/boot\n"
            f"printf '{names}' >/mnt/names\n"
            "mount --bind /mnt/boot /proc/sys/kernel/random/boot_id\n"
            "mount --bind /mnt/names /etc/hosts\n"
            "ip link set lo up",
            shared,
        )

    def address(self, network: int = 0) -> str:
        return f"{SUBNET}.{network}.{self.number + 1}"

    def sent(self, network: int = 0) -> int:
        """The bytes sent over an interface."""
        text = pathlib.Path(f"/proc/{self.pid}/net/dev").read_text()
        line = next(one for one in text.splitlines() if one.strip().startswith(f"eth{network}:"))
        return int(line.split(":")[1].split()[8])


class World:
    """Hosts and the networks between them."""

    def __init__(
        self,
        count: int,
        *,
        networks: int = 1,
        rate_mbit: int = 0,
        delay_ms: float = 0,
        loss: float = 0,
        one_machine: bool = False,
        shared: str = "",
        debian: bool = False,
    ):
        """
        :param delay_ms: of the first host's link on network 0, in each direction.
        :param loss: the share of frames that this link drops, in each direction.
        :param one_machine: the hosts share the boot id, like containers of one machine.
        :param shared: a namespace that they share too: "net" or "pid".
        :param debian: a host's own name resolves to 127.0.1.1 on that host, as on Debian.
        """
        self.hosts: list[Host] = []
        self.wire: subprocess.Popen[str] | None = None
        try:
            self.switch = Keeper(["net"])
            lines = [f"{SUBNET}.0.{i + 1} host{i}\n" for i in range(count)]
            boot = str(uuid.uuid4())
            for i in range(count):
                own = [f"127.0.1.1 host{i}\n"] if debian else lines[i : i + 1]
                book = "".join(["127.0.0.1 localhost\n", *lines[:i], *own, *lines[i + 1 :]])
                others: dict[str, Keeper] = {shared: self.hosts[0]} if shared and i else {}
                self.hosts.append(Host(i, boot if one_machine else str(uuid.uuid4()), book, others))
            for network in range(networks):
                self.switch.ip(f"link add name br{network} type bridge", f"link set br{network} up")
                for host in self.hosts[: 1 if shared == "net" else count]:
                    slow = (delay_ms or loss) and network == 0 and host.number == 0
                    self._connect(host, network, (delay_ms, loss) if slow else None)
                    if rate_mbit:
                        self._limit(host, network, rate_mbit)
        except BaseException:
            self.close()
            raise

    def _connect(self, host: Host, network: int, slow: tuple[float, float] | None) -> None:
        port = f"p{network}h{host.number}"
        if slow:
            self.wire = subprocess.Popen(
                [sys.executable, str(HERE / "wire.py"), str(host.pid), f"eth{network}", str(self.switch.pid), port, *map(str, slow)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            assert self.wire.stdout is not None
            assert self.wire.stdout.readline() == "ready\n"
        else:
            self.switch.ip(
                f"link add name {port} type veth peer name eth{network} netns {host.pid}"
            )
        self.switch.ip(f"link set {port} master br{network}", f"link set {port} up")
        host.ip(
            f"addr add {host.address(network)}/24 dev eth{network}", f"link set eth{network} up"
        )

    def _limit(self, host: Host, network: int, mbit: int) -> None:
        """Limits the rate of packets that leave the host. To limit what arrives, limit the other
        host."""
        rule = f"rate {mbit}mbit burst {BURST_BYTES} limit {QUEUE_BYTES}"
        host.run("tc", "qdisc", "add", "dev", f"eth{network}", "root", "tbf", *rule.split())

    def cut(self, number: int, network: int = 0) -> None:
        """Drops all packets to and from a host. Nobody is told."""
        self.switch.ip(f"link set p{network}h{number} nomaster")

    def mend(self, number: int, network: int = 0) -> None:
        self.switch.ip(f"link set p{network}h{number} master br{network}")

    def power_off(self, number: int, networks: int = 1) -> None:
        """Ends a host and all its processes, without any packet to the others."""
        for network in range(networks):
            self.cut(number, network)
        self.hosts[number].close()

    def environment(self, **more: object) -> dict[str, object]:
        """The variables with which ranks meet on the first host, in torch and in Wherry, and a
        secret."""
        return {
            "MASTER_ADDR": self.hosts[0].address(),
            "MASTER_PORT": PORT,
            "WHERRY_SECRET": "a secret of the hosts",
            **more,
        }

    def close(self) -> None:
        for keeper in [*self.hosts, getattr(self, "switch", None)]:
            if keeper is not None:
                keeper.close()
        if self.wire:
            self.wire.kill()
            self.wire.communicate()

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
