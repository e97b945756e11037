/* How GPUs reach the processors and each other. */
#include <string.h>

#include "sim.h"

/* Only a GPU whose memory is a NUMA node of its own has a number here. */
API nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t device, unsigned int *node)
{
    struct found found;

    BEGIN(device, READS);
    TRY(find_gpu(&call, device, &found));
    NEED(node != NULL, NVML_ERROR_INVALID_ARGUMENT);
    return NVML_ERROR_NOT_SUPPORTED;
}

API nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned int words,
                                             unsigned long *nodes, nvmlAffinityScope_t scope)
{
    const unsigned int bits = 8 * sizeof *nodes;
    struct found found;

    (void)scope;
    BEGIN(device, READS);
    TRY(find_gpu(&call, device, &found));
    NEED(nodes != NULL && words > 0, NVML_ERROR_INVALID_ARGUMENT);
    NEED(found.gpu->numa_node != SIM_NONE, NVML_ERROR_NOT_SUPPORTED);
    NEED(found.gpu->numa_node / bits < words, NVML_ERROR_INSUFFICIENT_SIZE);
    memset(nodes, 0, words * sizeof *nodes);
    nodes[found.gpu->numa_node / bits] = 1ul << found.gpu->numa_node % bits;
    return NVML_SUCCESS;
}

static nvmlReturn_t find_pair(struct call *call, nvmlDevice_t one, nvmlDevice_t other,
                              struct found *first, struct found *second)
{
    TRY(find_gpu(call, one, first));
    return find_gpu(call, other, second);
}

API nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t one, nvmlDevice_t other,
                                                     nvmlGpuTopologyLevel_t *level)
{
    struct found first, second;

    BEGIN(one, READS);
    TRY(find_pair(&call, one, other, &first, &second));
    NEED(level != NULL, NVML_ERROR_INVALID_ARGUMENT);
    if (first.number == second.number) *level = NVML_TOPOLOGY_INTERNAL;
    else if (first.gpu->pcie_group == second.gpu->pcie_group) *level = NVML_TOPOLOGY_HOSTBRIDGE;
    else if (first.gpu->numa_node == second.gpu->numa_node) *level = NVML_TOPOLOGY_NODE;
    else *level = NVML_TOPOLOGY_SYSTEM;
    return NVML_SUCCESS;
}

/* A way by NVLink: to a GPU at the other end, or to any that has a link to the same switch. */
static int linked(const struct gpu *one, const struct gpu *other)
{
    for (uint32_t i = 0; i < one->link_count; i++) {
        const struct link *link = &one->links[i];
        if (!link->up) continue;
        if (link->kind == NVML_NVLINK_DEVICE_TYPE_GPU) {
            if (memcmp(&link->remote, &other->pci, sizeof link->remote) == 0) return 1;
            continue;
        }
        for (uint32_t j = 0; j < other->link_count; j++)
            if (other->links[j].up &&
                memcmp(&other->links[j].remote, &link->remote, sizeof link->remote) == 0)
                return 1;
    }
    return 0;
}

/* MIG mode takes NVLink away. */
API nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t one, nvmlDevice_t other,
                                        nvmlGpuP2PCapsIndex_t what, nvmlGpuP2PStatus_t *status)
{
    struct found first, second;

    BEGIN(one, READS);
    TRY(find_pair(&call, one, other, &first, &second));
    NEED(status != NULL && (unsigned int)what < NVML_P2P_CAPS_INDEX_UNKNOWN,
         NVML_ERROR_INVALID_ARGUMENT);
    *status = !first.gpu->mig && !second.gpu->mig && linked(first.gpu, second.gpu)
                  ? NVML_P2P_STATUS_OK
                  : NVML_P2P_STATUS_NOT_SUPPORTED;
    return NVML_SUCCESS;
}

static nvmlReturn_t find_link(struct call *call, nvmlDevice_t device, unsigned int number,
                              struct link **link)
{
    struct found found;

    TRY(find_gpu(call, device, &found));
    NEED(number < SIM_LINKS, NVML_ERROR_INVALID_ARGUMENT);
    NEED(number < found.gpu->link_count, NVML_ERROR_NOT_SUPPORTED);
    *link = &found.gpu->links[number];
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int number,
                                          nvmlEnableState_t *up)
{
    struct link *link;

    BEGIN(device, READS);
    TRY(find_link(&call, device, number, &link));
    NEED(up != NULL, NVML_ERROR_INVALID_ARGUMENT);
    *up = (nvmlEnableState_t)(link->up && !call.now->gpus[handle_read(device).gpu].mig);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int number,
                                                     nvmlPciInfo_t *pci)
{
    struct link *link;

    BEGIN(device, READS);
    TRY(find_link(&call, device, number, &link));
    NEED(pci != NULL, NVML_ERROR_INVALID_ARGUMENT);
    write_pci(pci, link->remote, 0, 0);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int number,
                                                     nvmlIntNvLinkDeviceType_t *kind)
{
    struct link *link;

    BEGIN(device, READS);
    TRY(find_link(&call, device, number, &link));
    NEED(kind != NULL, NVML_ERROR_INVALID_ARGUMENT);
    *kind = (nvmlIntNvLinkDeviceType_t)link->kind;
    return NVML_SUCCESS;
}
