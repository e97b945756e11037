/* ECC, retired memory, field values, and events. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "sim.h"

API nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, nvmlEnableState_t *current,
                                      nvmlEnableState_t *pending)
{
    struct found found;

    BEGIN(device, READS);
    TRY(find_gpu(&call, device, &found));
    NEED(current != NULL && pending != NULL, NVML_ERROR_INVALID_ARGUMENT);
    *current = (nvmlEnableState_t)found.gpu->ecc;
    *pending = (nvmlEnableState_t)found.gpu->ecc_pending;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t type,
                                             nvmlEccCounterType_t since, unsigned long long *count)
{
    struct found found;

    BEGIN(device, READS);
    TRY(find_gpu(&call, device, &found));
    NEED(count != NULL && (unsigned int)type <= NVML_MEMORY_ERROR_TYPE_UNCORRECTED &&
             (unsigned int)since <= NVML_AGGREGATE_ECC,
         NVML_ERROR_INVALID_ARGUMENT);
    NEED(found.gpu->ecc, NVML_ERROR_NOT_SUPPORTED);
    *count = type == NVML_MEMORY_ERROR_TYPE_CORRECTED ? found.gpu->corrected[since]
                                                      : found.gpu->uncorrected[since];
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device,
                                                        nvmlEnableState_t *pending)
{
    struct found found;

    BEGIN(device, READS);
    TRY(find_gpu(&call, device, &found));
    NEED(pending != NULL, NVML_ERROR_INVALID_ARGUMENT);
    *pending = (nvmlEnableState_t)found.gpu->retirement_pending;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *correctable,
                                           unsigned int *uncorrectable, unsigned int *pending,
                                           unsigned int *failed)
{
    struct found found;

    BEGIN(device, READS);
    TRY(find_gpu(&call, device, &found));
    NEED(correctable != NULL && uncorrectable != NULL && pending != NULL && failed != NULL,
         NVML_ERROR_INVALID_ARGUMENT);
    *correctable = found.gpu->remapped_correctable;
    *uncorrectable = found.gpu->remapped_uncorrectable;
    *pending = found.gpu->remap_pending;
    *failed = found.gpu->remap_failed;
    return NVML_SUCCESS;
}

static nvmlReturn_t field_of(const struct found *found, unsigned int field, unsigned int *to)
{
    switch (field) {
    case NVML_FI_DEV_RETIRED_PENDING: *to = found->gpu->retirement_pending; break;
    case NVML_FI_DEV_NVLINK_LINK_COUNT: *to = found->gpu->link_count; break;
    case NVML_FI_DEV_REMAPPED_COR: *to = found->gpu->remapped_correctable; break;
    case NVML_FI_DEV_REMAPPED_UNC: *to = found->gpu->remapped_uncorrectable; break;
    case NVML_FI_DEV_REMAPPED_PENDING: *to = found->gpu->remap_pending; break;
    case NVML_FI_DEV_REMAPPED_FAILURE: *to = found->gpu->remap_failed; break;
    case NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED:
        *to = found->board->profile_count > 0 && !found->board->mode_needs_reset;
        break;
    case NVML_FI_DEV_IS_MIG_MODE_INDEPENDENT_MIG_QUERY_CAPABLE:
        *to = found->board->asked_without_mode;
        break;
    case NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: *to = found->gpu->recovery_action; break;
    default: return NVML_ERROR_NOT_SUPPORTED;
    }
    return NVML_SUCCESS;
}

/* The call succeeds; whether a field could be read is told beside it. */
API nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
    struct found found;

    BEGIN(device, READS);
    TRY(find_gpu(&call, device, &found));
    NEED(values != NULL && count > 0, NVML_ERROR_INVALID_ARGUMENT);
    for (int i = 0; i < count; i++) {
        values[i].valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
        values[i].value.ullVal = 0;
        values[i].nvmlReturn = field_of(&found, values[i].fieldId, &values[i].value.uiVal);
    }
    return NVML_SUCCESS;
}

void tell(struct machine *machine, uint64_t type, uint64_t data, uint32_t gpu, uint32_t gi,
          uint32_t ci)
{
    struct event *event = &machine->event_ring[machine->events++ % SIM_EVENTS];

    *event = (struct event){
        .number = machine->events,
        .type = type,
        .data = data,
        .gpu = gpu,
        .gpu_instance = gi,
        .compute_instance = ci,
    };
}

/* What one set of one process waits for. An event counts for it from its registration on. */
struct nvmlEventSet_st {
    uint64_t wanted[SIM_GPUS];
    uint64_t told; /* the number of the last event that it has looked at */
    int registered;
};

static const uint64_t all_events = nvmlEventTypeSingleBitEccError | nvmlEventTypeDoubleBitEccError |
                                   nvmlEventTypeXidCriticalError | nvmlEventMigConfigChange;

API nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
    BEGIN(NULL, READS);
    NEED(set != NULL, NVML_ERROR_INVALID_ARGUMENT);
    *set = calloc(1, sizeof **set);
    return *set != NULL ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

API nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    BEGIN(NULL, READS);
    free(set);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types)
{
    struct found found;

    BEGIN(device, READS);
    TRY(find_gpu(&call, device, &found));
    NEED(types != NULL, NVML_ERROR_INVALID_ARGUMENT);
    *types = all_events;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types,
                                          nvmlEventSet_t set)
{
    struct found found;

    BEGIN(device, READS);
    TRY(find_gpu(&call, device, &found));
    NEED(set != NULL, NVML_ERROR_INVALID_ARGUMENT);
    NEED((types & ~all_events) == 0, NVML_ERROR_NOT_SUPPORTED);
    if (!set->registered) set->told = call.now->events;
    set->registered = 1;
    set->wanted[found.number] |= types;
    return NVML_SUCCESS;
}

static nvmlReturn_t next_event(nvmlEventSet_t set, nvmlEventData_t *data)
{
    const struct machine *now;

    BEGIN(NULL, READS);
    now = call.now;
    if (now->events > SIM_EVENTS && set->told < now->events - SIM_EVENTS)
        set->told = now->events - SIM_EVENTS; /* the older ones are lost */
    while (set->told < now->events) {
        const struct event *event = &now->event_ring[set->told++ % SIM_EVENTS];
        if ((set->wanted[event->gpu] & event->type) == 0) continue;
        *data = (nvmlEventData_t){
            .device = handle_of(OF_GPU, event->gpu, NULL, NULL),
            .eventType = event->type,
            .eventData = event->data,
            .gpuInstanceId = event->gpu_instance,
            .computeInstanceId = event->compute_instance,
        };
        return NVML_SUCCESS;
    }
    return NVML_ERROR_TIMEOUT;
}

API nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data,
                                     unsigned int milliseconds)
{
    const struct timespec step = {0, 5000000};

    NEED(set != NULL && data != NULL, NVML_ERROR_INVALID_ARGUMENT);
    {
        BEGIN(NULL, READS); /* where a fault of this function strikes */
    }
    for (unsigned int waited = 0;; waited += 5) {
        nvmlReturn_t result = next_event(set, data);
        if (result != NVML_ERROR_TIMEOUT || waited >= milliseconds) return result;
        nanosleep(&step, NULL);
    }
}
