"""What GPUs are cut into: what other rooms and the API use of this room."""

from apportion.partitions.applying import get_spec, take_report, update_node
from apportion.partitions.asking import cancel_layout, set_layout
from apportion.partitions.gate import Gate
from apportion.partitions.planning import plan_layout
from apportion.partitions.reading import list_layouts

__all__ = [
    "Gate",
    "cancel_layout",
    "get_spec",
    "list_layouts",
    "plan_layout",
    "set_layout",
    "take_report",
    "update_node",
]
