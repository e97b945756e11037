"""How the host looks to its Kubernetes cluster, as the kubelet's own credentials may see it."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from apportion.agent.hosting.comparing import UnknownError, shown
from apportion.agent.units import Mismatch, Wanted

KUBECONFIG_VARIABLE: Final = "APPORTION_KUBECONFIG"
_KUBECONFIG: Final = "etc/kubernetes/kubelet.conf"
_LONGEST_SECONDS: Final = 10
_ABSENT: Final = "not there"


def look_at_cluster(root: Path, node: str, wanted: Wanted) -> Iterator[Mismatch]:
    """Compare the labels and taints that are wanted; others are nobody's concern here."""
    seen = _node(root, node)
    labels: dict[str, str] = seen.get("metadata", {}).get("labels") or {}
    for key, value in sorted(wanted.get("labels", {}).items()):
        found = labels.get(key)
        if found != value:
            told = _ABSENT if found is None else shown(found)
            yield Mismatch(field=f"labels[{key}]"[:200], wanted=shown(value), found=told)
    taints = {
        (each["key"], each["effect"]): each.get("value") or ""
        for each in seen.get("spec", {}).get("taints") or ()
    }
    for each in wanted.get("taints", ()):
        found = taints.get((each["key"], each["effect"]))
        if found != each["value"]:
            field = f"taints[{each['key']}:{each['effect']}]"
            told = _ABSENT if found is None else shown(found)
            yield Mismatch(field=field[:200], wanted=shown(each["value"]), found=told)


def _node(root: Path, name: str) -> Mapping[str, Any]:
    program = shutil.which("kubectl")
    if program is None:
        raise UnknownError("kubectl is not on the path")
    config = Path(os.environ.get(KUBECONFIG_VARIABLE) or root / _KUBECONFIG)
    if not config.exists():
        raise UnknownError(f"there is no {config}, with which a kubelet asks its cluster")
    command = [program, f"--kubeconfig={config}", "--request-timeout=5s", "get", "node"]
    try:
        done = subprocess.run(  # noqa: S603 - the name is that of a node, and no option
            [*command, "--output=json", "--", name],
            capture_output=True,
            text=True,
            timeout=_LONGEST_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnknownError(f"kubectl: {error}") from error
    if done.returncode != 0:
        raise UnknownError(f"kubectl: {shown(done.stderr)}")
    try:
        return dict(json.loads(done.stdout))
    except ValueError as error:
        raise UnknownError(f"kubectl: {error}") from error
