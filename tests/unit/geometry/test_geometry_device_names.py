"""Device names: product, family, and the one board that is meant or the reason why none is."""

import pytest

from apportion.errors import InvalidInputError
from apportion.geometry import board_by_pci, boards, find_board, parse_device_name


@pytest.mark.parametrize(
    ("text", "family"),
    [
        ("NVIDIA A100-SXM4-40GB", "A100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("H100-SXM5-80GB", "H100"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("h100", "H100"),
        ("Tesla V100-SXM2-32GB", "V100"),
        ("Tesla V100S-PCIE-32GB", "V100S"),
        ("Tesla P100-PCIE-16GB", "P100"),
        ("Tesla T4", "T4"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA GH200 144G HBM3e", "GH200"),
        ("NVIDIA B300 SXM6 AC", "B300"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000"),
        ("nvidia_rtx_pro_6000_blackwell_server_edition", "RTX PRO 6000"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("Quadro RTX 6000", "Quadro RTX 6000"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA TITAN X (Pascal)", "TITAN X (Pascal)"),
        ("nvidia_titan_x_(pascal)", "TITAN X (Pascal)"),
        ("G2", "G2"),
        ("G3", "G3"),
        ("V100M16", "V100M16"),
        ("NVIDIA", "NVIDIA"),
    ],
)
def test_every_name_has_a_family_known_to_mig_or_not(text, family):
    assert parse_device_name(text).family == family


def test_a_parenthesis_stays_part_of_the_product():
    assert parse_device_name("NVIDIA TITAN X (Pascal)").product == "NVIDIA TITAN X (Pascal)"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (
            "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb-SHARED",
            ("NVIDIA-A100-SXM4-40GB", "SXM4", 40, "1g.5gb", True),
        ),
        ("Tesla-T4-SHARED", ("Tesla-T4", None, None, "None", True)),
        ("A100-SXM4-40GB", ("A100-SXM4-40GB", "SXM4", 40, "None", False)),
        ("NVIDIA-H100-80GB-HBM3", ("NVIDIA-H100-80GB-HBM3", None, 80, "None", False)),
        ("a100_3g.20gb", ("a100", None, None, "3g.20gb", False)),
        (
            "NVIDIA A100 80GB PCIe MIG 1g.10gb",
            ("NVIDIA A100 80GB PCIe", "PCIe", 80, "1g.10gb", False),
        ),
        ("A100-PCIE-40GB", ("A100-PCIE-40GB", "PCIe", 40, "None", False)),
        (
            "RTX-PRO-6000-MIG-1g.24gb-me-SHARED",
            ("RTX-PRO-6000", None, None, "1g.24gb-me", True),
        ),
    ],
)
def test_a_label_is_taken_apart(text, parts):
    name = parse_device_name(text)
    assert (name.product, name.form, name.memory_gb, str(name.mig), name.shared) == parts


def test_the_host_memory_in_a_grace_hopper_name_is_not_the_gpus():
    assert parse_device_name("NVIDIA GH200 480GB").memory_gb is None
    assert parse_device_name("NVIDIA GH200 144G HBM3e").memory_gb == 144


@pytest.mark.parametrize("text", ["", "   ", "A100\x00", "A100\nB200", "x" * 129])
def test_what_cannot_be_a_device_name_is_refused(text):
    with pytest.raises(InvalidInputError, match="not a device name") as caught:
        parse_device_name(text, field="gpus[3].name")
    assert caught.value.field == "gpus[3].name"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("NVIDIA A100-SXM4-40GB", "a100-sxm4-40gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("A100-PCIE-40GB", "a100-pcie-40gb"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm5-80gb"),
        ("NVIDIA-H100-80GB-HBM3", "h100-sxm5-80gb"),
        ("H100-SXM5-80GB", "h100-sxm5-80gb"),
        ("NVIDIA H100 PCIe", "h100-pcie-80gb"),
        ("NVIDIA H100 NVL", "h100-nvl-94gb"),
        ("H100 96GB", "gh200-96gb"),
        ("NVIDIA GH200 480GB", "gh200-96gb"),
        ("NVIDIA GH200 144G HBM3e", "gh200-144gb"),
        ("NVIDIA H200", "h200-sxm5-141gb"),
        ("NVIDIA H200 NVL", "h200-nvl-141gb"),
        ("a30", "a30-24gb"),
        ("NVIDIA B200", "b200-180gb"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000-blackwell-server"),
        ("rtx-pro-6000-blackwell-max-q-workstation-edition", "rtx-pro-6000-blackwell-workstation"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "a100-sxm4-40gb"),
        ("A100X", "a100-pcie-80gb"),
    ],
)
def test_a_name_of_one_board_finds_it(text, key):
    assert find_board(text).key == key


@pytest.mark.parametrize("board", boards(), ids=lambda board: board.key)
def test_every_board_is_found_by_its_key_and_by_each_of_its_pci_ids(board):
    assert find_board(board.key) is board
    for device in board.pci_device_ids:
        spelled = [device, device + "10DE", f"10de:{device[2:].lower()}"]
        assert [board_by_pci(text) for text in spelled] == [board] * 3


@pytest.mark.parametrize(
    ("text", "candidates"),
    [
        ("A100-SXM4", {"a100-sxm4-40gb", "a100-sxm4-80gb"}),
        ("h200", {"h200-sxm5-141gb", "h200-nvl-141gb"}),
        ("H100 80GB", {"h100-sxm5-80gb", "h100-pcie-80gb"}),
        ("NVIDIA H20", {"h20-96gb", "h20-141gb"}),
        ("GH200", {"gh200-96gb", "gh200-144gb"}),
        ("NVIDIA H200 141GB", {"h200-sxm5-141gb", "h200-nvl-141gb"}),
    ],
)
def test_a_name_of_several_boards_is_never_resolved_by_a_guess(text, candidates):
    with pytest.raises(InvalidInputError, match="could be several boards") as caught:
        find_board(text)
    assert set(caught.value.details["candidates"]) == candidates
    assert all(key in str(caught.value) for key in candidates)


def test_memory_or_pci_id_narrow_a_name():
    assert find_board("A100-SXM4", memory_mib=40960).key == "a100-sxm4-40gb"
    assert find_board("A100-SXM4", memory_mib=81920).key == "a100-sxm4-80gb"
    assert find_board("NVIDIA H100 NVL", memory_mib=95830).key == "h100-nvl-94gb"
    assert find_board("H100", memory_mib=97871).key == "gh200-96gb"
    assert find_board("h100", pci_device_id="0x233110DE").key == "h100-pcie-80gb"
    assert find_board("A100-PCIE", memory_mib=40536).key == "a100-pcie-40gb"
    assert find_board("h20", memory_mib=95577).key == "h20-96gb"


def test_a_clear_name_is_not_refused_for_what_a_virtual_gpu_reports():
    assert find_board("NVIDIA A30", memory_mib=12000).key == "a30-24gb"
    assert find_board("NVIDIA A30", pci_device_id="0x999910DE").key == "a30-24gb"


def test_memory_or_pci_id_that_contradict_the_name_are_an_error_not_a_choice():
    with pytest.raises(InvalidInputError, match="no board of this name has 1000 MiB"):
        find_board("A100", memory_mib=1000)
    with pytest.raises(InvalidInputError, match="PCI id 0x2330"):
        find_board("A100", pci_device_id="0x2330")
    with pytest.raises(InvalidInputError, match="PCI id 0x2330"):
        find_board("NVIDIA A30", pci_device_id="0x2330")
    with pytest.raises(InvalidInputError, match="not a PCI device id"):
        find_board("A100", pci_device_id="2330:10de:x")


@pytest.mark.parametrize(
    "text", ["Tesla T4", "NVIDIA A100-SXM-64GB", "G2", "RTX 6000 Ada", "nvidia"]
)
def test_a_name_that_no_mig_board_has_is_unknown(text):
    with pytest.raises(InvalidInputError, match="no board that MIG can split") as caught:
        find_board(text, field="--gpu-model")
    assert caught.value.field == "--gpu-model"


def test_an_unknown_name_suggests_what_is_near():
    with pytest.raises(InvalidInputError) as caught:
        find_board("h100-sxm5-80g8")
    assert "h100-sxm5-80gb" in str(caught.value)
