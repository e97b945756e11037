/* Compute instances, and the MIG devices that they are. */
#include <stdio.h>
#include <string.h>

#include "sim.h"

static const struct compute_profile *compute_profile(const struct profile *profile, uint32_t id)
{
    for (uint32_t i = 0; i < profile->compute_count; i++)
        if (profile->compute[i].id == id) return &profile->compute[i];
    return NULL;
}

static uint32_t size_of(const struct profile *profile, const struct compute_instance *ci)
{
    return profile->compute[ci->profile].slices;
}

/* A compute instance's profile has the same number in queries as in all else. */
API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(
    nvmlGpuInstance_t handle, unsigned int number, unsigned int engines,
    nvmlComputeInstanceProfileInfo_v2_t *info)
{
    struct found found;
    const struct compute_profile *profile;

    BEGIN(handle, READS);
    TRY(find_gpu_instance(&call, handle, &found));
    NEED(info != NULL && number < NVML_COMPUTE_INSTANCE_PROFILE_COUNT &&
             engines == NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED,
         NVML_ERROR_INVALID_ARGUMENT);
    NEED(info->version == nvmlComputeInstanceProfileInfo_v2, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    profile = compute_profile(found.profile, number);
    NEED(profile != NULL, NVML_ERROR_NOT_SUPPORTED);
    *info = (nvmlComputeInstanceProfileInfo_v2_t){
        .version = nvmlComputeInstanceProfileInfo_v2,
        .id = profile->id,
        .sliceCount = profile->slices,
        .instanceCount = profile->instances,
        .multiprocessorCount = profile->multiprocessors,
        .sharedCopyEngineCount = found.profile->copy_engines,
        .sharedDecoderCount = found.profile->decoders,
        .sharedEncoderCount = found.profile->encoders,
        .sharedJpegCount = found.profile->jpegs,
        .sharedOfaCount = found.profile->ofas,
    };
    snprintf(info->name, sizeof info->name, "MIG %s", profile->name);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(
    nvmlGpuInstance_t handle, unsigned int number, unsigned int engines,
    nvmlComputeInstanceProfileInfo_t *info)
{
    nvmlComputeInstanceProfileInfo_v2_t all = {.version = nvmlComputeInstanceProfileInfo_v2};

    NEED(info != NULL, NVML_ERROR_INVALID_ARGUMENT);
    TRY(nvmlGpuInstanceGetComputeInstanceProfileInfoV(handle, number, engines, &all));
    *info = (nvmlComputeInstanceProfileInfo_t){
        .id = all.id,
        .sliceCount = all.sliceCount,
        .instanceCount = all.instanceCount,
        .multiprocessorCount = all.multiprocessorCount,
        .sharedCopyEngineCount = all.sharedCopyEngineCount,
        .sharedDecoderCount = all.sharedDecoderCount,
        .sharedEncoderCount = all.sharedEncoderCount,
        .sharedJpegCount = all.sharedJpegCount,
        .sharedOfaCount = all.sharedOfaCount,
    };
    return NVML_SUCCESS;
}

static int slices_free(const struct found *found, struct place place)
{
    for (uint32_t i = 0; i < SIM_COMPUTE_INSTANCES; i++) {
        const struct compute_instance *ci = &found->gi->compute[i];
        if (ci->used && ci->start < place.start + place.size &&
            place.start < ci->start + size_of(found->profile, ci))
            return 0;
    }
    return 1;
}

API nvmlReturn_t nvmlGpuInstanceGetComputeInstancePossiblePlacements(
    nvmlGpuInstance_t handle, unsigned int id, nvmlComputeInstancePlacement_t *placements,
    unsigned int *count)
{
    struct found found;
    const struct compute_profile *profile;

    BEGIN(handle, READS);
    TRY(find_gpu_instance(&call, handle, &found));
    NEED(count != NULL, NVML_ERROR_INVALID_ARGUMENT);
    profile = compute_profile(found.profile, id);
    NEED(profile != NULL, NVML_ERROR_NOT_SUPPORTED);
    *count = profile->placement_count;
    for (uint32_t i = 0; placements != NULL && i < profile->placement_count; i++)
        placements[i] = (nvmlComputeInstancePlacement_t){profile->placements[i].start,
                                                         profile->placements[i].size};
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceRemainingCapacity(nvmlGpuInstance_t handle,
                                                                    unsigned int id,
                                                                    unsigned int *count)
{
    struct found found;
    const struct compute_profile *profile;

    BEGIN(handle, READS);
    TRY(find_gpu_instance(&call, handle, &found));
    NEED(count != NULL, NVML_ERROR_INVALID_ARGUMENT);
    profile = compute_profile(found.profile, id);
    NEED(profile != NULL, NVML_ERROR_NOT_SUPPORTED);
    *count = 0; /* the placements of one profile do not overlap each other */
    for (uint32_t i = 0; i < profile->placement_count; i++)
        *count += (unsigned int)slices_free(&found, profile->placements[i]);
    return NVML_SUCCESS;
}

static int taken(const struct gpu *gpu, uint32_t mig_index)
{
    for (uint32_t g = 0; g < SIM_GPU_INSTANCES; g++)
        for (uint32_t c = 0; gpu->instances[g].used && c < SIM_COMPUTE_INSTANCES; c++)
            if (gpu->instances[g].compute[c].used &&
                gpu->instances[g].compute[c].mig_index == mig_index)
                return 1;
    return 0;
}

static uint64_t mixed(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ull; /* splitmix64 */
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

/* A name that no other instance of any GPU ever had: from the GPU's own and the serial. */
static void name_it(const struct gpu *gpu, struct compute_instance *ci)
{
    uint64_t seed = ci->serial, high, low;

    for (const char *c = gpu->uuid; *c != '\0'; c++) seed = mixed(seed ^ (unsigned char)*c);
    high = mixed(seed);
    low = mixed(high);
    snprintf(ci->uuid, sizeof ci->uuid, "MIG-%08x-%04x-5%03x-%04x-%012llx",
             (unsigned int)(high >> 32), (unsigned int)(high >> 16 & 0xffff),
             (unsigned int)(high & 0xfff), (unsigned int)(low >> 48 & 0x3fff) | 0x8000,
             (unsigned long long)(low & 0xffffffffffffull));
}

static nvmlReturn_t create(struct call *call, struct found *found,
                           const struct compute_profile *profile, struct place place,
                           nvmlComputeInstance_t *to)
{
    struct compute_instance *ci = found->gi->compute;
    uint32_t mig_index = 0;

    NEED(slices_free(found, place), NVML_ERROR_INSUFFICIENT_RESOURCES);
    while (ci->used) ci++; /* each takes a slice, and there are more rows than slices */
    while (taken(found->gpu, mig_index)) mig_index++;
    *ci = (struct compute_instance){
        .used = 1,
        .id = (uint32_t)(ci - found->gi->compute),
        .profile = (uint32_t)(profile - found->profile->compute),
        .start = place.start,
        .serial = ++call->now->serial,
        .mig_index = mig_index,
    };
    name_it(found->gpu, ci);
    *to = handle_of(OF_COMPUTE_INSTANCE, found->number, found->gi, ci);
    tell(call->now, nvmlEventMigConfigChange, 0, found->number, found->gi->id, ci->id);
    return keep(call);
}

API nvmlReturn_t nvmlGpuInstanceCreateComputeInstanceWithPlacement(
    nvmlGpuInstance_t handle, unsigned int id, const nvmlComputeInstancePlacement_t *placement,
    nvmlComputeInstance_t *to)
{
    struct found found;
    const struct compute_profile *profile;

    BEGIN(handle, WRITES);
    TRY(find_gpu_instance(&call, handle, &found));
    NEED(to != NULL && placement != NULL, NVML_ERROR_INVALID_ARGUMENT);
    profile = compute_profile(found.profile, id);
    NEED(profile != NULL, NVML_ERROR_INVALID_ARGUMENT);
    for (uint32_t i = 0; i < profile->placement_count; i++)
        if (profile->placements[i].start == placement->start &&
            profile->placements[i].size == placement->size)
            return create(&call, &found, profile, profile->placements[i], to);
    return NVML_ERROR_INVALID_ARGUMENT;
}

API nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t handle, unsigned int id,
                                                      nvmlComputeInstance_t *to)
{
    struct found found;
    const struct compute_profile *profile;

    BEGIN(handle, WRITES);
    TRY(find_gpu_instance(&call, handle, &found));
    NEED(to != NULL, NVML_ERROR_INVALID_ARGUMENT);
    profile = compute_profile(found.profile, id);
    NEED(profile != NULL, NVML_ERROR_INVALID_ARGUMENT);
    for (uint32_t i = 0; i < profile->placement_count; i++)
        if (slices_free(&found, profile->placements[i]))
            return create(&call, &found, profile, profile->placements[i], to);
    return NVML_ERROR_INSUFFICIENT_RESOURCES;
}

API nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t handle)
{
    struct found found;

    BEGIN(handle, WRITES);
    TRY(find_compute_instance(&call, handle, &found));
    NEED(!in_use(call.now, found.number, found.gi->id, found.ci->id), NVML_ERROR_IN_USE);
    tell(call.now, nvmlEventMigConfigChange, 0, found.number, found.gi->id, found.ci->id);
    memset(found.ci, 0, sizeof *found.ci);
    return keep(&call);
}

API nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t handle, unsigned int id,
                                                    nvmlComputeInstance_t *to, unsigned int *count)
{
    struct found found;
    const struct compute_profile *profile;

    BEGIN(handle, READS);
    TRY(find_gpu_instance(&call, handle, &found));
    NEED(to != NULL && count != NULL, NVML_ERROR_INVALID_ARGUMENT);
    profile = compute_profile(found.profile, id);
    NEED(profile != NULL, NVML_ERROR_INVALID_ARGUMENT);
    *count = 0;
    for (uint32_t i = 0; i < SIM_COMPUTE_INSTANCES; i++) {
        const struct compute_instance *ci = &found.gi->compute[i];
        if (ci->used && &found.profile->compute[ci->profile] == profile)
            to[(*count)++] = handle_of(OF_COMPUTE_INSTANCE, found.number, found.gi, ci);
    }
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t handle, unsigned int id,
                                                       nvmlComputeInstance_t *to)
{
    struct found found;

    BEGIN(handle, READS);
    TRY(find_gpu_instance(&call, handle, &found));
    NEED(to != NULL, NVML_ERROR_INVALID_ARGUMENT);
    NEED(id < SIM_COMPUTE_INSTANCES && found.gi->compute[id].used, NVML_ERROR_NOT_FOUND);
    *to = handle_of(OF_COMPUTE_INSTANCE, found.number, found.gi, &found.gi->compute[id]);
    return NVML_SUCCESS;
}

/* The device is that of the MIG device, from which its UUID can be asked. */
API nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t handle,
                                               nvmlComputeInstanceInfo_t *info)
{
    struct found found;

    BEGIN(handle, READS);
    TRY(find_compute_instance(&call, handle, &found));
    NEED(info != NULL, NVML_ERROR_INVALID_ARGUMENT);
    *info = (nvmlComputeInstanceInfo_t){
        .device = handle_of(OF_MIG_DEVICE, found.number, found.gi, found.ci),
        .gpuInstance = handle_of(OF_GPU_INSTANCE, found.number, found.gi, NULL),
        .id = found.ci->id,
        .profileId = found.profile->compute[found.ci->profile].id,
        .placement = {found.ci->start, size_of(found.profile, found.ci)},
    };
    return NVML_SUCCESS;
}
