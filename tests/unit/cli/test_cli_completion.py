"""Completion as a real shell asks for it, and what it costs."""

import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from apportion.cli import NOUNS

BIN = Path(sys.executable).parent
SECONDS_MAX = 0.15
TRIES = 7


def shell(name: str, script: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("APPORTION_")}
    environment |= {"PATH": f"{BIN}:{environment['PATH']}", "PYTHONDONTWRITEBYTECODE": ""}
    return subprocess.run(
        [name, "-c", script], capture_output=True, text=True, check=False, env=environment
    )


def complete(line: str) -> tuple[list[str], str]:
    """Press Tab at the end of the line, as bash does it."""
    done = shell(
        "bash",
        f"""
        eval "$(apportion completion bash)"
        COMP_LINE={line!r} COMP_POINT={len(line)} COMP_TYPE=9
        _python_argcomplete apportion
        printf '%s\\n' "${{COMPREPLY[@]}}"
        """,
    )
    assert done.returncode == 0
    return [word.strip() for word in done.stdout.splitlines() if word.strip()], done.stderr


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("apportion ", set(NOUNS)),
        ("apportion po", {"pool", "policy"}),
        ("apportion webhook re", {"resend"}),
        ("apportion pool of", {"offer", "offers"}),
        ("apportion pool create x --sharing ", {"exclusive", "mig", "timeslice", "mps"}),
        ("apportion pool create x --provider-a", {"--provider-account"}),
        ("apportion policy check --role v", {"viewer"}),
        ("apportion quota set p gpu.", {"gpu.mig", "gpu.slot", "gpu.share"}),
        ("apportion caller show --tena", {"--tenant"}),
        ("apportion completion ", {"bash", "zsh", "fish"}),
        ("apportion pool show ", set()),  # a name: no guess is better than a wrong one
        ("apportion nonsense ", set()),
        ("apportion pool create x --sharing 'unclosed ", set()),
    ],
)
def test_bash_is_offered_nouns_verbs_flags_and_choices(line, offered):
    words, said = complete(line)
    assert (set(words), len(words), said) == (offered, len(offered), "")


def test_files_are_offered_for_a_file_and_nowhere_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "n1.json").write_text("{}")
    assert complete("apportion node import pool ")[0] == ["n1.json"]
    assert complete("apportion policy create x -f n1")[0] == ["n1.json"]
    assert complete("apportion node show ")[0] == []


def test_a_fault_shows_nothing_in_the_middle_of_what_is_typed():
    environment = {**os.environ, "_ARGCOMPLETE": "rubbish", "COMP_LINE": "apportion pool "}
    done = subprocess.run(
        [BIN / "apportion"], capture_output=True, text=True, check=False, env=environment
    )
    assert (done.stdout, done.stderr) == ("", "")


def test_an_answer_comes_before_a_person_notices():
    line = "apportion pool create x --sharing "
    environment = {
        **{k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"},
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_STDOUT_FILENAME": os.devnull,
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
    }
    taken = []
    for _ in range(TRIES):
        before = processor_seconds()
        subprocess.run([BIN / "apportion"], check=True, capture_output=True, env=environment)
        taken.append(processor_seconds() - before)
    assert min(taken) < SECONDS_MAX


def processor_seconds() -> float:
    """Give what ended children took of the processor, which no busy neighbour makes longer."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell_is_one_that_it_reads(name):
    script = subprocess.run(
        [BIN / "apportion", "completion", name], capture_output=True, text=True, check=True
    ).stdout
    assert "apportion" in script
    if shutil.which(name) is None:
        pytest.skip(f"no {name} here")
    checked = subprocess.run(
        [name, "-n"], input=script, capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.parametrize(
    ("name", "script"),
    [
        ("fish", "apportion completion fish | source; complete -C 'apportion pool of'"),
        (
            "zsh",
            """
            autoload -Uz compinit && compinit -u -D
            eval "$(apportion completion zsh)"
            [[ ${_comps[apportion]} == _python_argcomplete ]] || exit 3
            _describe() { print -l -- ${(P)2} }
            BUFFER='apportion pool of' CURSOR=17 words=(apportion pool of)
            _python_argcomplete
            """,
        ),
    ],
)
def test_other_shells_are_offered_the_same(name, script, tmp_path):
    if shutil.which(name) is None:
        pytest.skip(f"no {name} here")
    done = shell(name, f"export HOME={tmp_path}\n{script}")
    assert (done.returncode, done.stderr) == (0, "")
    words = [re.split(r"[:\t]", line)[0].strip() for line in done.stdout.splitlines()]
    assert words == ["offer", "offers"]
