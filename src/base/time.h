/* Time for measurements: a clock that only moves forward. Local. */
#ifndef SH_BASE_TIME_H
#define SH_BASE_TIME_H

#include <stdint.h>

/* Nanoseconds since some fixed moment; only differences are meaningful, and only on one host. */
int64_t sh_now_ns(void);

/* Seconds from such a moment to now. */
double sh_seconds_since(int64_t begin_ns);

#endif
