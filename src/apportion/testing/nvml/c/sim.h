/* Inside the simulated driver: calls, handles, and what is found by them. */
#ifndef SIM_H
#define SIM_H

#include <stddef.h>

#include "state.h"
#include "wire.h"

#define API __attribute__((visibility("default")))
#define TRY(call)                                 \
    do {                                          \
        nvmlReturn_t tried_ = (call);             \
        if (tried_ != NVML_SUCCESS) return tried_; \
    } while (0)
#define NEED(condition, error)       \
    do {                             \
        if (!(condition)) return (error); \
    } while (0)
#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

/* One call of the library: the file is locked from its beginning to its end. */
struct call {
    const struct state *file;
    struct machine *now; /* what it reads; where it changes anything, an image that it may change */
    struct fault fault; /* what goes wrong with it, all 0 where nothing does */
    int locked, writes;
};

enum access { READS, WRITES };

/* A handle has no memory behind it: what it names is packed into it, and looked up at each call. */
enum handle_kind { OF_GPU = 1, OF_MIG_DEVICE, OF_GPU_INSTANCE, OF_COMPUTE_INSTANCE };
struct handle {
    enum handle_kind kind;
    uint32_t gpu, gpu_instance, compute_instance, serial;
};
struct handle handle_read(const void *handle);
void *handle_of(enum handle_kind kind, uint32_t gpu, const struct gpu_instance *gi,
                const struct compute_instance *ci);

/* Every exported function begins with BEGIN and ends with a return: leaving it ends the call. One
   that changed something returns keep(&call); with any other end, nothing has changed. */
#define BEGIN(handle, access)                                        \
    struct call call __attribute__((cleanup(call_end))) = {0};       \
    TRY(call_begin(&call, __func__, handle_read(handle).gpu, access))
nvmlReturn_t call_begin(struct call *call, const char *function, uint32_t gpu, enum access access);
nvmlReturn_t keep(struct call *call);
void call_end(struct call *call);

/* Finding what a handle names. INVALID_ARGUMENT for another kind of handle, or where it is gone. */
struct found {
    struct gpu *gpu;
    const struct board *board;
    uint32_t number; /* of the GPU */
    struct gpu_instance *gi;
    struct compute_instance *ci;
    const struct profile *profile; /* of the GPU instance */
};
nvmlReturn_t find_gpu(struct call *call, nvmlDevice_t device, struct found *found);
nvmlReturn_t find_device(struct call *call, nvmlDevice_t device, struct found *found);
nvmlReturn_t find_gpu_instance(struct call *call, nvmlGpuInstance_t handle, struct found *found);
nvmlReturn_t find_compute_instance(struct call *call, nvmlComputeInstance_t handle,
                                   struct found *found);

const struct profile *profile_by_id(const struct board *board, uint32_t id);

/* Processes: those of a GPU, of a part of it (NONE: of all parts), that still live. */
int process_uses(const struct process *process, uint32_t gpu, uint32_t gi, uint32_t ci);
int in_use(const struct machine *machine, uint32_t gpu, uint32_t gi, uint32_t ci);
uint64_t bytes_used(const struct machine *machine, uint32_t gpu, uint32_t gi);

void tell(struct machine *machine, uint64_t type, uint64_t data, uint32_t gpu, uint32_t gi,
          uint32_t ci);
void clear_instances(struct gpu *gpu);
nvmlReturn_t copy_text(char *to, unsigned int length, const char *text);
void write_pci(nvmlPciInfo_t *to, struct pci pci, uint32_t device_id, uint32_t subsystem_id);

#endif
