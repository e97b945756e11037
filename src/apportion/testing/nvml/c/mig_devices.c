/* MIG devices: what a caller of CUDA sees of a compute instance. */
#include "sim.h"

API nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
    struct found found;

    BEGIN(device, READS);
    TRY(find_gpu(&call, device, &found));
    NEED(count != NULL, NVML_ERROR_INVALID_ARGUMENT);
    *count = found.gpu->mig ? found.board->slices : 0;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index,
                                                     nvmlDevice_t *to)
{
    struct found found;

    BEGIN(device, READS);
    TRY(find_gpu(&call, device, &found));
    NEED(to != NULL && index < found.board->slices, NVML_ERROR_INVALID_ARGUMENT);
    NEED(found.board->profile_count > 0, NVML_ERROR_NOT_SUPPORTED);
    for (uint32_t g = 0; g < SIM_GPU_INSTANCES; g++) {
        const struct gpu_instance *gi = &found.gpu->instances[g];
        for (uint32_t c = 0; gi->used && c < SIM_COMPUTE_INSTANCES; c++)
            if (gi->compute[c].used && gi->compute[c].mig_index == index) {
                *to = handle_of(OF_MIG_DEVICE, found.number, gi, &gi->compute[c]);
                return NVML_SUCCESS;
            }
    }
    return NVML_ERROR_NOT_FOUND;
}

API nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *is)
{
    struct found found;

    BEGIN(device, READS);
    TRY(find_device(&call, device, &found));
    NEED(is != NULL, NVML_ERROR_INVALID_ARGUMENT);
    *is = found.ci != NULL;
    return NVML_SUCCESS;
}

static nvmlReturn_t find_mig_device(struct call *call, nvmlDevice_t device, struct found *found)
{
    TRY(find_device(call, device, found));
    return found->ci != NULL ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id)
{
    struct found found;

    BEGIN(device, READS);
    TRY(find_mig_device(&call, device, &found));
    NEED(id != NULL, NVML_ERROR_INVALID_ARGUMENT);
    *id = found.gi->id;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id)
{
    struct found found;

    BEGIN(device, READS);
    TRY(find_mig_device(&call, device, &found));
    NEED(id != NULL, NVML_ERROR_INVALID_ARGUMENT);
    *id = found.ci->id;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t device, nvmlDevice_t *to)
{
    struct found found;

    BEGIN(device, READS);
    TRY(find_mig_device(&call, device, &found));
    NEED(to != NULL, NVML_ERROR_INVALID_ARGUMENT);
    *to = handle_of(OF_GPU, found.number, NULL, NULL);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *to)
{
    struct found found;
    const struct compute_profile *compute;

    BEGIN(device, READS);
    TRY(find_mig_device(&call, device, &found));
    NEED(to != NULL, NVML_ERROR_INVALID_ARGUMENT);
    compute = &found.profile->compute[found.ci->profile];
    *to = (nvmlDeviceAttributes_t){
        .multiprocessorCount = compute->multiprocessors,
        .sharedCopyEngineCount = found.profile->copy_engines,
        .sharedDecoderCount = found.profile->decoders,
        .sharedEncoderCount = found.profile->encoders,
        .sharedJpegCount = found.profile->jpegs,
        .sharedOfaCount = found.profile->ofas,
        .gpuInstanceSliceCount = found.profile->slices,
        .computeInstanceSliceCount = compute->slices,
        .memorySizeMB = found.profile->memory_mib,
    };
    return NVML_SUCCESS;
}
