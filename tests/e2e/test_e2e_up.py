"""``apportion up`` as its user meets it: real processes, real signals, the real demo."""

import re
import signal
import stat
import subprocess
import time
import urllib.request
from pathlib import Path

from server_process import COMMAND, environment, serving

GONE_SECONDS = 15


def group(process: subprocess.Popen[str]) -> set[int]:
    """Give the living processes of the server's session, its database's among them."""
    members = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(") ")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if fields[0] != "Z" and int(fields[3]) == process.pid:
                members.add(int(entry.name))
    return members


def postmasters(state: Path) -> set[int]:
    pid_file = next(state.rglob("postmaster.pid"), None)
    return set() if pid_file is None else {int(pid_file.read_text().split()[0])}


def gone(pids: set[int]) -> bool:
    deadline = time.monotonic() + GONE_SECONDS
    while time.monotonic() < deadline:
        if not any(Path(f"/proc/{pid}").exists() for pid in pids):
            return True
        time.sleep(0.02)
    return False


def get(url: str) -> int:
    with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - our own server
        return answer.status


def test_an_empty_server_answers_keeps_its_token_private_and_stops_on_ctrl_c(open_path):
    with serving(open_path, "--no-demo") as (process, url):
        assert get(f"{url}/healthz") == 200
        assert get(f"{url}/readyz") == 200
        token = open_path / "root.token"
        assert stat.S_IMODE(token.stat().st_mode) == 0o600
        everyone = group(process) | postmasters(open_path)
        assert len(everyone) > 1
        process.send_signal(signal.SIGINT)
        assert process.wait(GONE_SECONDS) == 0
        assert gone(everyone)


def test_sigkill_of_the_server_leaves_no_process_and_the_state_starts_again(open_path):
    with serving(open_path, "--no-demo") as (process, _):
        everyone = group(process) | postmasters(open_path)
        token = (open_path / "root.token").read_text()
        process.kill()
        process.wait()
        assert gone(everyone)
    with serving(open_path, "--no-demo") as (process, url):
        assert get(f"{url}/readyz") == 200
        assert (open_path / "root.token").read_text() == token


def test_the_main_job_places_the_trace_and_a_second_run_finds_it_kept(open_path):
    command = [*COMMAND, "--state", str(open_path), "--once"]
    first = subprocess.run(command, capture_output=True, text=True, check=True, env=environment())
    assert re.search(r"^all +1214 +6220 ", first.stdout, re.MULTILINE)
    assert "8,152 tasks of a public production trace decided" in first.stdout
    assert "placing tasks: 8,152 of 8,152" in first.stderr
    assert "dgx-01 GPU 7 NVIDIA H100 80GB HBM3" in first.stdout
    second = subprocess.run(command, capture_output=True, text=True, check=True, env=environment())
    assert "Kept from an earlier run" in second.stdout
    assert table_of(second.stdout) == table_of(first.stdout)


def test_a_main_job_that_was_killed_is_taken_up_where_it_stopped(open_path):
    command = [*COMMAND, "--state", str(open_path), "--once"]
    cut = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    )
    assert cut.stderr is not None
    for line in cut.stderr:
        if "placing tasks" in line:
            break
    cut.kill()
    cut.communicate()
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment())
    assert re.search(r"^all +1214 +6220 ", done.stdout, re.MULTILINE)
    live = int(re.search(r"^all .* (\d+)$", done.stdout, re.MULTILINE)[1])
    waiting = sum(int(n) for n in re.findall(r"^[a-z_]+ +(\d+)$", done.stdout, re.MULTILINE))
    assert live + waiting == 8152 + 10


def test_a_taken_port_is_said_by_name_and_exits_1(open_path):
    with serving(open_path / "a", "--no-demo") as (_, url):
        port = url.rpartition(":")[2]
        refused = subprocess.run(
            [*COMMAND[:-1], port, "--state", str(open_path / "b"), "--no-demo"],
            capture_output=True,
            text=True,
            check=False,
            env=environment(),
        )
    assert refused.returncode == 1
    assert f"port: cannot listen there: Address already in use (given: {port})" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_server_listens_on_ipv6_too(open_path):
    with serving(open_path, "--no-demo", "--host", "::1") as (_, url):
        assert url.startswith("http://[::1]:")
        assert get(f"{url}/readyz") == 200


def test_a_host_that_is_none_is_bad_input(open_path):
    refused = subprocess.run(
        [*COMMAND, "--state", str(open_path), "--host", "no.such.host.invalid", "--no-demo"],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
    )
    assert refused.returncode == 2
    assert "host: is no address of this machine" in refused.stderr


def test_a_second_server_on_the_same_state_is_refused_by_name(open_path):
    with serving(open_path, "--no-demo"):
        refused = subprocess.run(
            [*COMMAND, "--state", str(open_path), "--no-demo"],
            capture_output=True,
            text=True,
            check=False,
            env=environment(),
        )
    assert refused.returncode == 1
    assert "in use" in refused.stderr
    assert "Traceback" not in refused.stderr


def table_of(report: str) -> list[str]:
    return [line for line in report.splitlines() if re.match(r"(openb-|h100-|all)", line)]
