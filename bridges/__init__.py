"""Bridges: processes that look like one more QMQ broker to a delay server."""

from bridges.loopback_broker import LoopbackBroker, LoopbackBrokerConfig, run_broker

__all__ = ["LoopbackBroker", "LoopbackBrokerConfig", "run_broker"]
