/* The machine as a whole: versions, how many GPUs, handles of them, what errors are called. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "sim.h"

API const char *nvmlErrorString(nvmlReturn_t result)
{
    switch (result) {
    case NVML_SUCCESS: return "The operation was successful";
    case NVML_ERROR_UNINITIALIZED: return "NVML was not first initialized with nvmlInit()";
    case NVML_ERROR_INVALID_ARGUMENT: return "A supplied argument is invalid";
    case NVML_ERROR_NOT_SUPPORTED: return "The requested operation is not available on target device";
    case NVML_ERROR_NO_PERMISSION: return "The current user does not have permission for operation";
    case NVML_ERROR_NOT_FOUND: return "A query to find an object was unsuccessful";
    case NVML_ERROR_INSUFFICIENT_SIZE: return "An input argument is not large enough";
    case NVML_ERROR_DRIVER_NOT_LOADED: return "NVIDIA driver is not loaded";
    case NVML_ERROR_TIMEOUT: return "User provided timeout passed";
    case NVML_ERROR_FUNCTION_NOT_FOUND: return "Local version of NVML doesn't implement this function";
    case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
    case NVML_ERROR_RESET_REQUIRED: return "GPU requires restart";
    case NVML_ERROR_LIB_RM_VERSION_MISMATCH: return "RM detects a driver/library version mismatch";
    case NVML_ERROR_IN_USE: return "In use by another client";
    case NVML_ERROR_MEMORY: return "Insufficient memory";
    case NVML_ERROR_NO_DATA: return "No data";
    case NVML_ERROR_INSUFFICIENT_RESOURCES: return "Insufficient resources";
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH: return "The provided version is invalid/unsupported";
    case NVML_ERROR_UNKNOWN: break;
    }
    return "Unknown Error";
}

nvmlReturn_t copy_text(char *to, unsigned int length, const char *text)
{
    NEED(to != NULL, NVML_ERROR_INVALID_ARGUMENT);
    NEED(strlen(text) < length, NVML_ERROR_INSUFFICIENT_SIZE);
    strcpy(to, text);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    BEGIN(NULL, READS);
    return copy_text(version, length, call.now->driver_version);
}

API nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
    BEGIN(NULL, READS);
    return copy_text(version, length, call.now->nvml_version);
}

API nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    BEGIN(NULL, READS);
    NEED(version != NULL, NVML_ERROR_INVALID_ARGUMENT);
    *version = (int)call.now->cuda_version;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    return nvmlSystemGetCudaDriverVersion_v2(version);
}

API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
    BEGIN(NULL, READS);
    NEED(count != NULL, NVML_ERROR_INVALID_ARGUMENT);
    *count = call.now->gpu_count;
    return NVML_SUCCESS;
}

static nvmlReturn_t give(struct call *call, uint32_t number, nvmlDevice_t *device)
{
    NEED(!call->now->gpus[number].lost, NVML_ERROR_GPU_IS_LOST);
    *device = handle_of(OF_GPU, number, NULL, NULL);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    BEGIN(handle_of(OF_GPU, index, NULL, NULL), READS);
    NEED(device != NULL && index < call.now->gpu_count, NVML_ERROR_INVALID_ARGUMENT);
    return give(&call, index, device);
}

static nvmlDevice_t mig_device_of(uint32_t number, struct gpu *gpu, const char *uuid)
{
    for (uint32_t g = 0; g < SIM_GPU_INSTANCES; g++) {
        struct gpu_instance *gi = &gpu->instances[g];
        for (uint32_t c = 0; gi->used && c < SIM_COMPUTE_INSTANCES; c++)
            if (gi->compute[c].used && strcmp(gi->compute[c].uuid, uuid) == 0)
                return handle_of(OF_MIG_DEVICE, number, gi, &gi->compute[c]);
    }
    return NULL;
}

API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    BEGIN(NULL, READS);
    NEED(uuid != NULL && device != NULL, NVML_ERROR_INVALID_ARGUMENT);
    for (uint32_t i = 0; i < call.now->gpu_count; i++) {
        struct gpu *gpu = &call.now->gpus[i];
        if (strcmp(gpu->uuid, uuid) == 0) return give(&call, i, device);
        if (!gpu->lost && (*device = mig_device_of(i, gpu, uuid)) != NULL) return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
}

API nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device)
{
    struct pci asked;

    BEGIN(NULL, READS);
    NEED(bus_id != NULL && device != NULL, NVML_ERROR_INVALID_ARGUMENT);
    NEED(sscanf(bus_id, "%x:%x:%x", &asked.domain, &asked.bus, &asked.device) == 3,
         NVML_ERROR_INVALID_ARGUMENT);
    for (uint32_t i = 0; i < call.now->gpu_count; i++)
        if (memcmp(&call.now->gpus[i].pci, &asked, sizeof asked) == 0)
            return give(&call, i, device);
    return NVML_ERROR_NOT_FOUND;
}
