/* The order in which emulated threads and blocks run between two barriers (cuda_on_cpu.h). Valid C and C++. */
#ifndef SH_TESTS_GPU_EMULATED_ORDER_OF_THREADS_H
#define SH_TESTS_GPU_EMULATED_ORDER_OF_THREADS_H

#ifdef __cplusplus
extern "C" {
#endif

enum sh_emulated_order { SH_EMULATED_FORWARD, SH_EMULATED_BACKWARD, SH_EMULATED_SHUFFLED, SH_EMULATED_ORDERS };

/* For all launches from now on; forward at first. */
void sh_emulated_set_order(enum sh_emulated_order order);

#ifdef __cplusplus
}
#endif
#endif
