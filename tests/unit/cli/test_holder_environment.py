"""The environment of what a reservation has: the node's file first, else what a server knows."""

from datetime import UTC, datetime, timedelta

import pytest

from apportion.cli.device_environment import environment_of
from apportion.client import Client
from apportion.errors import InvalidStateError
from apportion.reservations.schemas import ReservationView

NOW = datetime.now(UTC)


@pytest.fixture
def nobody():
    """Give a client that asks nobody: what is tested here needs no server."""
    with Client("http://127.0.0.1:9", "t") as client:
        yield client


@pytest.fixture
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("APPORTION_AGENT_STATE", str(tmp_path))
    (tmp_path / "env").mkdir()
    return tmp_path / "env"


def piece(number, cls="gpu", gpu="GPU-a", state="ready"):
    reason = {"code": "device_there", "message": "it is there"}
    return {
        "gpu_id": gpu,
        "node": "n1",
        "member": 0,
        "device": 0,
        "class": cls,
        "units": "{[0,1)}",
        "atom": None,
        "share": "1",
        "start": NOW - timedelta(hours=1),
        "end": NOW + timedelta(hours=1),
        "held_until": None,
        "attributes": {"migUuid": f"MIG-{number}"} if cls == "gpu.mig" else {},
        "allocation": {"id": f"res_a.{number}", "state": state, "since": NOW, "reason": reason},
    }


def view(*pieces):
    return ReservationView.model_validate(
        {
            "id": "res_a",
            "name": None,
            "tenant_id": "t",
            "pool_id": None,
            "candidates": [],
            "state": "active",
            "reason": {"code": "placed"},
            "devices": [],
            "resources": {"vcpu": "0", "memoryGiB": "0"},
            "placement": {},
            "gang": None,
            "start": NOW,
            "end": NOW,
            "end_before": None,
            "open_ended": False,
            "series_id": None,
            "pending_until": NOW,
            "created_at": NOW,
            "updated_at": NOW,
            "charged_tenant_id": None,
            "charges": {},
            "bookings": list(pieces),
        }
    )


def test_without_the_node_s_file_it_is_what_the_server_knows(nobody, state):
    found = environment_of(nobody, view(piece(0), piece(1, "gpu.mig")))
    assert found == {
        "NVIDIA_VISIBLE_DEVICES": "GPU-a,MIG-1",
        "CUDA_VISIBLE_DEVICES": "GPU-a,MIG-1",
        "APPORTION_ALLOCATION": "res_a.0,res_a.1",
        "APPORTION_RESERVATION": "res_a",
    }


def test_the_node_s_file_counts_with_all_that_it_has(nobody, state):
    text = (
        "CUDA_VISIBLE_DEVICES=GPU-a\nCUDA_MPS_PIPE_DIRECTORY=/p=1\nAPPORTION_ALLOCATION=res_a.0\n"
    )
    (state / "res_a.0.env").write_text(text)
    found = environment_of(nobody, view(piece(0, "gpu.slot")))
    assert found["CUDA_MPS_PIPE_DIRECTORY"] == "/p=1"
    assert found["APPORTION_RESERVATION"] == "res_a"


def test_pieces_of_two_mps_daemons_are_refused_to_one_process(nobody, state):
    for number in range(2):
        text = f"CUDA_VISIBLE_DEVICES=GPU-{number}\nCUDA_MPS_PIPE_DIRECTORY=/p{number}\n"
        (state / f"res_a.{number}.env").write_text(text)
    with pytest.raises(InvalidStateError, match="CUDA_MPS_PIPE_DIRECTORY"):
        environment_of(nobody, view(piece(0, "gpu.slot"), piece(1, "gpu.slot")))


def test_what_the_node_has_not_handed_out_is_missing(nobody, state):
    with pytest.raises(InvalidStateError, match=r"device-missing: .*device_there"):
        environment_of(nobody, view(piece(0, state="asked")))
