"""What GPUs are cut into: what other rooms and the API use of this room."""

from apportion.partitions import freezing
from apportion.partitions.applying import get_spec, take_report, update_node
from apportion.partitions.gate import Gate

__all__ = ["Gate", "freezing", "get_spec", "take_report", "update_node"]
