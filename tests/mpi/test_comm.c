/* Collectives on channels against plain loops: every kind, type and group, overlap, order, bits, memory. */
#include "src/base/clones.h"
#include "src/base/mem.h"
#include "src/base/time.h"
#include "src/comm/comm.h"
#include "src/mesh/segment.h"
#include "tests/mpi/mpitest.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static struct sh_mesh *mesh;
static struct sh_comm *comm;

/* Hold back the first of the two rounds that a direct collective has in flight: its requests appear incomplete until
 * `until` requests of the other round are complete. Set while nothing runs. The library's calls arrive here because
 * MPI's own functions are weak symbols. */
static int receives; /* parts of large collectives that arrived as messages */
static int barriers;
static int looks; /* tests of requests */
static struct {
    int until;          /* 0: no delay */
    int seen, per_slot; /* completed requests of the other slot; number of requests in a slot */
    MPI_Request *first; /* of the slot held back; NULL: none yet */
} delay;

/* Count messages, and those that leave a node of that many ranks, if the group is the world. */
static struct {
    int node;
    long long n, bytes, left, left_bytes;
} sent;

int MPI_Isend(const void *at, int count, MPI_Datatype type, int to, int tag, MPI_Comm of, MPI_Request *request)
{
    bool leaves = sent.node > 0 && to / sent.node != test_rank() / sent.node;

    sent.n++;
    sent.bytes += count;
    sent.left += leaves;
    sent.left_bytes += leaves ? count : 0;
    return PMPI_Isend(at, count, type, to, tag, of, request);
}

int MPI_Irecv(void *at, int count, MPI_Datatype type, int source, int tag, MPI_Comm of, MPI_Request *request)
{
    if (delay.until > 0 && delay.first == NULL)
        delay.first = request;
    receives++;
    return PMPI_Irecv(at, count, type, source, tag, of, request);
}

int MPI_Ibarrier(MPI_Comm of, MPI_Request *request)
{
    barriers++;
    return PMPI_Ibarrier(of, request);
}

/* Only one in this many tests of a request is really made; the others report that it is not complete. 0: all are
 * made. */
static unsigned lazy, seed = 1;

int MPI_Test(MPI_Request *request, int *flag, MPI_Status *status)
{
    looks++;
    if (lazy > 0 && *request != MPI_REQUEST_NULL && rand_r(&seed) % lazy != 0) {
        *flag = 0;
        return MPI_SUCCESS;
    }
    bool held = delay.first != NULL && request >= delay.first && request < delay.first + delay.per_slot;
    if (held && delay.seen < delay.until) {
        *flag = 0;
        return MPI_SUCCESS;
    }
    int rc = PMPI_Test(request, flag, status);
    delay.seen += delay.until > 0 && !held && *flag;
    return rc;
}

/* Every group that training has, in each stream. */
enum { GROUPS = 4, STREAMS = 1u << SH_STREAM_GATHER | 1u << SH_STREAM_REDUCE | 1u << SH_STREAM_REPLICATE };
static struct sh_group_use groups[GROUPS];
static int ranks_per_node; /* ranks that communicate through memory, in two levels; 0: only messages */

static bool in_mpi; /* the next communicators wait inside MPI */
static const char *backend;
static const struct sh_device *device;
static const struct sh_program *program; /* whose collectives NCCL runs once */

static void create_comm(const struct sh_group_use *use, int n, int history)
{
    struct sh_comm_options opt = {.timeout_seconds = in_mpi ? 0 : 600,
                                  .inline_progress = in_mpi,
                                  .history = history,
                                  .groups = use,
                                  .n_groups = n,
                                  .streams = sh_streams,
                                  .n_streams = SH_STREAMS,
                                  .ranks_per_node = ranks_per_node,
                                  .levels_above = 1,
                                  .backend = backend,
                                  .device = device,
                                  .program = program};
    for (int i = 0; i < n; i++)
        CHECK_OK(sh_mesh_open(mesh, use[i].axes));
    CHECK_OK(sh_comm_create(mesh, &opt, &comm));
}

static void open_comm(int shard, int inner, int history)
{
    struct sh_mesh_request req = test_request(shard, inner);
    CHECK_OK(sh_mesh_create(&req, &mesh));
    const struct sh_group_use all[GROUPS] = {{"shard", mesh->shape.shard, STREAMS},
                                             {"replicate", mesh->shape.replicate, STREAMS},
                                             {"inner", mesh->shape.inner, STREAMS},
                                             {"world", sh_group_world(&mesh->shape), STREAMS}};
    memcpy(groups, all, sizeof groups);
    create_comm(groups, GROUPS, history);
}

static void close_comm(void)
{
    sh_comm_destroy(comm);
    sh_mesh_destroy(mesh);
}

static int dups; /* duplicated communicators: one per channel, and one for the stall watch */

int MPI_Comm_dup(MPI_Comm of, MPI_Comm *to)
{
    dups++;
    return PMPI_Comm_dup(of, to);
}

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 31)) * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9u;
    return x ^ (x >> 32);
}

/* Element i of world rank `rank`: magnitudes differ so much that each order of summation gives different bits. Words of
 * 32 bits, since processors without AVX-512 multiply no vectors of longer ones. */
static double value(int salt, int rank, int64_t i)
{
    uint32_t bits = (uint32_t)salt * 1000003u + (uint32_t)rank * 7919u + (uint32_t)i * 104729u + 1;
    bits = (bits ^ (bits >> 15)) * 0x9e3779b9u;
    bits = (bits ^ (bits >> 13)) * 0xbf58476du;
    bits ^= bits >> 16;
    double scale = 0.0012345678901234567 * (double)(int)(bits & 1) - 1.2345678901234567e-9; /* no branch */
    return (double)(int32_t)bits * scale;
}

enum { BLOCK = 256 }; /* elements made or compared at a time, which is most of the work here */

/* Elements of a trial: first, first + step, ... */
struct row {
    int salt;
    int64_t first, step;
    int n; /* at most BLOCK */
};

static int64_t element(const struct row *r, int i)
{
    return r->first + i * r->step;
}

static sh_bf16 to_bf16(double v)
{
    return sh_f32_to_bf16((float)v);
}

#define PACK(type, convert)                     \
    for (int i = 0; i < n; i++)                 \
        ((type *)out)[i] = (type)convert(v[i]); \
    break

/* A gather moves bits: for types that are never summed, any bits will do. */
static void pack(enum sh_dtype t, const double *v, int n, void *out)
{
    switch (t) {
    case SH_F32: PACK(float, );
    case SH_F64: PACK(double, );
    case SH_BF16: PACK(sh_bf16, to_bf16);
    case SH_I32: PACK(int32_t, );
    case SH_U8: PACK(uint8_t, (int32_t));
    case SH_I16:
    case SH_F16: PACK(int16_t, (int64_t));
    default: PACK(int64_t, );
    }
}

SH_CLONES static void values_of(const struct row *r, int rank, double *v)
{
#pragma omp simd
    for (int i = 0; i < r->n; i++)
        v[i] = value(r->salt, rank, element(r, i));
}

static bool same_row(enum sh_dtype t, const char *a, const struct row *r, int64_t offset, const double *v)
{
    char want[BLOCK * sizeof(double)];
    size_t size = (size_t)sh_dtype_bytes(t);
    pack(t, v, r->n, want);
    if (r->step == 1)
        return memcmp(a + (size_t)(r->first - offset) * size, want, (size_t)r->n * size) == 0;
    for (int i = 0; i < r->n; i++)
        if (memcmp(a + (size_t)(element(r, i) - offset) * size, want + (size_t)i * size, size) != 0)
            return false;
    return true;
}

/* Round to the type in which values are kept, and in which they are summed. */
static void store(enum sh_dtype t, double *v, int n)
{
    for (int i = 0; i < n && t == SH_BF16; i++)
        v[i] = (double)sh_bf16_to_f32(sh_f32_to_bf16((float)v[i]));
    for (int i = 0; i < n && t == SH_F32; i++)
        v[i] = (double)(float)v[i];
}

/* The ranks of a group, in the order of their places. */
struct members {
    int n, rank[64];
};

static struct members members_of(sh_group group)
{
    struct members m = {.n = sh_group_size(&mesh->shape, group)};
    CHECK(m.n <= 64);
    for (int i = 0; i < m.n && i < 64; i++)
        m.rank[i] = sh_group_member(&mesh->shape, group, i);
    return m;
}

/* The sums of a row over n members of a group, by the tree of src/comm/sum.h, in the type of the reduction: bf16 is
 * summed in f32. */
static void tree_of(enum sh_dtype t, const int *rank, int n, const struct row *r, double *sum)
{
    double right[BLOCK];
    int left = 1;
    if (n == 1) {
        values_of(r, *rank, sum);
        store(t, sum, r->n);
        return;
    }
    while (left * 2 < n)
        left *= 2;
    tree_of(t, rank, left, r, sum);
    tree_of(t, rank + left, n - left, r, right);
    for (int i = 0; i < r->n; i++)
        sum[i] = t == SH_F64 ? sum[i] + right[i] : (double)(float)(sum[i] + right[i]);
}

/* Buffers come from the segment while there is one: at the same place on all ranks, because all make the same
 * requests. */
static struct sh_comm_segment segment;
static int64_t taken;

static void *buffer(enum sh_dtype t, int64_t elems)
{
    if (!segment.base)
        return sh_calloc((size_t)elems, (size_t)sh_dtype_bytes(t));
    char *at = segment.peers + segment.rank * segment.peer_bytes + taken;
    taken += (elems * sh_dtype_bytes(t) + 63) / 64 * 64;
    CHECK(taken <= segment.peer_bytes);
    return at;
}

/* Fill elements from `first` on; `at` is where element 0 would be. */
static void fill(enum sh_dtype t, void *at, int64_t first, int64_t n, int salt)
{
    double v[BLOCK];
    for (int64_t done = 0; done < n; done += BLOCK) {
        struct row r = {salt, first + done, 1, (int)(n - done < BLOCK ? n - done : BLOCK)};
        values_of(&r, mesh->rank, v);
        pack(t, v, r.n, (char *)at + r.first * sh_dtype_bytes(t));
    }
}

/* One collective with its buffers, from start to check. */
struct trial {
    struct sh_coll coll;
    void *send, *recv;
    int salt;
    int64_t ticket;
};

static int64_t total(const struct sh_coll *c)
{
    return c->count * sh_group_size(&mesh->shape, c->group);
}

static void prepare(struct trial *t, bool in_place)
{
    struct sh_coll *c = &t->coll;
    int64_t mine = sh_group_index(&mesh->shape, c->group) * c->count, all = total(c);
    size_t size = (size_t)sh_dtype_bytes(c->dtype);
    t->send = t->recv = NULL;
    if (c->kind == SH_OP_ALL_TO_ALL) {
        t->send = buffer(c->dtype, all);
        t->recv = buffer(c->dtype, all);
        fill(c->dtype, t->send, 0, all, t->salt);
    } else if (c->kind == SH_OP_ALL_REDUCE) {
        t->recv = buffer(c->dtype, c->count);
        fill(c->dtype, t->recv, 0, c->count, t->salt);
    } else if (c->kind == SH_OP_REDUCE_SCATTER) {
        t->send = buffer(c->dtype, all);
        fill(c->dtype, t->send, 0, all, t->salt);
        t->recv = in_place ? (char *)t->send + (size_t)mine * size : buffer(c->dtype, c->count);
    } else {
        t->recv = buffer(c->dtype, all);
        t->send = (char *)t->recv + (size_t)mine * size;
        if (!in_place)
            t->send = buffer(c->dtype, c->count);
        fill(c->dtype, in_place ? t->recv : (char *)t->send - (size_t)mine * size, mine, c->count, t->salt);
    }
    c->send = t->send;
    c->recv = t->recv;
}

/* Of more than 65,536 elements every seventh is checked, because checking takes longer than sending; with SHERD_LONG
 * all. */
static int64_t stride(int64_t count)
{
    return count > 1 << 16 && !getenv("SHERD_LONG") ? 7 : 1;
}

/* Check `count` elements from `first` on, which is at `at`: the sums over n ranks, or the values of the only rank. The
 * last element, which is in a ragged round, is always checked. */
static void check_part(const struct trial *t, const char *at, int64_t first, const int *rank, int n)
{
    int64_t count = t->coll.count, step = stride(count);
    double expected[BLOCK];
    for (int64_t i = (count - 1) % step; i < count; i += step * BLOCK) {
        int64_t left = (count - 1 - i) / step + 1;
        struct row r = {t->salt, first + i, step, (int)(left < BLOCK ? left : BLOCK)};
        tree_of(t->coll.dtype, rank, n, &r, expected);
        CHECK(same_row(t->coll.dtype, at, &r, first, expected));
    }
}

static void check_result(const struct trial *t)
{
    const struct sh_coll *c = &t->coll;
    struct members m = members_of(c->group);
    int64_t bytes = c->count * sh_dtype_bytes(c->dtype);
    bool moves = c->kind == SH_OP_ALL_GATHER || c->kind == SH_OP_ALL_TO_ALL;
    int64_t mine = sh_group_index(&mesh->shape, c->group);
    for (int owner = 0; owner < m.n && moves; owner++)
        check_part(t, (char *)t->recv + owner * bytes, (c->kind == SH_OP_ALL_TO_ALL ? mine : owner) * c->count,
                   &m.rank[owner], 1);
    if (!moves)
        check_part(t, t->recv, c->kind == SH_OP_REDUCE_SCATTER ? sh_group_index(&mesh->shape, c->group) * c->count : 0,
                   m.rank, m.n);
}

/* In place, one of the two buffers is inside the other and is not freed. */
static void drop(struct trial *t)
{
    int64_t mine = sh_group_index(&mesh->shape, t->coll.group) * t->coll.count * sh_dtype_bytes(t->coll.dtype);
    char *send = t->send, *recv = t->recv;
    if (segment.base) {
        sh_mesh_barrier(); /* others may still be reading theirs */
        taken = 0;
        return;
    }
    if (t->coll.kind == SH_OP_ALL_GATHER && send == recv + mine)
        send = NULL;
    else if (t->coll.kind == SH_OP_REDUCE_SCATTER && recv == send + mine)
        recv = NULL;
    free(send);
    free(recv);
}

static struct trial make_trial(enum sh_op_kind kind, sh_group group, enum sh_dtype dtype, int64_t count, int salt)
{
    return (struct trial){
        .coll =
            {.kind = kind, .stream = SH_STREAM_GATHER, .group = group, .dtype = dtype, .count = count, .label = "test"},
        .salt = salt,
    };
}

static void run_trial(struct trial t, bool in_place)
{
    prepare(&t, in_place);
    CHECK_OK(sh_comm_start(comm, &t.coll, &t.ticket));
    CHECK_OK(sh_comm_wait(comm, t.ticket));
    check_result(&t);
    drop(&t);
}

static const enum sh_op_kind kinds[] = {SH_OP_ALL_GATHER, SH_OP_REDUCE_SCATTER, SH_OP_ALL_REDUCE, SH_OP_ALL_TO_ALL};

/* Sizes around the limits of the algorithms: a part of up to 4 KiB is small, a round is 256 KiB. */
static const int64_t counts[] = {0, 1, 2, 3, 63, 255, 257, 1023, 1024, 1025, 4099, 65537};
enum { N_KINDS = 4, N_COUNTS = sizeof counts / sizeof counts[0] };

/* Whether a type represents its width: to a gather, a type is just a number of bytes. */
static bool is_width(int t)
{
    return t == SH_U8 || t == SH_BF16 || t == SH_F32 || t == SH_F64;
}

/* An all-reduce is always in place, an all-to-all never. The other kinds at the largest size, whose elements are most
 * of the work here, take one way each, alternating, and no second type of the same width. */
static bool has_way(int k, int t, int n, int in_place)
{
    if (kinds[k] == SH_OP_ALL_REDUCE)
        return in_place;
    if (kinds[k] == SH_OP_ALL_TO_ALL)
        return !in_place && (n < N_COUNTS - 1 || is_width(t));
    return n < N_COUNTS - 1 || (is_width(t) && (k + t) % 2 == in_place);
}

static void run_group(sh_group group)
{
    for (int k = 0; k < N_KINDS; k++)
        for (int t = 0; t < SH_DTYPES; t++)
            for (int n = 0; n < N_COUNTS; n++)
                for (int in_place = 0; in_place < 2; in_place++)
                    if (has_way(k, t, n, in_place) && (kinds[k] == SH_OP_ALL_GATHER || kinds[k] == SH_OP_ALL_TO_ALL ||
                                                       t == SH_F32 || t == SH_F64 || t == SH_BF16))
                        run_trial(make_trial(kinds[k], group, (enum sh_dtype)t, counts[n], n + 17 * t), in_place);
}

static void test_every_kind(void)
{
    for (int shard = 1; shard <= test_world(); shard++) {
        if (test_world() % shard != 0)
            continue;
        open_comm(shard, shard % 2 == 0 ? 2 : 1, 16);
        CHECK(strcmp(sh_comm_name(comm), test_world() == 1 ? "self" : "mpi") == 0);
        for (int g = 0; g < GROUPS - (shard > 1); g++) /* all ranks only once: the same group on each mesh */
            run_group(groups[g].axes);
        close_comm();
    }
    test_end("every kind, type, group and size");
}

enum { GROUP_BYTES = 1 << 20, PEER_BYTES = 16 << 20, MEBIBYTE_ELEMS = (1 << 20) / 4 /* in f32 */ };

static void open_segment(void)
{
    int world = test_world(), fd;
    int64_t bytes = (int64_t)world * (GROUP_BYTES + PEER_BYTES);
    CHECK_OK(sh_segment_create(mesh, world, bytes, &fd));
    segment.base = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(segment.base != MAP_FAILED);
    CHECK(*(int64_t *)(void *)segment.base == 0);
    close(fd);
    segment.peers = segment.base + (int64_t)world * GROUP_BYTES;
    segment.peer_bytes = PEER_BYTES;
    segment.ranks = world;
    segment.rank = mesh->rank;
    sh_comm_set_segment(comm, &segment);
}

static void close_segment(void)
{
    munmap(segment.base, (size_t)(segment.ranks * (int64_t)(GROUP_BYTES + PEER_BYTES)));
    memset(&segment, 0, sizeof segment);
}

/* --- parts that are not equal --- */

/* Rows that the rank at place i of n has for the one at place j: of every pattern some are 0; a row is ROW elements. */
enum { ROW = 24, UNEVEN_RANKS = 16, PATTERNS = 5 };

static int32_t rows_of(int pattern, int i, int j, int n)
{
    switch (pattern) {
    case 0: return 0;
    case 1: return (i * 7 + j * 3) % 5;                               /* a few rows, in one round */
    case 2: return j == n - 1 ? 3000 + 17 * i : 0;                    /* all for the last */
    case 3: return i == n / 2 && j == 0 ? 12001 : i == j;             /* one large part, of many rounds */
    default: return (int32_t)(mix((uint64_t)(i * n + j)) % 3 * 2750); /* rounds end at different ranks */
    }
}

/* Forms of the same exchange; at home, rows have others between them, and go back there in the end. There, those of a
 * rank for itself may stay. */
enum { FORM_COUNTED, FORM_HOME, FORM_OTHERS, FORMS };

struct uneven {
    struct trial t;
    struct sh_coll_parts parts;
    int64_t from[UNEVEN_RANKS];
    int32_t rows[UNEVEN_RANKS * UNEVEN_RANKS], at[UNEVEN_RANKS * UNEVEN_RANKS];
    int64_t received;
};

/* The first of those rows among all of rank i. */
static int32_t first_row(int pattern, int form, int i, int j, int n)
{
    int32_t row = 0;

    for (int k = 0; k < j; k++)
        row += rows_of(pattern, i, k, n) + (form == FORM_COUNTED ? 0 : (i + k) % 3);
    return row;
}

static void count_rows(struct uneven *u, int pattern, int form, int n, int rank)
{
    int64_t most = 0, home = 0, room = 0;

    for (int i = 0; i < n; i++) {
        int64_t in = 0, out = first_row(pattern, form, i, n, n);

        for (int j = 0; j < n; j++) {
            u->rows[i * n + j] = rows_of(pattern, i, j, n);
            u->at[i * n + j] = u->rows[i * n + j] ? first_row(pattern, form, i, j, n) : -1;
            most = u->rows[i * n + j] > most ? u->rows[i * n + j] : most;
            in += rows_of(pattern, j, i, n);
        }
        home = out > home ? out : home;
        room = in > room ? in : room;
        u->from[i] = (int64_t)rows_of(pattern, i, rank, n) * ROW;
        u->received += u->from[i];
    }
    u->t.coll.count = most * ROW;
    u->parts = (struct sh_coll_parts){.rows = u->rows,
                                      .at = form == FORM_COUNTED ? NULL : u->at,
                                      .others = form == FORM_OTHERS,
                                      .row_elems = ROW,
                                      .send_room = home * ROW,
                                      .recv_room = room * ROW};
}

/* Element i of what a rank sends is value(salt, rank, i), wherever it goes. */
static void check_uneven(const struct uneven *u, int pattern, int form)
{
    const struct sh_coll *c = &u->t.coll;
    struct members m = members_of(c->group);
    int mine = sh_group_index(&mesh->shape, c->group), size = sh_dtype_bytes(c->dtype);
    char *at = u->t.recv;
    double expected[BLOCK];

    for (int i = 0; i < m.n; i++) {
        int64_t begin = (int64_t)first_row(pattern, form, i, mine, m.n) * ROW;

        for (int64_t k = 0; k < u->from[i] * size && i == mine && form == FORM_OTHERS; k++)
            CHECK(at[k] == 0x5a);
        for (int64_t k = 0; k < u->from[i] && (i != mine || form != FORM_OTHERS); k += BLOCK) {
            struct row r = {u->t.salt, begin + k, 1, (int)(u->from[i] - k < BLOCK ? u->from[i] - k : BLOCK)};

            values_of(&r, m.rank[i], expected);
            CHECK(same_row(c->dtype, at + k * size, &r, r.first, expected));
        }
        at += u->from[i] * size;
    }
    for (int64_t i = u->received; i < u->parts.recv_room; i++) /* past the parts nothing is written */
        CHECK(((const unsigned char *)u->t.recv)[i * size] == 0x5a);
}

/* The trial points into u, which must stay where it is. */
static void prepare_uneven(struct uneven *u, sh_group group, enum sh_dtype dtype, int pattern, int form, int salt)
{
    int n = sh_group_size(&mesh->shape, group), rank = sh_group_index(&mesh->shape, group);

    *u = (struct uneven){.t = make_trial(SH_OP_ALL_TO_ALL, group, dtype, 0, salt)};
    CHECK(n <= UNEVEN_RANKS);
    count_rows(u, pattern, form, n, rank);
    u->t.send = buffer(dtype, u->parts.send_room);
    u->t.recv = buffer(dtype, u->parts.recv_room);
    fill(dtype, u->t.send, 0, u->parts.send_room, salt);
    if (u->parts.recv_room)
        memset(u->t.recv, 0x5a, (size_t)(u->parts.recv_room * sh_dtype_bytes(dtype)));
    u->t.coll.send = u->t.send;
    u->t.coll.recv = u->t.recv;
    u->t.coll.parts = &u->parts;
}

static void run(struct trial *t)
{
    CHECK_OK(sh_comm_start(comm, &t->coll, &t->ticket));
    CHECK_OK(sh_comm_wait(comm, t->ticket));
}

/* From now on u is the way back, into a home that still has to be made. */
static void turn_round(struct uneven *u, void *home)
{
    int64_t room = u->parts.send_room;

    u->parts.back = true;
    u->parts.send_room = u->parts.recv_room;
    u->parts.recv_room = room;
    u->t.coll.send = u->t.recv;
    u->t.coll.recv = home;
}

/* The rows are back where they were, and no other has changed. */
static void check_home(const struct uneven *u, const char *home)
{
    int n = sh_group_size(&mesh->shape, u->t.coll.group), mine = sh_group_index(&mesh->shape, u->t.coll.group);
    int64_t elem = sh_dtype_bytes(u->t.coll.dtype), bytes = u->parts.recv_room * elem, end = 0;

    for (int j = 0; j < n; j++) {
        int64_t rows = u->rows[mine * n + j] * ROW * elem;
        int64_t begin = u->at[mine * n + j] * ROW * elem;

        if (rows == 0 || (j == mine && u->parts.others))
            continue;
        for (; end < begin; end++)
            CHECK(home[end] == 0x5a);
        CHECK(memcmp(home + begin, (const char *)u->t.send + begin, (size_t)rows) == 0);
        end = begin + rows;
    }
    for (; end < bytes; end++)
        CHECK(home[end] == 0x5a);
}

static void run_home(struct uneven *u)
{
    int64_t room = u->parts.send_room;
    char *home = buffer(u->t.coll.dtype, room);

    if (room)
        memset(home, 0x5a, (size_t)(room * sh_dtype_bytes(u->t.coll.dtype)));
    turn_round(u, home);
    run(&u->t);
    check_home(u, home);
    if (!segment.base)
        free(home);
}

static void run_uneven(sh_group group, enum sh_dtype dtype, int pattern, int form, int salt)
{
    int moved = barriers + receives;
    struct uneven u;

    prepare_uneven(&u, group, dtype, pattern, form, salt);
    run(&u.t);
    check_uneven(&u, pattern, form);
    if (form != FORM_COUNTED)
        run_home(&u);
    CHECK(pattern > 0 || moved == barriers + receives); /* without rows nobody waits for anybody */
    drop(&u.t);
}

/* All patterns in these groups. */
static void run_all_uneven(int first, int end)
{
    static const enum sh_dtype types[] = {SH_F32, SH_BF16, SH_U8, SH_F64};

    for (int g = first; g < end; g++)
        for (int pattern = 0; pattern < PATTERNS; pattern++)
            for (int form = 0; form < FORMS; form++)
                run_uneven(groups[g].axes, types[(g + pattern) % 4], pattern, form, pattern + 10 * g);
}

/* Rows that are counted by ranks, gathered, and read when the exchange begins: the host never waits in between. */
static void run_counted_by_a_gather(void)
{
    sh_group world = sh_group_world(&mesh->shape);
    int n = test_world(), pattern = 4;
    struct uneven u;
    int32_t own[UNEVEN_RANKS];
    struct sh_coll gather = {.kind = SH_OP_ALL_GATHER,
                             .stream = SH_STREAM_REDUCE,
                             .group = world,
                             .dtype = SH_I32,
                             .send = own,
                             .recv = u.rows,
                             .count = n,
                             .label = "counts"};

    prepare_uneven(&u, world, SH_F32, pattern, FORM_COUNTED, 77);
    memcpy(own, u.rows + (ptrdiff_t)mesh->rank * n, (size_t)n * sizeof *own);
    memset(u.rows, 0xff, sizeof u.rows);
    usleep((unsigned)(mesh->rank % 3) * 2000);
    CHECK_OK(sh_comm_start(comm, &gather, &u.t.coll.after));
    if (n == 1) /* else it is read later, which only shows if it was not there yet */
        CHECK_OK(sh_comm_wait(comm, u.t.coll.after));
    CHECK_OK(sh_comm_start(comm, &u.t.coll, &u.t.ticket));
    CHECK_OK(sh_comm_wait(comm, u.t.ticket));
    check_uneven(&u, pattern, FORM_COUNTED);
    drop(&u.t);
}

static void test_uneven(void)
{
    int world = test_world();

    for (int shard = 1; shard <= world; shard++) {
        if (world % shard != 0)
            continue;
        open_comm(shard, shard % 2 == 0 ? 2 : 1, 16);
        run_all_uneven(0, GROUPS - 1);
        if (shard == world) { /* the group of all ranks, which is the same on each mesh */
            run_counted_by_a_gather();
            lazy = test_rank() % 2 ? 20 : 0;
            run_all_uneven(GROUPS - 1, GROUPS);
            lazy = 0;
        }
        close_comm();
    }
    for (ranks_per_node = 2; ranks_per_node <= world; ranks_per_node *= 2)
        if (world % ranks_per_node == 0) {
            open_comm(world, 1, 16); /* in two levels, which carry other kinds on the same channel */
            for (int i = 0; i < 2; i++) {
                run_all_uneven(GROUPS - 1, GROUPS);
                run_trial(make_trial(SH_OP_ALL_REDUCE, sh_group_world(&mesh->shape), SH_F32, 70001, i), true);
            }
            close_comm();
        }
    ranks_per_node = 0;
    in_mpi = true;
    open_comm(world, 1, 16);
    run_all_uneven(GROUPS - 1, GROUPS);
    close_comm();
    in_mpi = false;
    sh_mesh_wait_in_mpi(false);
    test_end("parts that are not equal");
}

#ifdef SH_CUDA_EMULATED
enum { DEVICE_BYTES = 8 << 20 }; /* of each of the two operands */

static struct {
    void *queue;
    char *memory;
} gpu;

/* Run a collective whose operands of so many bytes lie on a GPU meanwhile. */
static void run_on_gpu(struct sh_coll coll, int64_t send_bytes, int64_t recv_bytes)
{
    void *recv = coll.recv;
    int64_t ticket;

    CHECK(send_bytes <= DEVICE_BYTES && recv_bytes <= DEVICE_BYTES);
    device->put(gpu.queue, gpu.memory, coll.send, send_bytes);
    device->put(gpu.queue, gpu.memory + DEVICE_BYTES, recv, recv_bytes);
    coll.send = gpu.memory;
    coll.recv = gpu.memory + DEVICE_BYTES;
    coll.queue = gpu.queue;
    CHECK_OK(sh_comm_start(comm, &coll, &ticket));
    CHECK_OK(sh_comm_join(comm, ticket, gpu.queue));
    device->get(gpu.queue, recv, gpu.memory + DEVICE_BYTES, recv_bytes);
}

static void run_uneven_on_gpu(struct uneven *u, int pattern, int form)
{
    char *home = buffer(SH_F32, u->parts.send_room);

    run_on_gpu(u->t.coll, u->parts.send_room * 4, u->parts.recv_room * 4);
    check_uneven(u, pattern, form);
    if (form != FORM_COUNTED) {
        if (u->parts.send_room)
            memset(home, 0x5a, (size_t)u->parts.send_room * 4);
        turn_round(u, home);
        run_on_gpu(u->t.coll, u->parts.send_room * 4, u->parts.recv_room * 4);
        check_home(u, home);
    }
    free(home);
}

static void exchange_on_gpus(sh_group group)
{
    for (int n = 0; n < N_COUNTS; n++) {
        struct trial t = make_trial(SH_OP_ALL_TO_ALL, group, n % 2 ? SH_BF16 : SH_F32, counts[n], n);

        prepare(&t, false);
        run_on_gpu(t.coll, total(&t.coll) * sh_dtype_bytes(t.coll.dtype),
                   total(&t.coll) * sh_dtype_bytes(t.coll.dtype));
        check_result(&t);
        drop(&t);
    }
    for (int i = 0; i < PATTERNS * FORMS; i++) {
        struct uneven u;

        prepare_uneven(&u, group, SH_F32, i / FORMS, i % FORMS, i);
        run_uneven_on_gpu(&u, i / FORMS, i % FORMS);
        drop(&u.t);
    }
}

static void refuse_on_gpus(void)
{
    struct uneven u;

    prepare_uneven(&u, sh_group_world(&mesh->shape), SH_F32, 1, FORM_COUNTED, 0);
    u.rows[0] = 1 << 20; /* read at the start, since the operands have a queue */
    u.t.coll.queue = gpu.queue;
    CHECK(test_rank() > 0 || sh_comm_start(comm, &u.t.coll, &u.t.ticket) == SH_E_BUG);
    sh_error_clear();
    drop(&u.t);
}

/* An exchange over all ranks, to be run by NCCL before the first step. */
static struct sh_program *make_program(void)
{
    struct sh_program *p = sh_program_create(SH_F32);
    struct sh_tensor t = sh_tensor_make(SH_MEM_ACT, SH_F64, 1, (const int64_t[]){720}, "x");
    int x = sh_program_add_tensor(p, &t), y = sh_program_add_tensor(p, &t);

    sh_program_add_section(p, SH_SECTION_ONLY, 1);
    sh_program_append_collective(p, SH_OP_ALL_TO_ALL, SH_STREAM_GATHER, (1u << SH_AXES) - 1, SH_NONE, x, y, SH_NONE,
                                 SH_PHASE_FORWARD);
    return p;
}

static void test_between_gpus(void)
{
    static const char *const backends[] = {"nccl", "mpi"};
    struct sh_device_info info;

    setenv("SHERD_EMULATED_GPUS", "16", 1);
    device = sh_device_find("cuda");
    CHECK_OK(device->open(test_rank(), &info));
    struct sh_program *exchanges = make_program();
    program = exchanges;
    for (int b = 0; b < 2; b++) {
        backend = backends[b];
        open_comm(test_world() % 2 == 0 ? 2 : 1, 1, 16);
        CHECK(strcmp(sh_comm_name(comm), test_world() == 1 ? "self" : backend) == 0);
        CHECK_OK(device->arena_create(2 * DEVICE_BYTES, 0, -1, &gpu.memory));
        gpu.queue = device->queue_create(false);
        for (int g = 0; g < GROUPS; g++)
            exchange_on_gpus(groups[g].axes);
        refuse_on_gpus();
        device->queue_drain(gpu.queue);
        close_comm();
        device->queue_destroy(gpu.queue);
        device->arena_destroy(gpu.memory, 2 * DEVICE_BYTES);
    }
    device->close();
    device = NULL;
    program = NULL;
    sh_program_destroy(exchanges);
    test_end("parts between GPUs, by NCCL and by MPI");
}
#endif

/* Each rank of a shard group writes its chunk into the memory that the group shares. */
static void gather_in_common(enum sh_dtype dtype, int64_t count, int salt)
{
    struct trial t = make_trial(SH_OP_ALL_GATHER, mesh->shape.shard, dtype, count, salt);
    int64_t mine = sh_group_index(&mesh->shape, mesh->shape.shard) * count;
    t.recv = segment.base + sh_group_index(&mesh->shape, mesh->shape.replicate) * (int64_t)GROUP_BYTES;
    fill(dtype, t.recv, mine, count, salt);
    t.coll.recv = t.recv;
    t.coll.send = (char *)t.recv + mine * sh_dtype_bytes(dtype);
    CHECK_OK(sh_comm_start(comm, &t.coll, &t.ticket));
    CHECK_OK(sh_comm_wait(comm, t.ticket));
    check_result(&t);
    sh_mesh_barrier();
}

static const enum sh_dtype summed[] = {SH_F64, SH_F32, SH_BF16};

static void run_in_segment(void)
{
    for (int g = 0; g < GROUPS; g++)
        for (int k = 1; k < N_KINDS; k++)
            for (int n = 0; n < N_COUNTS; n++)
                run_trial(make_trial(kinds[k], groups[g].axes, summed[(n + g) % 3], counts[n], n), n % 4 == 0);
    for (int n = 0; n < N_COUNTS - 1; n++)
        gather_in_common(n % 2 ? SH_BF16 : SH_F32, counts[n], n);
    run_trial(make_trial(SH_OP_REDUCE_SCATTER, mesh->shape.shard, SH_F32, MEBIBYTE_ELEMS + 3, 5),
              false); /* past the caches */
    for (int pattern = 0; pattern < PATTERNS; pattern++)
        for (int form = FORM_COUNTED; form < FORMS; form++)
            run_uneven(groups[pattern % GROUPS].axes, SH_BF16, pattern, form, pattern);
}

static void test_segment(void)
{
    for (int shard = 1; shard <= test_world(); shard++) {
        if (test_world() % shard != 0)
            continue;
        open_comm(shard, shard % 2 == 0 ? 2 : 1, 16);
        open_segment();
        receives = 0;
        run_in_segment();
        CHECK(receives == 0);
        close_comm();
        close_segment();
    }
    test_end("in a segment: the same sums, and no message");
}

/* A trial of the overlap test: kind, stream and size rotate, so channels are busy at the same time. */
static struct trial mixed_trial(int i, int64_t previous)
{
    static const int streams[] = {SH_STREAM_GATHER, SH_STREAM_REDUCE, SH_STREAM_REPLICATE};
    uint64_t dice = mix((uint64_t)i + 99);
    struct trial t =
        make_trial(kinds[dice % N_KINDS], groups[dice / 3 % GROUPS].axes, SH_F32, (int64_t)(dice / 16 % 3000), i);
    t.coll.stream = streams[dice / 5 % 3];
    t.coll.after = dice / 7 % 2 ? previous : 0;
    if (dice / 11 % 10 == 0)
        t.coll.count *= 40;
    return t;
}

static void check_order(const struct trial *t)
{
    struct sh_coll_record mine, before;
    if (!sh_comm_record(comm, t->ticket, &mine))
        return;
    CHECK(mine.ticket == t->ticket && mine.kind == t->coll.kind && mine.bytes == t->coll.count * 4);
    CHECK(mine.posted_ns <= mine.start_ns && mine.start_ns <= mine.end_ns);
    if (t->coll.after > 0 && sh_comm_record(comm, t->coll.after, &before))
        CHECK(before.end_ns != 0 && before.end_ns <= mine.start_ns);
}

static void run_overlap(int n, bool delays)
{
    struct trial *trials = sh_calloc((size_t)n, sizeof *trials);
    unsigned state = (unsigned)mesh->rank + 1;
    for (int i = 0; i < n; i++) {
        trials[i] = mixed_trial(i, i > 0 ? trials[i - 1].ticket : 0);
        prepare(&trials[i], i % 2);
        if (delays && rand_r(&state) % 4 == 0)
            usleep((unsigned)rand_r(&state) % 3000);
        CHECK_OK(sh_comm_start(comm, &trials[i].coll, &trials[i].ticket));
    }
    for (int i = n - 1; i >= 0; i--) {
        CHECK_OK(sh_comm_wait(comm, trials[i].ticket));
        check_result(&trials[i]);
        check_order(&trials[i]);
        drop(&trials[i]);
    }
    free(trials);
}

struct messages {
    long long n, bytes, left, left_bytes;
};

/* Count the messages of all ranks for one collective of a single round, and those that leave a node. */
static struct messages count_messages(enum sh_op_kind kind, int64_t count, int node)
{
    long long all[4];

    open_comm(test_world(), 1, 16);
    memset(&sent, 0, sizeof sent);
    sent.node = node;
    run_trial(make_trial(kind, sh_group_world(&mesh->shape), SH_F32, count, 3), false);
    memcpy(all, (long long[]){sent.n, sent.bytes, sent.left, sent.left_bytes}, sizeof all);
    sent.node = 0;
    CHECK_OK(sh_mesh_sum_i64(all, 4));
    close_comm();
    return (struct messages){all[0], all[1], all[2], all[3]};
}

/* n ranks on k nodes exchange n (k - 1) messages instead of n (n - 1), with correspondingly fewer bytes; of the traffic
 * that leaves a node, one part in `block` remains. */
static void compare_messages(int block)
{
    enum { PART = 2000, SIZE = 4 };
    long long n = test_world(), k = n / block;

    for (int kind = 0; kind < N_KINDS; kind++) {
        bool both = kinds[kind] == SH_OP_ALL_REDUCE;
        int64_t count = both ? PART * n : PART;
        struct messages direct, levels;

        if (kinds[kind] == SH_OP_ALL_TO_ALL) /* each part has one reader */
            continue;
        ranks_per_node = 0;
        direct = count_messages(kinds[kind], count, block);
        ranks_per_node = block;
        levels = count_messages(kinds[kind], count, block);
        CHECK(direct.n == n * (n - 1) * (1 + both) && direct.bytes == direct.n * PART * SIZE);
        CHECK(levels.n == n * (k - 1) * (1 + both) && levels.bytes == levels.n * PART * SIZE);
        CHECK(levels.left == levels.n && direct.left == block * levels.left);
        CHECK(direct.left_bytes == block * levels.left_bytes);
    }
}

/* Every kind and size in a group once, with types in turn. */
static void run_sizes(int g)
{
    for (int k = 0; k < N_KINDS; k++)
        for (int n = 0; n < N_COUNTS; n++)
            run_trial(make_trial(kinds[k], groups[g].axes, summed[(n + g + k) % 3], counts[n], n), (n + g) % 2);
}

/* Every kind, type and size in each group that has two levels; many rounds, the last one ragged; and ranks whose requests
 * appear incomplete for a while, different ones from those that start late. The group of all ranks is the same on each
 * mesh: `all` is set for one mesh. */
static void run_levels(int shard, bool all)
{
    open_comm(shard, shard % 2 == 0 ? 2 : 1, 400);
    for (int g = 0; g < GROUPS; g++)
        CHECK(test_world() == 1 || sh_group_size(&mesh->shape, groups[g].axes) == 1 ||
              sh_comm_block(comm, groups[g].axes) == sh_group_block(&mesh->shape, groups[g].axes, ranks_per_node));
    for (int g = 0; g < GROUPS - !all; g++)
        if (sh_comm_block(comm, groups[g].axes) > 1) /* others are as without levels */
            run_sizes(g);
    for (int k = 0; k < N_KINDS && all; k++)
        run_trial(make_trial(kinds[k], sh_group_world(&mesh->shape), SH_BF16, 5 * (128 << 10) + 33, k), k % 2);
    if (all)
        run_overlap(60, false);
    lazy = test_rank() % 2 ? 20 : 0;
    run_overlap(60, true);
    lazy = 0;
    close_comm();
}

static void test_levels(void)
{
    int world = test_world();

    for (ranks_per_node = 2; ranks_per_node <= world; ranks_per_node++)
        for (int shard = 1; shard <= world; shard++)
            if (world % ranks_per_node == 0 && world % shard == 0 && ranks_per_node <= 4)
                run_levels(shard, shard == 1);
    for (int block = 2; block <= world; block *= 2)
        if (world % block == 0)
            compare_messages(block);
    ranks_per_node = 0;
    test_end("in two levels: the same sums, and fewer messages");
}

static void test_overlap(void)
{
    int world = test_world();
    int shard = world % 2 == 0 ? world / 2 : world;
    open_comm(shard, shard % 2 == 0 ? shard / 2 : 1, 400);
    run_overlap(120, false);
    run_overlap(120, true);
    close_comm();
    test_end("overlap, order, delays");
}

/* The second round in flight overtakes the first on one rank, by three phases, as happens if a rank is slow to sum. */
static void test_delayed_round(void)
{
    enum { PART = 7 * (256 << 10) / 4 - 100, PHASES = 3 };
    int world = test_world(), peers = world - 1;
    open_comm(world, 1, 16);
    for (int k = 0; k < N_KINDS; k++)
        for (int late = 0; late<world; late += peers> 0 ? peers : 1) {
            memset(&delay, 0, sizeof delay);
            delay.per_slot = 2 * peers;
            delay.until = test_rank() == late ? PHASES * delay.per_slot : 0;
            int64_t count = kinds[k] == SH_OP_ALL_REDUCE ? (int64_t)PART * world : PART;
            run_trial(make_trial(kinds[k], sh_group_world(&mesh->shape), SH_F32, count, k), false);
            CHECK(delay.seen >= delay.until);
        }
    memset(&delay, 0, sizeof delay);
    close_comm();
    test_end("rounds that overtake each other");
}

/* More open collectives than the ring has places: start must wait, not overwrite. */
static void test_many(void)
{
    enum { MANY = 3000 };
    open_comm(test_world(), 1, 8);
    double *values = sh_calloc(MANY, sizeof *values);
    struct sh_coll_record record;
    int64_t ticket = 0;
    for (int i = 0; i < MANY; i++) {
        values[i] = i + test_rank();
        struct sh_coll coll = {.kind = SH_OP_ALL_REDUCE,
                               .stream = SH_STREAM_REDUCE,
                               .group = sh_group_world(&mesh->shape),
                               .dtype = SH_F64,
                               .recv = &values[i],
                               .count = 1,
                               .label = "scalar"};
        CHECK_OK(sh_comm_start(comm, &coll, &ticket));
        CHECK(ticket == i + 1);
    }
    CHECK_OK(sh_comm_wait(comm, ticket));
    int world = test_world();
    for (int i = 0; i < MANY; i++)
        CHECK(values[i] == (double)i * world + world * (world - 1) / 2);
    CHECK(sh_comm_record(comm, MANY, &record) && sh_comm_record(comm, MANY - 7, &record));
    CHECK(!sh_comm_record(comm, MANY - 8, &record) && !sh_comm_record(comm, MANY + 1, &record));
    free(values);
    close_comm();
    test_end("more collectives than the history holds");
}

static void test_same_bits(void)
{
    enum { N = 50001, RUNS = 20 };
    open_comm(test_world(), 1, 16);
    float *first = sh_calloc(N, sizeof *first);
    unsigned state = (unsigned)test_rank();
    for (int run = 0; run < RUNS; run++) {
        struct trial t = make_trial(SH_OP_ALL_REDUCE, sh_group_world(&mesh->shape), SH_F32, N, 5);
        prepare(&t, true);
        usleep((unsigned)rand_r(&state) % 2000);
        CHECK_OK(sh_comm_start(comm, &t.coll, &t.ticket));
        CHECK_OK(sh_comm_wait(comm, t.ticket));
        if (run == 0)
            memcpy(first, t.recv, N * sizeof *first);
        CHECK(memcmp(first, t.recv, N * sizeof *first) == 0);
        drop(&t);
    }
    free(first);
    close_comm();
    test_end("the same bits in 20 runs");
}

/* The functions of mesh.h take MPI from the progress thread and the next start gives it back. */
static void test_turns(void)
{
    open_comm(test_world(), 1, 16);
    for (int i = 0; i < 50; i++) {
        struct trial t = make_trial(SH_OP_ALL_REDUCE, sh_group_world(&mesh->shape), SH_F32, 2000, i);
        prepare(&t, true);
        CHECK_OK(sh_comm_start(comm, &t.coll, &t.ticket));
        long long one = 1;
        CHECK_OK(sh_mesh_sum_i64(&one, 1)); /* not waited for: taking MPI back waits */
        CHECK(one == test_world());
        if (i % 3 == 0)
            MPI_Barrier(MPI_COMM_WORLD); /* still ours */
        check_result(&t);
        drop(&t);
    }
    close_comm();
    test_end("taking turns with the main thread");
}

static long peak_kib(void)
{
    long kib = 0;
    char line[256];
    FILE *f = fopen("/proc/self/status", "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL)
        if (sscanf(line, "VmHWM: %ld", &kib) == 1)
            break;
    if (f != NULL)
        fclose(f);
    return kib;
}

static double transfer(enum sh_op_kind kind, const float *send, float *recv, int64_t count)
{
    struct sh_coll coll = {.kind = kind,
                           .stream = SH_STREAM_REDUCE,
                           .group = sh_group_world(&mesh->shape),
                           .dtype = SH_F32,
                           .send = send,
                           .recv = recv,
                           .count = count,
                           .label = "large"};
    int64_t ticket, begin = sh_now_ns();
    CHECK_OK(sh_comm_start(comm, &coll, &ticket));
    CHECK_OK(sh_comm_wait(comm, ticket));
    return (double)(sh_now_ns() - begin) * 1e-9;
}

/* 32 MB per rank, with SHERD_LONG 200; memory in addition to the caller's buffers must not depend on the size. */
static void test_large(void)
{
    int world = test_world();
    int64_t count = (getenv("SHERD_LONG") ? 50000000 : 8000000) / world, all = count * world;
    open_comm(world, 1, 16);
    float *full = buffer(SH_F32, all), *part = buffer(SH_F32, count);
    for (int64_t i = 0; i < all; i++)
        full[i] = (float)(i % 1000 + test_rank());
    memset(part, 0, (size_t)count * sizeof *part);
    int64_t first = test_rank() * count;
    sh_mesh_barrier();
    long before = peak_kib();
    transfer(SH_OP_REDUCE_SCATTER, full, part, count);
    for (int64_t i = 0; i < count; i++)
        CHECK(part[i] == (float)((first + i) % 1000 * world + world * (world - 1) / 2));
    transfer(SH_OP_ALL_GATHER, part, full, count);
    for (int64_t i = 0; i < all; i++)
        CHECK(full[i] == (float)(i % 1000 * world + world * (world - 1) / 2));
    transfer(SH_OP_ALL_REDUCE, NULL, full, all);
    for (int64_t i = 0; i < all; i++)
        CHECK(full[i] == (float)(i % 1000 * world + world * (world - 1) / 2) * (float)world);
    CHECK(peak_kib() - before < 20 * 1024);
    free(full);
    free(part);
    close_comm();
    test_end("large, bounded memory");
}

/* There is a channel for each stream and group that is named, and no other; a channel of a single rank needs no
 * communicator. */
static void test_channels(void)
{
    struct sh_mesh_request req = test_request(test_world(), 1);
    CHECK_OK(sh_mesh_create(&req, &mesh));
    const struct sh_group_use few[] = {
        {"shard", mesh->shape.shard, 1u << SH_STREAM_GATHER | 1u << SH_STREAM_REDUCE},
        {"world", sh_group_world(&mesh->shape), 1u << SH_STREAM_REPLICATE},
        {"replicate", mesh->shape.replicate, 1u << SH_STREAM_REPLICATE}}; /* of one rank */
    for (int n = 0; n <= 3; n++) {
        dups = 0;
        create_comm(few, n, 16);
        CHECK(dups == (test_world() == 1 ? 0 : 1 + (n > 0 ? 2 : 0) + (n > 1 ? 1 : 0)));
        sh_comm_destroy(comm);
    }
    CHECK(mesh->n_groups == 3);
    sh_mesh_destroy(mesh);
    test_end("channels for what is used only");
}

/* Inline and without a time limit nothing is polled: neither channels nor agreements, and no roll call is made. */
static void test_in_mpi(void)
{
    int world = test_world(), shard = world % 2 == 0 ? world / 2 : world;
    long long one = 1;
    in_mpi = true;
    dups = 0;
    open_comm(shard, 1, 400);
    CHECK(world == 1 || dups == 3 * ((shard > 1 ? 1 : 0) + (shard < world ? 1 : 0) + 1)); /* none for the watch */
    looks = 0;
    run_overlap(120, true);
    CHECK_OK(sh_mesh_sum_i64(&one, 1));
    CHECK(one == world);
    CHECK(sh_agree(world > 1 && test_rank() == world - 1 ? sh_fail(SH_E_DATA, "no file") : SH_OK) ==
          (world > 1 ? SH_E_DATA : SH_OK));
    sh_error_clear();
    int *ranks = sh_calloc((size_t)world, sizeof *ranks);
    CHECK_OK(sh_mesh_gather(&(int){test_rank()}, sizeof *ranks, ranks));
    for (int i = 0; i < world && test_rank() == 0; i++)
        CHECK(ranks[i] == i);
    free(ranks);
    run_sizes(GROUPS - 1);
    CHECK(world == 1 || looks == 0);
    close_comm();
    for (ranks_per_node = 2; ranks_per_node <= world; ranks_per_node *= 2)
        if (world % ranks_per_node == 0)
            run_levels(world, true); /* which look at memory */
    ranks_per_node = 0;
    in_mpi = false;
    sh_mesh_wait_in_mpi(false);
    test_end("waits inside of MPI");
}

/* Without a time limit, but with a thread: the watch exists and finds nothing overdue. */
static void test_no_limit(void)
{
    struct sh_mesh_request req = test_request(test_world(), 1);
    CHECK_OK(sh_mesh_create(&req, &mesh));
    const struct sh_group_use world = {"world", sh_group_world(&mesh->shape), 1u << SH_STREAM_REPLICATE};
    struct sh_comm_options opt = {
        .history = 4, .groups = &world, .n_groups = 1, .streams = sh_streams, .n_streams = SH_STREAMS};
    struct trial t = make_trial(SH_OP_ALL_REDUCE, world.axes, SH_F32, 3, 1);
    t.coll.stream = SH_STREAM_REPLICATE;
    CHECK_OK(sh_mesh_open(mesh, world.axes));
    CHECK_OK(sh_comm_create(mesh, &opt, &comm));
    if (test_rank() == test_world() - 1)
        usleep(300 * 1000); /* meanwhile the others look for overdue collectives */
    run_trial(t, true);
    close_comm();
    test_end("no limit of time");
}

static void test_refused(void)
{
    open_comm(test_world(), 1, 16);
    float x = 0, y = 0;
    int64_t ticket = -1;
    struct sh_coll good = {.kind = SH_OP_ALL_REDUCE,
                           .stream = SH_STREAM_REDUCE,
                           .group = sh_group_world(&mesh->shape),
                           .dtype = SH_F32,
                           .recv = &x,
                           .count = 1,
                           .label = "bad"};
    const struct sh_coll_parts none = {.row_elems = 1, .send_room = 1, .recv_room = 1};
    struct sh_coll exchange = good, bad[8] = {good, good, good, good, good, good};
    bad[0].kind = SH_OP_ADD;
    bad[1].dtype = SH_I32;
    bad[2].count = -1;
    bad[3].after = 1;
    bad[4].group = 0; /* not named */
    bad[5].stream = SH_STREAM_COMPUTE;
    exchange.kind = SH_OP_ALL_TO_ALL;
    exchange.send = &y;
    exchange.count = 2;
    bad[6] = bad[7] = exchange;
    bad[6].parts = &none; /* of no rows */
    bad[7].send = &x;     /* in place */
    for (int i = 0; i < 8; i++)
        CHECK(sh_comm_start(comm, &bad[i], &ticket) == SH_E_BUG && ticket == -1);
    CHECK(sh_comm_wait(comm, 1) == SH_E_BUG);
    sh_error_clear();
    close_comm();
    test_end("what is not a collective is refused");
}

int main(int argc, char **argv)
{
    sh_rc rc = sh_mesh_start(&argc, &argv);
    if (rc == SH_OK) {
        test_every_kind();
        test_uneven();
        test_segment();
        test_overlap();
        test_levels();
        test_delayed_round();
        test_many();
        test_same_bits();
        test_turns();
        test_large();
        test_channels();
        test_in_mpi();
        test_no_limit();
        test_refused();
#ifdef SH_CUDA_EMULATED
        test_between_gpus();
#endif
    }
    int status = sh_mesh_report(rc);
    sh_mesh_stop();
    return status != 0 ? status : bad_tests > 0;
}
