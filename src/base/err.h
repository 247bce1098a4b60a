/* Errors: one return type, one text, one place.
 *
 * A function that can fail returns sh_rc: SH_OK or a class, which is also the exit status of the program. It returns
 * results through its last parameters and leaves those unchanged if it fails. At the point of failure, sh_fail() keeps
 * the text with its file and line and prints nothing; SH_TRY() passes the class up; main prints the text once. The text
 * is kept per thread. All functions here are local. */
#ifndef SH_BASE_ERR_H
#define SH_BASE_ERR_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Clang can mark the type, so that every ignored code gives a warning. GCC can mark only functions, hence the Clang
 * build. */
#ifdef __clang__
#define SH_RC_MUST_BE_USED __attribute__((warn_unused_result))
#else
#define SH_RC_MUST_BE_USED
#endif

enum SH_RC_MUST_BE_USED sh_rc {
    SH_OK = 0,
    SH_E_USAGE = 2,   /* command line, configuration, mesh against ranks */
    SH_E_DATA = 3,    /* an input or output file: missing, damaged, full disk */
    SH_E_MEMORY = 4,  /* does not fit */
    SH_E_COMM = 5,    /* a peer or a collective */
    SH_E_NUMERIC = 6, /* NaN or Inf, and the run cannot continue */
    SH_E_REPLICA = 7, /* replicas differ: memory or a processor has failed */
    SH_E_BUG = 70,    /* an invariant of Sherd itself */
    SH_REQUEUE = 75,  /* not a failure: stopped on request, everything is saved, run again to resume */
};
typedef enum sh_rc sh_rc;

/* Keep a failure's text (printf-like) and return its class.
 *   return sh_fail(SH_E_DATA, "open %s: %s", path, strerror(errno)); */
#define sh_fail(class_, ...) sh_fail_at(__FILE__, __LINE__, (class_), __VA_ARGS__)
sh_rc sh_fail_at(const char *file, int line, sh_rc rc, const char *fmt, ...) __attribute__((format(printf, 4, 5)));

/* Put a prefix in front of the last text, for context on the way up ("checkpoint x.h5: " + text); returns rc. */
sh_rc sh_fail_prefix(sh_rc rc, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* The last text in this thread, "" if there is none. Valid until the next sh_fail(). */
const char *sh_error_text(void);
void sh_error_clear(void);

/* If the class is SH_E_BUG, append the place of the failure ("src/x.c:12") to the kept text; returns rc. For the caller that
 * prints the text; call once. */
sh_rc sh_error_locate(sh_rc rc);

#define SH_TRY(call)               \
    do {                           \
        sh_rc sh_try_rc_ = (call); \
        if (sh_try_rc_ != SH_OK)   \
            return sh_try_rc_;     \
    } while (0)

/* The same for functions that must free something: sets `rc` and jumps to the label `out`. */
#define SH_TRY_OUT(call) \
    do {                 \
        rc = (call);     \
        if (rc != SH_OK) \
            goto out;    \
    } while (0)

/* An invariant of Sherd itself; the returned class is SH_E_BUG. */
#define SH_REQUIRE(cond)                                             \
    do {                                                             \
        if (!(cond))                                                 \
            return sh_fail(SH_E_BUG, "invariant broken: %s", #cond); \
    } while (0)

/* Stop this process and its peers at once: print one line, run the hook (MPI_Abort if MPI is up), exit with rc. For
 * failures inside a training step, while peers wait in collectives; elsewhere return an sh_rc. Does not return. */
void sh_stop(sh_rc rc) __attribute__((noreturn));
void sh_stop_hook(void (*hook)(int exit_status));

#ifdef __cplusplus
}
#endif

#endif
