"""MIG on a node: cuts GPUs as asked, a step at a time, each safe and each on record before it."""

from apportion.agent.mig.journal import Journal
from apportion.agent.mig.seen import Compute, Driver, DriverError, Gpu, Hold, Instance
from apportion.agent.mig.unit import MigLayout

__all__ = [
    "Compute",
    "Driver",
    "DriverError",
    "Gpu",
    "Hold",
    "Instance",
    "Journal",
    "MigLayout",
]
