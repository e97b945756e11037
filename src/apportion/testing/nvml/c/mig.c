/* MIG mode, and GPU instances: what may be cut, where, and when it may be undone. */
#include <string.h>

#include "sim.h"

void clear_instances(struct gpu *gpu) { memset(gpu->instances, 0, sizeof gpu->instances); }

static int has_instances(const struct gpu *gpu)
{
    for (uint32_t i = 0; i < SIM_GPU_INSTANCES; i++)
        if (gpu->instances[i].used) return 1;
    return 0;
}

API nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current,
                                      unsigned int *pending)
{
    struct found found;

    BEGIN(device, READS);
    TRY(find_gpu(&call, device, &found));
    NEED(current != NULL && pending != NULL, NVML_ERROR_INVALID_ARGUMENT);
    NEED(found.board->profile_count > 0, NVML_ERROR_NOT_SUPPORTED);
    *current = found.gpu->mig;
    *pending = found.gpu->mig_pending;
    return NVML_SUCCESS;
}

/* The call succeeds when the mode is noted; whether it is in force yet is told beside. */
API nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned int mode,
                                      nvmlReturn_t *activation)
{
    struct found found;

    BEGIN(device, WRITES);
    TRY(find_gpu(&call, device, &found));
    NEED(mode <= NVML_DEVICE_MIG_ENABLE && activation != NULL, NVML_ERROR_INVALID_ARGUMENT);
    NEED(found.board->profile_count > 0, NVML_ERROR_NOT_SUPPORTED);
    *activation = NVML_SUCCESS;
    found.gpu->mig_pending = mode;
    if (found.gpu->mig == mode) return keep(&call);
    if (has_instances(found.gpu) || in_use(call.now, found.number, SIM_NONE, SIM_NONE))
        *activation = NVML_ERROR_IN_USE;
    else if (found.board->mode_needs_reset)
        *activation = NVML_ERROR_RESET_REQUIRED;
    else
        found.gpu->mig = mode;
    return keep(&call);
}

static int may_be_asked(const struct found *found)
{
    return found->board->profile_count > 0 &&
           (found->gpu->mig || found->board->asked_without_mode);
}

static nvmlReturn_t profile_info(const struct profile *profile, nvmlGpuInstanceProfileInfo_v2_t *to)
{
    NEED(profile != NULL, NVML_ERROR_NOT_SUPPORTED);
    *to = (nvmlGpuInstanceProfileInfo_v2_t){
        .version = nvmlGpuInstanceProfileInfo_v2,
        .id = profile->id,
        .isP2pSupported = 0,
        .sliceCount = profile->slices,
        .instanceCount = profile->instances,
        .multiprocessorCount = profile->multiprocessors,
        .copyEngineCount = profile->copy_engines,
        .decoderCount = profile->decoders,
        .encoderCount = profile->encoders,
        .jpegCount = profile->jpegs,
        .ofaCount = profile->ofas,
        .memorySizeMB = profile->memory_mib,
        .name = "MIG ",
    };
    strcat(to->name, profile->name);
    return NVML_SUCCESS;
}

static const struct profile *profile_by_number(const struct board *board, uint32_t number)
{
    for (uint32_t i = 0; i < board->profile_count; i++)
        if (board->profiles[i].number == number) return &board->profiles[i];
    return NULL;
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned int number,
                                                      nvmlGpuInstanceProfileInfo_v2_t *info)
{
    struct found found;

    BEGIN(device, READS);
    TRY(find_gpu(&call, device, &found));
    NEED(info != NULL && number < NVML_GPU_INSTANCE_PROFILE_COUNT, NVML_ERROR_INVALID_ARGUMENT);
    NEED(info->version == nvmlGpuInstanceProfileInfo_v2, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    NEED(may_be_asked(&found), NVML_ERROR_NOT_SUPPORTED);
    return profile_info(profile_by_number(found.board, number), info);
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoByIdV(nvmlDevice_t device, unsigned int id,
                                                          nvmlGpuInstanceProfileInfo_v2_t *info)
{
    struct found found;

    BEGIN(device, READS);
    TRY(find_gpu(&call, device, &found));
    NEED(info != NULL, NVML_ERROR_INVALID_ARGUMENT);
    NEED(info->version == nvmlGpuInstanceProfileInfo_v2, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    NEED(may_be_asked(&found), NVML_ERROR_NOT_SUPPORTED);
    return profile_info(profile_by_id(found.board, id), info);
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned int number,
                                                     nvmlGpuInstanceProfileInfo_t *info)
{
    nvmlGpuInstanceProfileInfo_v2_t all = {.version = nvmlGpuInstanceProfileInfo_v2};

    NEED(info != NULL, NVML_ERROR_INVALID_ARGUMENT);
    TRY(nvmlDeviceGetGpuInstanceProfileInfoV(device, number, &all));
    *info = (nvmlGpuInstanceProfileInfo_t){
        .id = all.id,
        .isP2pSupported = all.isP2pSupported,
        .sliceCount = all.sliceCount,
        .instanceCount = all.instanceCount,
        .multiprocessorCount = all.multiprocessorCount,
        .copyEngineCount = all.copyEngineCount,
        .decoderCount = all.decoderCount,
        .encoderCount = all.encoderCount,
        .jpegCount = all.jpegCount,
        .ofaCount = all.ofaCount,
        .memorySizeMB = all.memorySizeMB,
    };
    return NVML_SUCCESS;
}

/* All that the profile can ever have, whatever is there now. */
API nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(
    nvmlDevice_t device, unsigned int id, nvmlGpuInstancePlacement_t *placements,
    unsigned int *count)
{
    struct found found;
    const struct profile *profile;

    BEGIN(device, READS);
    TRY(find_gpu(&call, device, &found));
    NEED(count != NULL, NVML_ERROR_INVALID_ARGUMENT);
    profile = profile_by_id(found.board, id);
    NEED(profile != NULL, NVML_ERROR_NOT_SUPPORTED);
    *count = profile->placement_count;
    for (uint32_t i = 0; placements != NULL && i < profile->placement_count; i++)
        placements[i] = (nvmlGpuInstancePlacement_t){profile->placements[i].start,
                                                     profile->placements[i].size};
    return NVML_SUCCESS;
}

/* Whether one more would have its engines and compute slices: the board's, less what is taken. */
static int engines_left(const struct found *found, const struct profile *wanted)
{
    const struct profile *full = &found->board->profiles[found->board->full];
    struct profile sum = *wanted;
    uint32_t alike = 1;

    for (uint32_t i = 0; i < SIM_GPU_INSTANCES; i++) {
        const struct gpu_instance *gi = &found->gpu->instances[i];
        const struct profile *taken = &found->board->profiles[gi->profile];
        if (!gi->used) continue;
        alike += taken == wanted;
        sum.slices += taken->slices;
        sum.copy_engines += taken->copy_engines;
        sum.decoders += taken->decoders;
        sum.encoders += taken->encoders;
        sum.jpegs += taken->jpegs;
        sum.ofas += taken->ofas;
    }
    return alike <= wanted->instances && sum.slices <= found->board->slices &&
           sum.copy_engines <= full->copy_engines && sum.decoders <= full->decoders &&
           sum.encoders <= full->encoders && sum.jpegs <= full->jpegs && sum.ofas <= full->ofas;
}

static int memory_free(const struct gpu *gpu, struct place place)
{
    for (uint32_t i = 0; i < SIM_GPU_INSTANCES; i++) {
        const struct gpu_instance *gi = &gpu->instances[i];
        if (gi->used && gi->start < place.start + place.size && place.start < gi->start + gi->size)
            return 0;
    }
    return 1;
}

/* The lowest id that nobody has. 0 is kept for the profile that takes the whole GPU. */
static uint32_t free_id(const struct gpu *gpu, int whole)
{
    for (uint32_t id = !whole;; id++) {
        uint32_t i = 0;
        while (i < SIM_GPU_INSTANCES && !(gpu->instances[i].used && gpu->instances[i].id == id)) i++;
        if (i == SIM_GPU_INSTANCES) return id;
    }
}

static nvmlReturn_t create(struct call *call, struct found *found, const struct profile *profile,
                           struct place place, nvmlGpuInstance_t *to)
{
    struct gpu_instance *gi = found->gpu->instances;
    const struct profile *full = &found->board->profiles[found->board->full];

    NEED(memory_free(found->gpu, place), NVML_ERROR_INSUFFICIENT_RESOURCES);
    NEED(engines_left(found, profile), NVML_ERROR_INSUFFICIENT_RESOURCES);
    while (gi < found->gpu->instances + SIM_GPU_INSTANCES && gi->used) gi++;
    NEED(gi < found->gpu->instances + SIM_GPU_INSTANCES, NVML_ERROR_INSUFFICIENT_RESOURCES);
    *gi = (struct gpu_instance){
        .used = 1,
        .id = free_id(found->gpu, profile->slices == full->slices),
        .profile = (uint32_t)(profile - found->board->profiles),
        .start = place.start,
        .size = place.size,
        .serial = ++call->now->serial,
    };
    *to = handle_of(OF_GPU_INSTANCE, found->number, gi, NULL);
    tell(call->now, nvmlEventMigConfigChange, 0, found->number, gi->id, SIM_NONE);
    return keep(call);
}

API nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(
    nvmlDevice_t device, unsigned int id, const nvmlGpuInstancePlacement_t *placement,
    nvmlGpuInstance_t *to)
{
    struct found found;
    const struct profile *profile;

    BEGIN(device, WRITES);
    TRY(find_gpu(&call, device, &found));
    NEED(to != NULL && placement != NULL, NVML_ERROR_INVALID_ARGUMENT);
    NEED(found.gpu->mig, NVML_ERROR_NOT_SUPPORTED);
    profile = profile_by_id(found.board, id);
    NEED(profile != NULL, NVML_ERROR_INVALID_ARGUMENT);
    for (uint32_t i = 0; i < profile->placement_count; i++)
        if (profile->placements[i].start == placement->start &&
            profile->placements[i].size == placement->size)
            return create(&call, &found, profile, profile->placements[i], to);
    return NVML_ERROR_INVALID_ARGUMENT;
}

/* The driver's own choice is the highest place that is free. */
API nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned int id,
                                             nvmlGpuInstance_t *to)
{
    struct found found;
    const struct profile *profile;

    BEGIN(device, WRITES);
    TRY(find_gpu(&call, device, &found));
    NEED(to != NULL, NVML_ERROR_INVALID_ARGUMENT);
    NEED(found.gpu->mig, NVML_ERROR_NOT_SUPPORTED);
    profile = profile_by_id(found.board, id);
    NEED(profile != NULL, NVML_ERROR_INVALID_ARGUMENT);
    for (uint32_t i = profile->placement_count; i-- > 0;)
        if (memory_free(found.gpu, profile->placements[i]))
            return create(&call, &found, profile, profile->placements[i], to);
    return NVML_ERROR_INSUFFICIENT_RESOURCES;
}

/* How many more could be made one after the other. */
API nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t device, unsigned int id,
                                                           unsigned int *count)
{
    struct found found;
    const struct profile *profile;

    BEGIN(device, WRITES); /* made in the image that is thrown away */
    TRY(find_gpu(&call, device, &found));
    NEED(count != NULL, NVML_ERROR_INVALID_ARGUMENT);
    profile = profile_by_id(found.board, id);
    NEED(profile != NULL && found.gpu->mig, NVML_ERROR_NOT_SUPPORTED);
    *count = 0;
    for (uint32_t i = 0; i < profile->placement_count; i++) {
        struct gpu_instance *gi = found.gpu->instances;
        if (!memory_free(found.gpu, profile->placements[i]) || !engines_left(&found, profile))
            continue;
        while (gi->used) gi++;
        gi->used = 1;
        gi->profile = (uint32_t)(profile - found.board->profiles);
        gi->start = profile->placements[i].start;
        gi->size = profile->placements[i].size;
        ++*count;
    }
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t handle)
{
    struct found found;

    BEGIN(handle, WRITES);
    TRY(find_gpu_instance(&call, handle, &found));
    for (uint32_t i = 0; i < SIM_COMPUTE_INSTANCES; i++)
        NEED(!found.gi->compute[i].used, NVML_ERROR_IN_USE);
    NEED(!in_use(call.now, found.number, found.gi->id, SIM_NONE), NVML_ERROR_IN_USE);
    tell(call.now, nvmlEventMigConfigChange, 0, found.number, found.gi->id, SIM_NONE);
    memset(found.gi, 0, sizeof *found.gi);
    return keep(&call);
}

API nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned int id,
                                           nvmlGpuInstance_t *to, unsigned int *count)
{
    struct found found;
    const struct profile *profile;

    BEGIN(device, READS);
    TRY(find_gpu(&call, device, &found));
    NEED(to != NULL && count != NULL, NVML_ERROR_INVALID_ARGUMENT);
    NEED(found.gpu->mig, NVML_ERROR_NOT_SUPPORTED);
    profile = profile_by_id(found.board, id);
    NEED(profile != NULL, NVML_ERROR_INVALID_ARGUMENT);
    *count = 0;
    for (uint32_t i = 0; i < SIM_GPU_INSTANCES; i++) {
        const struct gpu_instance *gi = &found.gpu->instances[i];
        if (gi->used && &found.board->profiles[gi->profile] == profile)
            to[(*count)++] = handle_of(OF_GPU_INSTANCE, found.number, gi, NULL);
    }
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned int id,
                                              nvmlGpuInstance_t *to)
{
    struct found found;

    BEGIN(device, READS);
    TRY(find_gpu(&call, device, &found));
    NEED(to != NULL, NVML_ERROR_INVALID_ARGUMENT);
    NEED(found.gpu->mig, NVML_ERROR_NOT_SUPPORTED);
    for (uint32_t i = 0; i < SIM_GPU_INSTANCES; i++) {
        const struct gpu_instance *gi = &found.gpu->instances[i];
        if (!gi->used || gi->id != id) continue;
        *to = handle_of(OF_GPU_INSTANCE, found.number, gi, NULL);
        return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
}

API nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t handle, nvmlGpuInstanceInfo_t *info)
{
    struct found found;

    BEGIN(handle, READS);
    TRY(find_gpu_instance(&call, handle, &found));
    NEED(info != NULL, NVML_ERROR_INVALID_ARGUMENT);
    *info = (nvmlGpuInstanceInfo_t){
        .device = handle_of(OF_GPU, found.number, NULL, NULL),
        .id = found.gi->id,
        .profileId = found.profile->id,
        .placement = {found.gi->start, found.gi->size},
    };
    return NVML_SUCCESS;
}
