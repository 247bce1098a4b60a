/* What a call of a kernel does to the process that it runs in. Local. */
#ifndef SH_PLUGIN_PROCESS_H
#define SH_PLUGIN_PROCESS_H

/* Call something many times: memory that it keeps, and threads, rounding or subnormal numbers that are other ones after
 * it; what was changed is changed back. As text, NULL: nothing. Memory is counted with glibc only. */
const char *sh_plugin_done_to_process(void (*call)(const void *of), const void *of);

#endif
