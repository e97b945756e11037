/* What a device is, a whole one or a MIG one: names, addresses, memory, who runs on it. */
#include <stdio.h>
#include <string.h>

#include "sim.h"

API nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
    struct found found;
    char text[NVML_DEVICE_NAME_V2_BUFFER_SIZE + 64];

    BEGIN(device, READS);
    TRY(find_device(&call, device, &found));
    if (found.ci == NULL) return copy_text(name, length, found.board->name);
    snprintf(text, sizeof text, "%s MIG %s", found.board->name,
             found.profile->compute[found.ci->profile].name);
    return copy_text(name, length, text);
}

API nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
    struct found found;

    BEGIN(device, READS);
    TRY(find_device(&call, device, &found));
    return copy_text(uuid, length, found.ci != NULL ? found.ci->uuid : found.gpu->uuid);
}

API nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned int length)
{
    struct found found;

    BEGIN(device, READS);
    TRY(find_gpu(&call, device, &found));
    return copy_text(serial, length, found.gpu->serial_number);
}

/* One fact of a whole GPU, as a number. */
#define FACT(function, type, value)                                   \
    API nvmlReturn_t function(nvmlDevice_t device, type *to)          \
    {                                                                 \
        struct found found;                                           \
                                                                      \
        BEGIN(device, READS);                                         \
        TRY(find_gpu(&call, device, &found));                         \
        NEED(to != NULL, NVML_ERROR_INVALID_ARGUMENT);                \
        *to = (value);                                                \
        return NVML_SUCCESS;                                          \
    }

FACT(nvmlDeviceGetIndex, unsigned int, found.number)
FACT(nvmlDeviceGetMinorNumber, unsigned int, found.gpu->minor)
FACT(nvmlDeviceGetBrand, nvmlBrandType_t, NVML_BRAND_NVIDIA)
FACT(nvmlDeviceGetArchitecture, nvmlDeviceArchitecture_t, found.board->architecture)
FACT(nvmlDeviceGetPersistenceMode, nvmlEnableState_t, (nvmlEnableState_t)found.gpu->persistence)
FACT(nvmlDeviceGetCurrPcieLinkGeneration, unsigned int, found.board->mode_needs_reset ? 4 : 5)
FACT(nvmlDeviceGetMaxPcieLinkGeneration, unsigned int, found.board->mode_needs_reset ? 4 : 5)
FACT(nvmlDeviceGetCurrPcieLinkWidth, unsigned int, 16)
FACT(nvmlDeviceGetMaxPcieLinkWidth, unsigned int, 16)

API nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    struct found found;

    BEGIN(device, READS);
    TRY(find_device(&call, device, &found));
    NEED(major != NULL && minor != NULL, NVML_ERROR_INVALID_ARGUMENT);
    *major = (int)found.board->compute_major;
    *minor = (int)found.board->compute_minor;
    return NVML_SUCCESS;
}

void write_pci(nvmlPciInfo_t *to, struct pci pci, uint32_t device_id, uint32_t subsystem_id)
{
    memset(to, 0, sizeof *to);
    to->domain = pci.domain;
    to->bus = pci.bus;
    to->device = pci.device;
    to->pciDeviceId = device_id;
    to->pciSubSystemId = subsystem_id;
    snprintf(to->busIdLegacy, sizeof to->busIdLegacy, "%04X:%02X:%02X.0", pci.domain & 0xffff,
             pci.bus & 0xff, pci.device & 0xff);
    snprintf(to->busId, sizeof to->busId, "%08X:%02X:%02X.0", pci.domain, pci.bus, pci.device);
}

API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    struct found found;

    BEGIN(device, READS);
    TRY(find_gpu(&call, device, &found));
    NEED(pci != NULL, NVML_ERROR_INVALID_ARGUMENT);
    write_pci(pci, found.gpu->pci, found.gpu->pci_device_id, found.gpu->pci_subsystem_id);
    return NVML_SUCCESS;
}

static nvmlMemory_v2_t memory_of(const struct call *call, const struct found *found)
{
    const uint64_t mib = 1u << 20;
    const struct gpu *gpu = found->gpu;
    nvmlMemory_v2_t memory = {.total = gpu->memory_mib * mib, .reserved = gpu->reserved_mib * mib};

    if (found->gi != NULL) {
        memory.total = found->profile->memory_mib * mib;
        memory.reserved = 0;
        memory.used = found->gi->left_bytes + bytes_used(call->now, found->number, found->gi->id);
    } else {
        memory.used = gpu->left_bytes + bytes_used(call->now, found->number, SIM_NONE);
        for (uint32_t i = 0; i < SIM_GPU_INSTANCES; i++)
            if (gpu->instances[i].used) memory.used += gpu->instances[i].left_bytes;
    }
    memory.free = memory.total - memory.reserved - memory.used;
    return memory;
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    struct found found;

    BEGIN(device, READS);
    TRY(find_device(&call, device, &found));
    NEED(memory != NULL, NVML_ERROR_INVALID_ARGUMENT);
    NEED(memory->version == nvmlMemory_v2, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    *memory = memory_of(&call, &found);
    memory->version = nvmlMemory_v2;
    return NVML_SUCCESS;
}

/* The older form counts what the driver keeps for itself as used. */
API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    struct found found;
    nvmlMemory_v2_t all;

    BEGIN(device, READS);
    TRY(find_device(&call, device, &found));
    NEED(memory != NULL, NVML_ERROR_INVALID_ARGUMENT);
    all = memory_of(&call, &found);
    *memory = (nvmlMemory_t){.total = all.total, .free = all.free, .used = all.used + all.reserved};
    return NVML_SUCCESS;
}

static uint32_t *compute_mode_of(const struct found *found)
{
    return found->ci != NULL ? &found->ci->compute_mode : &found->gpu->compute_mode;
}

API nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, nvmlComputeMode_t *mode)
{
    struct found found;

    BEGIN(device, READS);
    TRY(find_device(&call, device, &found));
    NEED(mode != NULL, NVML_ERROR_INVALID_ARGUMENT);
    *mode = (nvmlComputeMode_t)*compute_mode_of(&found);
    return NVML_SUCCESS;
}

/* Exclusive process mode does not exist in MIG mode, and there a whole GPU has no mode to set. */
API nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t device, nvmlComputeMode_t mode)
{
    struct found found;

    BEGIN(device, WRITES);
    TRY(find_device(&call, device, &found));
    NEED(mode == NVML_COMPUTEMODE_DEFAULT || mode == NVML_COMPUTEMODE_PROHIBITED ||
             mode == NVML_COMPUTEMODE_EXCLUSIVE_PROCESS,
         NVML_ERROR_INVALID_ARGUMENT);
    NEED(!found.gpu->mig || (found.ci != NULL && mode != NVML_COMPUTEMODE_EXCLUSIVE_PROCESS),
         NVML_ERROR_NOT_SUPPORTED);
    *compute_mode_of(&found) = (uint32_t)mode;
    return keep(&call);
}

API nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned int *milliwatts)
{
    struct found found;

    BEGIN(device, READS);
    TRY(find_gpu(&call, device, &found));
    NEED(milliwatts != NULL, NVML_ERROR_INVALID_ARGUMENT);
    NEED(found.gpu->power_limit_mw, NVML_ERROR_NOT_SUPPORTED);
    *milliwatts = found.gpu->power_limit_mw;
    return NVML_SUCCESS;
}
