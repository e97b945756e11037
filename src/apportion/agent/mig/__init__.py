"""MIG on a node: cuts GPUs as asked, a step at a time, each safe and each on record before it."""

from apportion.agent.mig.journal import Journal
from apportion.agent.mig.seen import Hold
from apportion.agent.mig.unit import MigLayout

__all__ = ["Hold", "Journal", "MigLayout"]
