/* The ring of collectives: what is open, what is complete, and the flight recorder's file. */
#include "src/base/file.h"
#include "src/base/mem.h"
#include "src/base/time.h"
#include "src/comm/backend.h"

#include <stdio.h>
#include <stdlib.h>

struct sh_comm_item *sh_comm_item(struct sh_comm *c, int64_t ticket)
{
    return &c->ring[ticket % c->capacity];
}

/* With the lock held. A ticket is the count of collectives so far, so its slot in the ring follows from it. */
int64_t sh_comm_push(struct sh_comm *c, const struct sh_coll *coll)
{
    int64_t ticket = ++c->newest;
    *sh_comm_item(c, ticket) = (struct sh_comm_item){
        .coll = *coll,
        .record = {.ticket = ticket,
                   .kind = coll->kind,
                   .stream = coll->stream,
                   .group = coll->group,
                   .bytes = coll->count * sh_dtype_bytes(coll->dtype),
                   .label = coll->label != NULL ? coll->label : "",
                   .posted_ns = sh_now_ns()},
    };
    return ticket;
}

bool sh_comm_is_complete(struct sh_comm *c, int64_t ticket)
{
    return ticket < c->oldest_open || sh_comm_item(c, ticket)->record.end_ns != 0;
}

/* Collectives of several channels end in any order; oldest_open moves past those that have ended. */
void sh_comm_set_complete(struct sh_comm *c, int64_t ticket)
{
    sh_comm_item(c, ticket)->record.end_ns = sh_now_ns();
    while (c->oldest_open <= c->newest && sh_comm_item(c, c->oldest_open)->record.end_ns != 0)
        c->oldest_open++;
    pthread_cond_broadcast(&c->done);
}

void sh_comm_wait_locked(struct sh_comm *c, int64_t ticket)
{
    if (c->opt.inline_progress && c->ops->wait)
        c->ops->wait(c, ticket);
    while (!sh_comm_is_complete(c, ticket))
        pthread_cond_wait(&c->done, &c->lock);
}

sh_rc sh_comm_wait(struct sh_comm *c, int64_t ticket)
{
    SH_REQUIRE(ticket > 0 && ticket <= c->newest);
    pthread_mutex_lock(&c->lock);
    sh_comm_wait_locked(c, ticket);
    pthread_mutex_unlock(&c->lock);
    return SH_OK;
}

const char *sh_comm_group_name(const struct sh_comm *c, sh_group group)
{
    int row = sh_program_find_group(c->opt.groups, c->opt.n_groups, group);
    return row == SH_NONE ? "unknown" : c->opt.groups[row].name;
}

int sh_comm_group_size(const struct sh_comm *c, sh_group group)
{
    return sh_group_size(&c->mesh->shape, group);
}

int sh_comm_place(const struct sh_comm *c, sh_group group)
{
    return sh_group_index(&c->mesh->shape, group);
}

static double ms_before(int64_t now, int64_t then)
{
    return (double)(now - then) * 1e-6;
}

static void print_time(FILE *f, int64_t now, int64_t then)
{
    if (then == 0)
        fprintf(f, " %12s", "-");
    else
        fprintf(f, " %12.3f", ms_before(now, then));
}

static void print_record(const struct sh_comm *c, FILE *f, int64_t now, const struct sh_coll_record *r)
{
    fprintf(f, "%10lld %-14s %-9s %-9s %12lld", (long long)r->ticket, sh_op_info(r->kind)->name,
            c->opt.streams[r->stream].name, sh_comm_group_name(c, r->group), (long long)r->bytes);
    print_time(f, now, r->posted_ns);
    print_time(f, now, r->start_ns);
    print_time(f, now, r->end_ns);
    fprintf(f, "  %s\n", r->label);
}

/* With the lock held: the ring must not move while it is printed. */
static void print_records(struct sh_comm *c, FILE *f)
{
    int64_t now = sh_now_ns();
    int64_t first = c->newest - c->opt.history + 1;
    fprintf(f, "# rank %d of %d on %s, step %lld, %s\n", c->mesh->rank, c->mesh->world, c->mesh->host,
            (long long)atomic_load(&c->step), atomic_load(&c->doing));
    fprintf(f, "# times: milliseconds before this was written; -: not yet; bytes: of one rank's part\n");
    fprintf(f, "#%9s %-14s %-9s %-9s %12s %12s %12s %12s  %s\n", "ticket", "kind", "stream", "axis", "bytes", "posted",
            "started", "ended", "label");
    for (int64_t t = first > 1 ? first : 1; t <= c->newest; t++)
        print_record(c, f, now, &sh_comm_item(c, t)->record);
}

/* A failure to write is ignored: it must not hide the stall that is being reported. */
void sh_comm_write_flight(struct sh_comm *c)
{
    if (c->opt.report_dir == NULL)
        return;
    char *path = sh_strfmt("%s/rank-%d.flight.txt", c->opt.report_dir, c->mesh->rank);
    FILE *f;
    sh_rc rc = sh_open_output(path, "w", &f);
    free(path);
    if (rc != SH_OK) {
        sh_error_clear(); /* the stall is the news */
        return;
    }
    pthread_mutex_lock(&c->lock);
    print_records(c, f);
    pthread_mutex_unlock(&c->lock);
    fclose(f);
}
