"""Reads the configuration files of NVIDIA's mig-parted, and says which of their layouts can exist.

    version: v1
    mig-configs:
      NAME:
        - devices: all | [0, 1]
          device-filter: "0x233010DE" | [...]    optional; PCI device id, then vendor
          mig-enabled: true | false
          mig-devices: {PROFILE: COUNT}

A file that breaks this form is refused. An entry that keeps the form and names a layout which no
board it is meant for can have is kept with its `problem`: one bad line must not hide the good ones.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from apportion.errors import InvalidInputError, InvalidStateError
from apportion.geometry import yaml_nodes as nodes
from apportion.geometry.board import Board
from apportion.geometry.catalog import boards
from apportion.geometry.finding import pci_device
from apportion.geometry.layouts import Layout, layout_of
from apportion.geometry.profile_names import parse_profile
from apportion.geometry.yaml_nodes import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class MigPartedEntry:
    """One entry of a configuration: for which GPUs, and what each of them is cut into.

    ``devices`` are GPU indices, None for all; ``device_filter`` PCI device ids such as `0x2330`,
    empty for all; ``cut`` the counts as they stand in the file. ``layouts`` holds, by board key,
    the layout on every known board that the entry is meant for and that can have it. ``problem``
    says why a board that it names, or every board where it names none, cannot have it. Boards that
    are not known here, or whose geometry is not, are neither.
    """

    config: str
    line: int
    devices: tuple[int, ...] | None
    device_filter: tuple[str, ...]
    mig_enabled: bool
    cut: Mapping[str, int]
    layouts: Mapping[str, Layout]
    problem: InvalidInputError | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Raw:
    """An entry as it stands in the file, before any board is asked."""

    config: str
    field: str
    line: int
    devices: tuple[int, ...] | None
    device_filter: tuple[str, ...]
    mig_enabled: bool
    cut: Mapping[str, int]


def read_mig_parted(text: str) -> tuple[MigPartedEntry, ...]:
    """Return the file's entries in their order.

    InvalidInputError, with the line, when the text is not YAML or not of the form above.
    """
    root = nodes.mapping(nodes.compose(text), "file", required={"version", "mig-configs"})
    version = nodes.string(root["version"], "version")
    if version != "v1":
        raise nodes.refused(root["version"], "version", f"unknown version {version}", "v1")
    entries = tuple(_judged(raw) for raw in _raw_entries(root["mig-configs"]))
    if not entries:
        raise nodes.refused(root["mig-configs"], "mig-configs", "there is no configuration in it")
    return entries


def _raw_entries(node: Node) -> Iterator[_Raw]:
    for config, entries in nodes.mapping(node, "mig-configs").items():
        field = f"mig-configs.{config}"
        for index, entry in enumerate(nodes.sequence(entries, field)):
            yield _raw(config, f"{field}[{index}]", entry)


def _raw(config: str, field: str, node: Node) -> _Raw:
    rows = nodes.mapping(
        node,
        field,
        required={"devices", "mig-enabled"},
        optional={"mig-devices", "device-filter"},
    )
    enabled = nodes.boolean(rows["mig-enabled"], f"{field}.mig-enabled")
    if enabled and "mig-devices" not in rows:
        raise nodes.refused(node, field, "mig-devices is missing where MIG is enabled")
    cut = _cut(rows.get("mig-devices"), f"{field}.mig-devices")
    if cut and not enabled:
        raise nodes.refused(node, field, "mig-devices is given where MIG is not enabled")
    return _Raw(
        config=config,
        field=field,
        line=nodes.line(node),
        devices=_devices(rows["devices"], f"{field}.devices"),
        device_filter=_device_filter(rows.get("device-filter"), f"{field}.device-filter"),
        mig_enabled=enabled,
        cut=cut,
    )


def _cut(node: Node | None, field: str) -> Mapping[str, int]:
    if node is None:
        return {}
    return {name: nodes.count(n, field) for name, n in nodes.mapping(node, field).items()}


def _devices(node: Node, field: str) -> tuple[int, ...] | None:
    if not nodes.is_scalar(node):
        return tuple(nodes.count(item, field) for item in nodes.sequence(node, field))
    if nodes.string(node, field) != "all":
        raise nodes.refused(node, field, "not a set of GPUs", "all, or a list of indices")
    return None


def _device_filter(node: Node | None, field: str) -> tuple[str, ...]:
    if node is None:
        return ()
    items = [node] if nodes.is_scalar(node) else nodes.sequence(node, field)
    return tuple(_pci_device(item, field) for item in items)


def _pci_device(node: Node, field: str) -> str:
    try:
        return pci_device(nodes.string(node, field))
    except InvalidInputError as error:
        raise nodes.refused(node, field, error.message, error.allowed) from None


def _judged(raw: _Raw) -> MigPartedEntry:
    """Try an entry on the boards that it is meant for.

    With a filter it must hold on each of them. Without one it is meant for whichever it suits.
    """
    meant = [board for board in boards() if _is_meant(raw, board)]
    layouts: dict[str, Layout] = {}
    errors: list[InvalidInputError] = []
    for board in meant:
        try:
            layouts[board.key] = _layout(raw, board)
        except InvalidInputError as error:
            errors.append(error)
        except InvalidStateError:
            continue  # its geometry is unknown: neither possible nor impossible
    return MigPartedEntry(
        config=raw.config,
        line=raw.line,
        devices=raw.devices,
        device_filter=raw.device_filter,
        mig_enabled=raw.mig_enabled,
        cut=raw.cut,
        layouts=layouts,
        problem=_problem(raw, errors) if errors and (raw.device_filter or not layouts) else None,
    )


def _is_meant(raw: _Raw, board: Board) -> bool:
    return not raw.device_filter or bool(set(raw.device_filter) & set(board.pci_device_ids))


def _layout(raw: _Raw, board: Board) -> Layout:
    if not raw.mig_enabled:
        return Layout(name=raw.config, board=board.key, mig_enabled=False)
    cut = {parse_profile(name): count for name, count in raw.cut.items() if count}
    return layout_of(cut, board, name=raw.config)


def _problem(raw: _Raw, errors: list[InvalidInputError]) -> InvalidInputError:
    """Choose the error that says most: of a board that has the profiles, if there is one.

    A whole list of boards' complaints would hide the one line to be mended.
    """
    telling = [error for error in errors if not error.details.get("absent")]
    error = (telling or errors)[0]
    message = f"line {raw.line}: {error.message}"
    if not telling and not raw.device_filter:
        message = f"line {raw.line}: no known board has {' beside '.join(raw.cut)}"
    return InvalidInputError(
        message,
        field=raw.field,
        given=dict(raw.cut),
        hint=error.hint if telling or raw.device_filter else None,
        details={**error.details, "line": raw.line, "config": raw.config},
    )
