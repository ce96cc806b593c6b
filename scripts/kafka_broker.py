"""A real Kafka broker for demos and tests: one KRaft node on loopback, free ports, its data in a given folder."""

import os
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from scripts.jars import cache_folder

ROOT = Path(__file__).resolve().parents[1]
JARS = str(cache_folder())
"""Found before a program moves the user's cache folder."""
READY_WITHIN_SECONDS = 60.0
QUIET: dict[str, str | int | float] = {
    "log_level": 0,
    "socket.timeout.ms": 10_000,
    "metadata.recovery.strategy": "none",
}
_SMALL = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.apache.logging.log4j.level=WARN")
_CLUSTER = "AAAAAAAAAAAAAAAAAAAAAQ"
_PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={folder}/data
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
log.retention.check.interval.ms=500
file.delete.delay.ms=100
"""


class KafkaBroker:
    """One broker that can be killed and started again with the same data and address."""

    def __init__(self, folder: Path) -> None:
        port, controller = _free_ports()
        self.servers = f"127.0.0.1:{port}"
        self.admin = AdminClient({"bootstrap.servers": self.servers, **QUIET})
        self._log = folder / "broker.log"
        self._properties = folder / "server.properties"
        self._properties.write_text(_PROPERTIES.format(port=port, controller=controller, folder=folder))
        self._class_path = class_path("kafka-broker")
        self._process: subprocess.Popen[bytes] | None = None
        self._java("kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(self._properties)).wait(60)

    def start(self) -> None:
        """Start the broker and wait until it answers."""
        self._process = self._java("kafka.Kafka", str(self._properties))
        deadline = time.monotonic() + READY_WITHIN_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            with suppress(KafkaException):
                self.admin.list_topics(timeout=1)
                return
            time.sleep(0.1)
        raise RuntimeError(f"the Kafka broker was not ready; the end of its log:\n{self._log.read_text()[-2000:]}")

    def kill(self) -> None:
        """End the broker with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _java(self, *arguments: str) -> subprocess.Popen[bytes]:
        environment = {name: value for name, value in os.environ.items() if name != "JAVA_TOOL_OPTIONS"}
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [ROOT / "scripts" / "with-java", "java", *_SMALL, "-cp", self._class_path, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
            )


def class_path(*sets: str, separator: str = os.pathsep) -> str:
    """Return the jars of these sets, downloaded if need be; end the program if they cannot be had."""
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "jars.py", *sets, "--separator", separator],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        env=os.environ | {"STATEBED_JARS": JARS},
    )
    if done.returncode:
        raise SystemExit(done.returncode)
    return done.stdout.strip()


def _free_ports() -> tuple[int, int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(2)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        first, second = (each.getsockname()[1] for each in sockets)
    return first, second
