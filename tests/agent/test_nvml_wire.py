"""The structures that cross the library's border are laid out as the binding has them."""

import ctypes
import subprocess

import pynvml
import pytest

from apportion.testing.nvml import building

STRUCTURES = {
    "nvmlPciInfo_t": pynvml.nvmlPciInfo_t,
    "nvmlMemory_t": pynvml.c_nvmlMemory_t,
    "nvmlMemory_v2_t": pynvml.c_nvmlMemory_v2_t,
    "nvmlProcessInfo_t": pynvml.c_nvmlProcessInfo_v3_t,
    "nvmlFieldValue_t": pynvml.c_nvmlFieldValue_t,
    "nvmlValue_t": pynvml.c_nvmlValue_t,
    "nvmlEventData_t": pynvml.c_nvmlEventData_t,
    "nvmlGpuInstancePlacement_t": pynvml.c_nvmlGpuInstancePlacement_t,
    "nvmlGpuInstanceProfileInfo_t": pynvml.c_nvmlGpuInstanceProfileInfo_t,
    "nvmlGpuInstanceProfileInfo_v2_t": pynvml.c_nvmlGpuInstanceProfileInfo_v2_t,
    "nvmlGpuInstanceInfo_t": pynvml.c_nvmlGpuInstanceInfo_t,
    "nvmlComputeInstancePlacement_t": pynvml.c_nvmlComputeInstancePlacement_t,
    "nvmlComputeInstanceProfileInfo_t": pynvml.c_nvmlComputeInstanceProfileInfo_t,
    "nvmlComputeInstanceProfileInfo_v2_t": pynvml.c_nvmlComputeInstanceProfileInfo_v2_t,
    "nvmlComputeInstanceInfo_t": pynvml.c_nvmlComputeInstanceInfo_t,
    "nvmlDeviceAttributes_t": pynvml.c_nvmlDeviceAttributes,
}
VERSIONS = {
    "nvmlMemory_v2": pynvml.nvmlMemory_v2,
    "nvmlGpuInstanceProfileInfo_v2": pynvml.nvmlGpuInstanceProfileInfo_v2,
    "nvmlComputeInstanceProfileInfo_v2": pynvml.nvmlComputeInstanceProfileInfo_v2,
}
# Members of a union that nothing here sets.
UNUSED = {("nvmlValue_t", name) for name in ("sllVal", "siVal", "usVal")}
SOURCE = building._SOURCE


def measured(tmp_path, lines):
    """Compile a program that prints expressions over the library's own header, and run it."""
    body = "".join(f'printf("%llu\\n", (unsigned long long)({line}));' for line in lines)
    source = "#include <stddef.h>\n#include <stdio.h>\n"
    source += f'#include "{SOURCE / "wire.h"}"\nint main(void) {{ {body} return 0; }}\n'
    (tmp_path / "measure.c").write_text(source)
    program = tmp_path / "measure"
    subprocess.run(
        [*building._compiler(), "-std=c11", str(tmp_path / "measure.c"), "-o", str(program)],
        check=True,
    )
    done = subprocess.run([program], check=True, capture_output=True, text=True)
    return [int(line) for line in done.stdout.split()]


def test_every_structure_and_each_of_its_members_lies_where_the_binding_looks(tmp_path):
    asked, expected = [], []
    for name, structure in STRUCTURES.items():
        asked.append(f"sizeof({name})")
        expected.append(ctypes.sizeof(structure))
        for member, *_ in structure._fields_:
            if (name, member) in UNUSED:
                continue
            asked += [f"offsetof({name}, {member})", f"sizeof((({name} *)0)->{member})"]
            at = getattr(structure, member)
            expected += [at.offset, at.size]
    got = measured(tmp_path, asked)
    assert [each for each in zip(asked, got, expected, strict=True) if each[1] != each[2]] == []
    assert len(asked) > 200


def test_versions_are_those_that_the_binding_asks_for(tmp_path):
    assert measured(tmp_path, VERSIONS) == list(VERSIONS.values())


def test_every_structure_of_the_header_is_checked_here():
    declared = [
        line.split()[-1].rstrip(";")
        for line in (SOURCE / "wire.h").read_text().splitlines()
        if line.startswith("}") or (line.startswith("typedef struct {") and line.endswith(";"))
    ]
    structures = {name for name in declared if name.endswith("_t") and "Return" not in name}
    enumerations = {
        "nvmlMemoryErrorType_t",
        "nvmlComputeMode_t",
        "nvmlGpuTopologyLevel_t",
    }
    assert structures - enumerations == set(STRUCTURES)


@pytest.mark.parametrize(
    "name",
    [
        "NVML_ERROR_IN_USE",
        "NVML_ERROR_INSUFFICIENT_RESOURCES",
        "NVML_ERROR_GPU_IS_LOST",
        "NVML_ERROR_RESET_REQUIRED",
        "NVML_ERROR_LIB_RM_VERSION_MISMATCH",
        "NVML_ERROR_ARGUMENT_VERSION_MISMATCH",
        "NVML_GPU_INSTANCE_PROFILE_COUNT",
        "NVML_COMPUTE_INSTANCE_PROFILE_COUNT",
        "NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED",
        "NVML_FI_DEV_NVLINK_LINK_COUNT",
        "NVML_FI_DEV_REMAPPED_PENDING",
        "NVML_P2P_STATUS_NOT_SUPPORTED",
        "NVML_TOPOLOGY_SYSTEM",
        "NVML_BRAND_NVIDIA",
        "nvmlEventTypeXidCriticalError",
        "nvmlEventMigConfigChange",
    ],
)
def test_numbers_are_those_of_the_binding(tmp_path, name):
    assert measured(tmp_path, [name]) == [getattr(pynvml, name)]
