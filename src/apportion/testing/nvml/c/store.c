/* The state file: mapped, locked, changed whole or not at all; and the faults that are asked for. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "sim.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct state *file;
static int descriptor = -1;
static pid_t opener; /* a lock is shared with a child made by fork, which must open the file anew */
static unsigned int initialised;

static void close_file(void)
{
    if (file != NULL) munmap(file, sizeof *file);
    if (descriptor >= 0) close(descriptor);
    file = NULL;
    descriptor = -1;
}

static nvmlReturn_t open_file(void)
{
    const char *path = getenv("APPORTION_NVML_STATE");
    struct stat status;
    void *mapped;

    close_file();
    NEED(path != NULL, NVML_ERROR_DRIVER_NOT_LOADED);
    descriptor = open(path, O_RDWR | O_CLOEXEC);
    NEED(descriptor >= 0, errno == EACCES ? NVML_ERROR_NO_PERMISSION : NVML_ERROR_DRIVER_NOT_LOADED);
    NEED(fstat(descriptor, &status) == 0 && status.st_size == (off_t)sizeof *file,
         NVML_ERROR_LIB_RM_VERSION_MISMATCH);
    mapped = mmap(NULL, sizeof *file, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    NEED(mapped != MAP_FAILED, NVML_ERROR_MEMORY);
    file = mapped;
    NEED(file->magic == SIM_MAGIC && file->layout == SIM_LAYOUT, NVML_ERROR_LIB_RM_VERSION_MISMATCH);
    opener = getpid();
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    nvmlReturn_t opened = NVML_SUCCESS;

    (void)flags;
    pthread_mutex_lock(&mutex);
    if (initialised == 0) opened = open_file();
    if (opened == NVML_SUCCESS && file->images[file->current].driver_gone)
        opened = NVML_ERROR_DRIVER_NOT_LOADED;
    if (opened == NVML_SUCCESS) initialised++;
    else if (initialised == 0) close_file();
    pthread_mutex_unlock(&mutex);
    return opened;
}

API nvmlReturn_t nvmlInit(void) { return nvmlInitWithFlags(0); }

API nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

API nvmlReturn_t nvmlShutdown(void)
{
    nvmlReturn_t result = NVML_ERROR_UNINITIALIZED;

    pthread_mutex_lock(&mutex);
    if (initialised > 0) {
        result = NVML_SUCCESS;
        if (--initialised == 0) close_file();
    }
    pthread_mutex_unlock(&mutex);
    return result;
}

static struct fault fault_of(const char *function, uint32_t gpu)
{
    for (struct fault *each = file->faults; each < file->faults + SIM_FAULTS; each++) {
        if (strcmp(each->function, function) != 0) continue;
        if (each->gpu != SIM_NONE && each->gpu != gpu) continue;
        if (each->seen++ < each->after) continue;
        if (each->times != 0 && each->hits >= each->times) continue;
        each->hits++;
        return *each;
    }
    return (struct fault){0};
}

static void wait_for(uint32_t milliseconds)
{
    struct timespec left = {milliseconds / 1000, (long)(milliseconds % 1000) * 1000000};

    while (nanosleep(&left, &left) != 0 && errno == EINTR) continue;
}

static void die_if(const struct fault *fault, uint32_t where)
{
    if (fault->kill == where) kill(getpid(), SIGKILL);
}

static nvmlReturn_t lock(struct call *call)
{
    pthread_mutex_lock(&mutex);
    call->locked = 1;
    NEED(initialised > 0, NVML_ERROR_UNINITIALIZED);
    if (opener != getpid()) TRY(open_file());
    while (flock(descriptor, LOCK_EX) != 0) NEED(errno == EINTR, NVML_ERROR_UNKNOWN);
    return NVML_SUCCESS;
}

static void unlock(struct call *call)
{
    if (!call->locked) return;
    if (descriptor >= 0) flock(descriptor, LOCK_UN);
    call->locked = 0;
    pthread_mutex_unlock(&mutex);
}

nvmlReturn_t call_begin(struct call *call, const char *function, uint32_t gpu, enum access access)
{
    TRY(lock(call));
    call->fault = fault_of(function, gpu);
    die_if(&call->fault, SIM_KILL_BEFORE);
    if (call->fault.delay_ms != 0) { /* others are not kept waiting */
        unlock(call);
        wait_for(call->fault.delay_ms);
        TRY(lock(call));
    }
    if (call->fault.result != NVML_SUCCESS) return (nvmlReturn_t)call->fault.result;
    NEED(!file->images[file->current].driver_gone, NVML_ERROR_DRIVER_NOT_LOADED);
    call->file = file;
    call->writes = access == WRITES;
    call->now = &file->images[file->current];
    if (call->writes) {
        struct machine *spare = &file->images[!file->current];
        memcpy(spare, call->now, sizeof *spare);
        call->now = spare;
    }
    return NVML_SUCCESS;
}

nvmlReturn_t keep(struct call *call)
{
    die_if(&call->fault, SIM_KILL_WHILE);
    __atomic_store_n(&file->current, !file->current, __ATOMIC_SEQ_CST);
    die_if(&call->fault, SIM_KILL_AFTER);
    return NVML_SUCCESS;
}

void call_end(struct call *call) { unlock(call); }
