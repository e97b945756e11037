/* From a handle to what it names. */
#include <stdint.h>

#include "sim.h"

/* Bits 60.. the kind, 52.. the GPU, 44.. the GPU instance's id, 36.. the compute instance's, 0.. the
   serial of the instance, by which a handle of a destroyed one is known although ids are reused. */
struct handle handle_read(const void *handle)
{
    uint64_t bits = (uint64_t)(uintptr_t)handle;

    return (struct handle){
        .kind = (enum handle_kind)(bits >> 60),
        .gpu = handle != NULL ? bits >> 52 & 0xff : SIM_NONE,
        .gpu_instance = bits >> 44 & 0xff,
        .compute_instance = bits >> 36 & 0xff,
        .serial = bits & 0xffffffff,
    };
}

void *handle_of(enum handle_kind kind, uint32_t gpu, const struct gpu_instance *gi,
                const struct compute_instance *ci)
{
    uint64_t bits = (uint64_t)kind << 60 | (uint64_t)gpu << 52;

    if (gi != NULL) bits |= (uint64_t)gi->id << 44;
    if (ci != NULL) bits |= (uint64_t)ci->id << 36;
    return (void *)(uintptr_t)(bits | (ci != NULL ? ci->serial : gi != NULL ? gi->serial : 0));
}

static nvmlReturn_t find(struct call *call, struct handle handle, struct found *found)
{
    *found = (struct found){.number = handle.gpu};
    NEED(handle.kind >= OF_GPU && handle.kind <= OF_COMPUTE_INSTANCE, NVML_ERROR_INVALID_ARGUMENT);
    NEED(handle.gpu < call->now->gpu_count, NVML_ERROR_INVALID_ARGUMENT);
    found->gpu = &call->now->gpus[handle.gpu];
    NEED(!found->gpu->lost, NVML_ERROR_GPU_IS_LOST);
    found->board = &call->file->boards[found->gpu->board];
    if (handle.kind == OF_GPU) return NVML_SUCCESS;
    for (struct gpu_instance *gi = found->gpu->instances;
         gi < found->gpu->instances + SIM_GPU_INSTANCES; gi++)
        if (gi->used && gi->id == handle.gpu_instance) found->gi = gi;
    NEED(found->gi != NULL, NVML_ERROR_INVALID_ARGUMENT);
    found->profile = &found->board->profiles[found->gi->profile];
    if (handle.kind == OF_GPU_INSTANCE)
        return found->gi->serial == handle.serial ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
    for (struct compute_instance *ci = found->gi->compute;
         ci < found->gi->compute + SIM_COMPUTE_INSTANCES; ci++)
        if (ci->used && ci->serial == handle.serial) found->ci = ci;
    NEED(found->ci != NULL, NVML_ERROR_INVALID_ARGUMENT);
    return NVML_SUCCESS;
}

static nvmlReturn_t find_kind(struct call *call, const void *handle, enum handle_kind kind,
                              struct found *found)
{
    struct handle read = handle_read(handle);

    NEED(read.kind == kind, NVML_ERROR_INVALID_ARGUMENT);
    return find(call, read, found);
}

nvmlReturn_t find_gpu(struct call *call, nvmlDevice_t device, struct found *found)
{
    return find_kind(call, device, OF_GPU, found);
}

nvmlReturn_t find_device(struct call *call, nvmlDevice_t device, struct found *found)
{
    struct handle read = handle_read(device);

    return find_kind(call, device, read.kind == OF_MIG_DEVICE ? OF_MIG_DEVICE : OF_GPU, found);
}

nvmlReturn_t find_gpu_instance(struct call *call, nvmlGpuInstance_t handle, struct found *found)
{
    return find_kind(call, handle, OF_GPU_INSTANCE, found);
}

nvmlReturn_t find_compute_instance(struct call *call, nvmlComputeInstance_t handle,
                                   struct found *found)
{
    return find_kind(call, handle, OF_COMPUTE_INSTANCE, found);
}

const struct profile *profile_by_id(const struct board *board, uint32_t id)
{
    for (uint32_t i = 0; i < board->profile_count; i++)
        if (board->profiles[i].id == id) return &board->profiles[i];
    return NULL;
}
