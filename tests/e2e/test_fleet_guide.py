"""The guide on fleets as files, word by word; and what the command answers."""

import json
import re

import pytest
from guides import ROOT, scripts

# A guide is dozens of commands, each a process.
pytestmark = pytest.mark.timeout(300)

GUIDE = "docs/guides/fleet-as-code.md"


def test_the_guide_can_be_followed_word_by_word(shell):
    for command in scripts(GUIDE):
        shell.step(command, {"-f wrong.yaml": 1})
    plans = [done.stdout for command, done in shell.done if "fleet plan" in command]
    assert plans[0] == "No changes: the server is as the file says.\n"
    shown = re.findall(r"```text\n(.*?)```", (ROOT / GUIDE).read_text("utf-8"), re.DOTALL)
    assert plans[1] == shown[0]
    assert plans[2] == plans[0]
    assert plans[3] == shown[1]
    assert "! wrong.yaml:11: pools[0].sharing: never changes" in plans[4]
    assert "! wrong.yaml:12: pools[0].policy.maxPending: " in plans[4]
    assert plans[5] == plans[0]
    assert "- unoffer h100 of root from acme\n" in plans[6]
    assert shell.run("apportion pool offers h100 -o json").stdout.count("acme") == 0


def test_programs_read_the_plan_and_scripts_its_exit_code(shell):
    shell.run("apportion fleet export -f made.yaml")
    assert shell.run("apportion fleet plan -f made.yaml --check").returncode == 0
    shell.run("apportion fleet export -o json > made.json")
    assert shell.run("apportion fleet plan -f made.json --check").returncode == 0
    text = "apiVersion: apportion/v1\ntenants: [{id: acme, name: Acme}]\n"
    write = f"printf '{text}' > new.yaml"
    assert shell.run(write).returncode == 0
    assert shell.run("apportion fleet plan -f new.yaml").returncode == 0
    assert shell.run("apportion fleet plan -f new.yaml --check").returncode == 1
    plan = json.loads(shell.run("apportion fleet plan -f new.yaml -o json").stdout)
    assert [(step["action"], step["kind"], step["name"]) for step in plan["steps"]] == [
        ("create", "tenant", "acme")
    ]
    # Nobody can be asked here, so nothing is done.
    asked = shell.run("apportion fleet apply -f new.yaml < /dev/null")
    assert asked.returncode == 2
    assert "--yes" in asked.stderr
    assert shell.run("apportion tenant show acme").returncode == 1
    applied = shell.run("apportion fleet apply -f - --yes < new.yaml")
    assert applied.stdout.endswith("[1/1] create tenant acme: done\n")
    assert shell.run("apportion fleet apply -f new.yaml").returncode == 0  # nothing to ask about
    bad = shell.run("printf 'apiVersion: apportion/v1\\ncolor: red\\n' | apportion fleet plan -f -")
    assert bad.returncode == 2
    assert bad.stderr == "error: standard input:2: color: no such field\n"
