/* Everything that a bug report needs, in one file that anybody may see. Rank 0 writes it; all functions are local.
 *
 * Names of hosts and of the user are replaced, and paths are cut to their last part or left out. Of the environment,
 * only variables of the libraries that a job depends on are written, with a value only if it is a number or plain
 * words. */
#ifndef SH_DOCTOR_REPORT_H
#define SH_DOCTOR_REPORT_H

#include "src/tools/doctor/doctor.h"

#include <stdio.h>

/* Open `path` and write everything that is known before the checks, which may hang: program (about), system, libraries,
 * environment, mesh and configuration. *out is closed with fclose(). Errors: SH_E_DATA. */
sh_rc sh_doctor_report_begin(const struct sh_doctor *d, const char *path, void (*about)(FILE *out), FILE **out);

/* Write the result of one check, flushed. */
void sh_doctor_report_row(const struct sh_doctor *d, FILE *out, const char *name, const char *state, const char *text);

/* Return `text` without private parts: "node0" for the host of node 0, "USER" for the user's name; a word with a slash
 * in it becomes its last part after "(path)/". Freed with free(). n hosts, in the order of the nodes. */
char *sh_doctor_redact(int n, const char *const *hosts, const char *user, const char *text);

/* Whether the value of an environment variable may be shown: at most 64 letters, digits and ",+-_", without the name of
 * a host or the user. */
bool sh_doctor_shown(int n, const char *const *hosts, const char *user, const char *value);

#endif
