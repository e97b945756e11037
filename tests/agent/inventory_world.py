"""What of an agent makes its inventory document, on a simulated machine."""

import json
from datetime import UTC, datetime

from apportion.agent.host import read_host
from apportion.agent.inventory import inventory
from apportion.agent.looking import GPUS_FILE
from apportion.agent.nvml import open_driver
from apportion.agent.remembered import Remembered
from apportion.agent.watching import take_in_errors
from apportion.nodes.schemas import Inventory

NOW = datetime(2026, 3, 2, 9, tzinfo=UTC)


class Agent:
    """What of an agent matters here: a driver, a watch, and what it remembers on disk."""

    def __init__(self, machine, state):
        self.machine, self.state = machine, state
        self.context = open_driver()
        self.driver = self.context.__enter__()
        boot_id = read_host(machine.root).boot_id
        self.remembered = Remembered(state / GPUS_FILE, boot_id)
        self.watch = self.driver.watch()

    def document(self, **options):
        take_in_errors(self.watch, self.driver, self.remembered, NOW)
        return checked(
            inventory(self.driver, self.remembered, self.machine.root, node="n1", **options)
        )

    def stop(self):
        self.watch.close()
        self.context.__exit__(None, None, None)

    def restarted(self):
        self.stop()
        return Agent(self.machine, self.state)

    def mig(self, index, *instances):
        """Cut a GPU into (profile, start), each filled; returns the MIG devices."""
        gpu = self.driver.uuid(index)
        if not self.driver.mig_mode(gpu).current:
            self.driver.set_mig_mode(gpu, on=True)
        made = []
        for name, start in instances:
            profile = next(each for each in self.driver.profiles(gpu) if each.name == name)
            place = next(each for each in profile.places if each.start == start)
            gi_id = self.driver.create_instance(gpu, profile.id, place)
            made.append(self.driver.fill_instance(gpu, gi_id).uuid)
        return made


def checked(document):
    """Return a document that a server would take, as it would be sent."""
    Inventory.model_validate_json(json.dumps(document))
    return document


def gpus_of(document):
    return {gpu["index"]: gpu for gpu in document["gpus"]}
