/* Who runs on a device, and whether it still lives. */
#include <stdio.h>
#include <string.h>

#include "sim.h"

/* Tell whether the process with that pid began at that tick and has not ended: a driver lets go of
   what a process held when it exits, not when its parent takes note of it. */
static int lives(uint32_t pid, uint64_t begun)
{
    char path[32], line[1024];
    const char *after_name;
    char status;
    unsigned long long tick;
    FILE *file;
    int read;

    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    file = fopen(path, "re");
    if (file == NULL) return 0;
    read = fgets(line, sizeof line, file) != NULL;
    fclose(file);
    after_name = read ? strrchr(line, ')') : NULL;
    if (after_name == NULL) return 0;
    /* Fields 3 and 22 of proc(5): the state and the tick of the start. */
    read = sscanf(after_name,
                  ") %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu",
                  &status, &tick);
    return read == 2 && status != 'Z' && status != 'X' && tick == begun;
}

int process_uses(const struct process *process, uint32_t gpu, uint32_t gi, uint32_t ci)
{
    if (process->pid == 0 || process->gpu != gpu) return 0;
    if (gi != SIM_NONE && process->gpu_instance != gi) return 0;
    if (ci != SIM_NONE && process->compute_instance != ci) return 0;
    return !process->real || lives(process->pid, process->begun);
}

int in_use(const struct machine *machine, uint32_t gpu, uint32_t gi, uint32_t ci)
{
    for (uint32_t i = 0; i < SIM_PROCESSES; i++)
        if (process_uses(&machine->processes[i], gpu, gi, ci)) return 1;
    return 0;
}

uint64_t bytes_used(const struct machine *machine, uint32_t gpu, uint32_t gi)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < SIM_PROCESSES; i++)
        if (process_uses(&machine->processes[i], gpu, gi, SIM_NONE))
            bytes += machine->processes[i].bytes;
    return bytes;
}

static nvmlReturn_t list(struct call *call, nvmlDevice_t device, uint32_t mps, unsigned int *count,
                         nvmlProcessInfo_t *infos)
{
    struct found found;
    uint32_t gi = SIM_NONE, ci = SIM_NONE;
    unsigned int space, living = 0;

    NEED(count != NULL, NVML_ERROR_INVALID_ARGUMENT);
    TRY(find_device(call, device, &found));
    if (found.ci != NULL) gi = found.gi->id, ci = found.ci->id;
    space = infos != NULL ? *count : 0;
    for (uint32_t i = 0; i < SIM_PROCESSES; i++) {
        const struct process *process = &call->now->processes[i];
        if (process->mps != mps || !process_uses(process, found.number, gi, ci)) continue;
        if (living < space)
            infos[living] = (nvmlProcessInfo_t){
                .pid = process->pid,
                .usedGpuMemory = process->bytes,
                .gpuInstanceId = process->gpu_instance,
                .computeInstanceId = process->compute_instance,
            };
        living++;
    }
    *count = living;
    return living > space ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                         nvmlProcessInfo_t *infos)
{
    BEGIN(device, READS);
    return list(&call, device, 0, count, infos);
}

API nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                            nvmlProcessInfo_t *infos)
{
    BEGIN(device, READS);
    return list(&call, device, 1, count, infos);
}

API nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                          nvmlProcessInfo_t *infos)
{
    struct found found;

    (void)infos;
    BEGIN(device, READS);
    TRY(find_device(&call, device, &found));
    NEED(count != NULL, NVML_ERROR_INVALID_ARGUMENT);
    *count = 0;
    return NVML_SUCCESS;
}
