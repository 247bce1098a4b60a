/* What the files of src/report share: reading, and the sections of the page. Inside src/report; local. */
#ifndef SH_REPORT_PARTS_H
#define SH_REPORT_PARTS_H

#include "src/report/report.h"

#include <stdio.h>

/* Add the run in `folder` to *r under `name`. Errors as of sh_report_open(). */
sh_rc sh_report_add_run(struct sh_report *r, const char *folder, const char *name);
void sh_report_free_run(struct sh_report_run *run);

/* metrics.jsonl into the steps of *run, and its figures. Errors: SH_E_DATA, "path:line: ...". */
sh_rc sh_report_read_metrics(const char *path, struct sh_report_run *run);

/* Why the run in `folder` ended before its first step, as itself, its job script (FOLDER/chain) or its log beside it
 * (FOLDER.out) say; NULL when none of them does, as of a job that still waits. Freed with free(). */
char *sh_report_why_ended(const char *folder);
/* The same of a run that has done some of its steps: only itself is asked. */
char *sh_report_why_stopped(const char *folder);

/* Find what scales. */
void sh_report_find_series(struct sh_report *r);

/* The sections, in the order of the page. Each writes nothing when it has nothing to show. */
void sh_report_identities(FILE *out, const struct sh_report *r);
void sh_report_notes(FILE *out, const struct sh_report *r);
void sh_report_curves(FILE *out, const struct sh_report *r);
void sh_report_scaling(FILE *out, const struct sh_report *r);
void sh_report_time(FILE *out, const struct sh_report *r);
void sh_report_memory(FILE *out, const struct sh_report *r);
void sh_report_results(FILE *out, const struct sh_report *r);
void sh_report_configs(FILE *out, const struct sh_report *r);

#endif
