#include "io/move/stages.h"

#include "src/base/thread.h"
#include "src/base/time.h"
#include "src/mesh/mesh.h"

#include <stdio.h>
#include <stdlib.h>

void sh_move_stages_open(struct sh_move_stages *s, char *what, double timeout_seconds)
{
    int world;
    sh_mesh_own_mpi();
    sh_mesh_world(&s->rank, &world);
    s->deadline = sh_move_deadline_start(what, timeout_seconds, s->rank);
    free(what);
}

static sh_rc run_alone(struct sh_move_stages *s, const struct sh_move_stage *stage)
{
    int64_t begin = sh_now_ns();
    sh_rc rc = stage->rank0 && s->rank != 0 ? SH_OK : stage->run(s->arg);
    if (s->seconds)
        s->seconds[stage->phase] += sh_seconds_since(begin);
    return rc;
}

/* The deadline watches the ranks that work; time spent waiting for others is not counted against them. */
static sh_rc run_here(struct sh_move_stages *s)
{
    const struct sh_move_stage *stage = &s->stage[s->next++];
    sh_move_deadline_enter(s->deadline, stage->name);
    if (!stage->local)
        sh_move_deadline_wait(s->deadline); /* it meets the other ranks on the way */
    sh_rc rc = run_alone(s, stage);
    sh_move_deadline_wait(s->deadline);
    return sh_agree(rc);
}

sh_rc sh_move_stages_run(struct sh_move_stages *s)
{
    while (s->next < s->n)
        SH_TRY(run_here(s));
    return SH_OK;
}

/* `done` is stored last, so that whoever sees it also sees rc and text. */
static void leave_result(struct sh_move_stages *s, sh_rc rc)
{
    s->rc = rc;
    if (rc != SH_OK)
        snprintf(s->text, sizeof s->text, "%s", sh_error_text());
    sh_move_deadline_rest(s->deadline);
    atomic_store(&s->done, true);
}

static void *work(void *arg)
{
    struct sh_move_stages *s = arg;
    leave_result(s, run_alone(s, &s->stage[s->next]));
    return NULL;
}

/* If no thread can be created, the stage has failed, so that all ranks learn of it when they agree. */
static void start(struct sh_move_stages *s)
{
    atomic_store(&s->done, false);
    sh_move_deadline_enter(s->deadline, s->stage[s->next].name);
    s->started = true;
    sh_rc rc = sh_thread_start(&s->thread, "write a checkpoint in the background", work, s, 0);
    s->joinable = rc == SH_OK; /* s->rc is the thread's from here on */
    if (s->joinable)
        return;
    if (s->give_up)
        s->give_up(s->arg);
    leave_result(s, rc);
}

void sh_move_stages_join(struct sh_move_stages *s)
{
    if (s->joinable)
        pthread_join(s->thread, NULL);
    s->joinable = false;
}

/* All ranks agree on a stage before the next starts. The thread's text first becomes this thread's error. */
static sh_rc finish(struct sh_move_stages *s)
{
    sh_move_stages_join(s);
    s->started = false;
    s->next++;
    return sh_agree(s->rc == SH_OK ? SH_OK : sh_fail(s->rc, "%s", s->text));
}

/* Without `wait` the ranks count the busy ones: none continues before all can. With it each rank joins its own thread,
 * and no count is needed. */
static sh_rc all_done(struct sh_move_stages *s, bool wait, bool *done)
{
    if (wait)
        sh_move_stages_join(s);
    long long busy = !atomic_load(&s->done);
    if (!wait)
        SH_TRY(sh_mesh_sum_i64(&busy, 1));
    *done = busy == 0;
    return SH_OK;
}

/* The ranks meet: are all done with the stage, and with what result? */
static sh_rc meet(struct sh_move_stages *s, bool wait, bool *done)
{
    sh_move_deadline_meet(s->deadline, true);
    sh_rc rc = all_done(s, wait, done);
    if (rc == SH_OK && *done)
        rc = finish(s);
    sh_move_deadline_meet(s->deadline, false);
    return rc;
}

sh_rc sh_move_stages_poll(struct sh_move_stages *s, bool wait, bool *done)
{
    bool passed = true;
    while (s->next < s->n && passed) {
        if (!s->stage[s->next].local) {
            SH_TRY(run_here(s));
            continue;
        }
        if (!s->started)
            start(s);
        SH_TRY(meet(s, wait, &passed));
    }
    *done = s->next == s->n;
    return SH_OK;
}

void sh_move_stages_close(struct sh_move_stages *s)
{
    sh_move_deadline_stop(s->deadline);
}
