/* What NVIDIA says of cuDNN's attention, in tables: versions with known faults, and on which GPUs the backward has one
 * order, by which kernel. cuDNN itself does not tell: its kernels carry no note about their order. Local; no calls of
 * cuDNN.
 * Source: the support checks of NVIDIA's cudnn-frontend 1.23; Transformer Engine's choice of deterministic kernels. */
#ifndef SH_KERNELS_CUDA_CUDNN_PROMISE_H
#define SH_KERNELS_CUDA_CUDNN_PROMISE_H

#include "src/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SH_CUDNN_KNOBS = 6 };
struct sh_cudnn_knob {
    int type; /* cudnnBackendKnobType_t */
    int64_t value;
};
struct sh_cudnn_engine {
    int64_t index; /* cuDNN's number of a kernel; -1: the first one that cuDNN offers */
    bool linear;   /* its scratch grows with T, not with its square, so a call need not be cut into pieces */
    int n;
    struct sh_cudnn_knob knob[SH_CUDNN_KNOBS];
};

/* Errors: SH_E_USAGE if that version (cudnnGetVersion()) is too old or has known faults in attention; the text says
 * which one to install. */
sh_rc sh_cudnn_check_version(size_t version);

/* The kernel that computes the backward in one order.
 *   capability  of the GPU: 10 x major + minor
 *   engine      out: static
 * Errors: SH_E_USAGE if NVIDIA promises no order for that GPU and version. */
sh_rc sh_cudnn_ordered_backward(int capability, size_t version, const struct sh_cudnn_engine **engine);

/* The sequence length has to be a multiple of this. */
int64_t sh_cudnn_tile(size_t version);

#endif
