"""`statebed verify` on a topic: what a sink committed there, compared with the log of its job."""

import shutil
from pathlib import Path

import pytest
from kafka.server import Broker
from unit.sinks.publishing import JOB, commit, kafka_sink, open_run

from statebed.checkpoint import Publisher
from statebed.cli import main
from statebed.sinks import recorded_targets
from statebed.sinks.kafka import KafkaCluster
from statebed.storage import LocalStore


def publish(state: Path, broker: Broker, topic: str, epochs: int) -> int:
    run = open_run(LocalStore(state))
    publisher = Publisher(run, [kafka_sink(broker.servers, topic)])
    publisher.open()
    for _ in range(epochs):
        commit(run)
        publisher.publish_pending()
    return int(run.head.epoch)


def test_p7_verify_compares_the_epoch_of_a_topic(
    broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def verify(state: Path) -> tuple[int, str]:
        code = main(["verify", str(state), JOB])
        return code, capsys.readouterr().out

    state, old, topic = tmp_path / "state", tmp_path / "old", "verified"
    publish(state, broker, topic, 2)
    shutil.copytree(state, old)
    epoch = publish(state, broker, topic, 2)
    code, out = verify(state)
    assert (code, f"up to epoch {epoch}: intact" in out) == (0, True), out
    code, out = verify(old)
    assert (code, "which this job did not publish to it" in out) == (1, True), out
    sink = kafka_sink(broker.servers, topic)
    admin = sink._topic.cluster.admin()
    admin.delete_topics([topic])[topic].result(30)
    code, out = verify(state)
    assert (code, "the topic does not exist: sink out holds nothing" in out) == (1, True), out


def test_p7_verify_does_not_take_a_topic_it_cannot_reach_for_intact(
    broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(tmp_path, broker, "unreached", 1)
    elsewhere = KafkaCluster("127.0.0.1:1", timeout_seconds=2.0)
    monkeypatch.setattr(recorded_targets, "KafkaCluster", lambda *_, **__: elsewhere)
    assert main(["verify", str(tmp_path), JOB]) == 0
    out = capsys.readouterr().out
    assert "not checked: Kafka is unreachable" in out
    assert "everything is intact" not in out
