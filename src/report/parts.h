/* What the files of src/report share: reading, and the sections of the page. Inside src/report; local. */
#ifndef SH_REPORT_PARTS_H
#define SH_REPORT_PARTS_H

#include "src/report/report.h"

#include <stdio.h>

/* Add the run in `folder` to *r under `name`. Errors as of sh_report_open(). */
sh_rc sh_report_add_run(struct sh_report *r, const char *folder, const char *name);
void sh_report_free_run(struct sh_report_run *run);

/* metrics.jsonl into the steps of *run, and its figures; the first `warm_up` steps of a start are not measured. Errors: SH_E_DATA, "path:line: ...". */
sh_rc sh_report_read_metrics(const char *path, int64_t warm_up, struct sh_report_run *run);

/* study.yaml of the folder, where there is one. Errors: SH_E_DATA. */
sh_rc sh_report_read_study(const char *folder, struct sh_report_study *s);
void sh_report_free_study(struct sh_report_study *s);

/* predicted.json of the run in `folder`, where there is one. Errors: SH_E_DATA: what is there is no prediction. */
sh_rc sh_report_read_prediction(const char *folder, struct sh_report_prediction *p);
void sh_report_free_prediction(struct sh_report_prediction *p);

/* Why the run in `folder` ended before its first step, as itself, its job script (FOLDER/chain) or its log beside it
 * (FOLDER.out) say; NULL when none of them does, as of a job that still waits. Freed with free(). */
char *sh_report_why_ended(const char *folder);
/* The same of a run that has done some of its steps: only itself is asked. */
char *sh_report_why_stopped(const char *folder);
/* What FOLDER/chain says, the file of the job scripts: why it starts the run no more, "" while it may; NULL: no script. */
char *sh_report_said_by_script(const char *folder);
/* over.c: why a run with steps left will do none of them; NULL: it goes on, waits to be started, or nobody can tell. Its job
 * script says that it has given up; or, without a script, progress.json has an exit status, or names a process of this host
 * that is gone; or none of its files has changed for 15 minutes (a day where a script may start it again) and for ten times
 * its longest step. Freed with free(). */
char *sh_report_why_over(const char *folder, const struct sh_report_run *run);

/* Find what scales. */
void sh_report_find_series(struct sh_report *r);

/* Whether two runs, of one report or of two, do the same work on equal ranks. */
bool sh_report_same_point(const struct sh_report_run *a, const struct sh_report_run *b);

/* Whether two runs differ in how they are sharded, and in nothing else that changes the work of a step. */
bool sh_report_same_but_sharding(const struct sh_report_run *a, const struct sh_report_run *b);

/* Whether a run of the report waited for moves between memory and a file. */
bool sh_report_offloads(const struct sh_report *r);

/* The median of n values, which are sorted; 0 of none. */
double sh_report_median(int n, double *values);

/* The sections, in the order of the page. Each writes nothing when it has nothing to show. */
void sh_report_identities(FILE *out, const struct sh_report *r);
void sh_report_curves(FILE *out, const struct sh_report *r);
void sh_report_scaling(FILE *out, const struct sh_report *r);
void sh_report_flags(FILE *out, const struct sh_report *r);
void sh_report_equals(FILE *out, const struct sh_report *r);
void sh_report_predictions(FILE *out, const struct sh_report *r);
void sh_report_reach(FILE *out, const struct sh_report *r);
void sh_report_time(FILE *out, const struct sh_report *r);
void sh_report_memory(FILE *out, const struct sh_report *r);
void sh_report_results(FILE *out, const struct sh_report *r);
void sh_report_configs(FILE *out, const struct sh_report *r);

#endif
