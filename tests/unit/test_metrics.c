/* Output for machines parses, with every field; output for people comes as often as asked for. */
#include "sherd_config.h"

#include "src/metrics/table.h"
#include "src/metrics/trace.h"

#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

static char path[] = "/tmp/test_metrics.XXXXXX";

static int make_file(void **state)
{
    int fd = mkstemp(path);

    (void)state;
    return fd < 0 || close(fd);
}

static int remove_file(void **state)
{
    (void)state;
    return unlink(path);
}

/* clang-format off */
static const struct sh_step_metrics step = {
    .step = 3, .loss = 2.5, .grad_norm = 0.1, .lr = 3e-4, .tokens = 1000, .tokens_seen = 3000,
    .tokens_per_second = 12345.678, .flops_causal = 1e9, .mfu = 0.375, .since_last = 2,
    .time = {.step = 1, .compute = 0.5, .exposed_comm = 0.25, .data = 0.125, .checkpoint = 0, .checks = 0.0625},
    .arena_bytes = INT64_C(5) << 32, .peak_rss_bytes = INT64_C(6) << 32,
    .gpu = {.gpus = 2, .watts = 650.5, .limit_watts = 500, .usual_watts = 700, .mhz = 1200, .median_mhz = 1500, .most_mhz = 1980,
            .celsius = 81, .slowest = 3, .node = "n6", .held = 1, .why = 1 | 2},
    .pace = {.least = 0.5, .median = 0.75, .most = 1.5, .slowest = 4, .node = "n7"}};
/* clang-format on */

/* Line `number` of the file as an object. */
static json_t *line(int number)
{
    char text[4096];
    json_t *object = NULL;
    FILE *f = fopen(path, "r");

    assert_non_null(f);
    for (int i = 0; i <= number; i++)
        assert_non_null(fgets(text, sizeof text, f));
    fclose(f);
    assert_int_equal(text[strlen(text) - 1], '\n');
    object = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    assert_true(json_is_object(object));
    return object;
}

static void assert_number(const json_t *object, const char *key, double value)
{
    const json_t *v = json_object_get(object, key);

    if (!json_is_number(v) || json_number_value(v) != value)
        fail_msg("%s is not %g", key, value);
}

static void write_lines(void)
{
    static const struct sh_rollback_metrics back = {.from = 9, .to = 5, .first = 100, .last = 199};
    struct sh_step_metrics bad = step;
    struct sh_metrics *m;

    bad.step = 4;
    struct sh_checkpoint_metrics saved = {.step = 4,
                                          .path = "a \"quoted\"/\xc3\xa9.h5",
                                          .bytes = INT64_C(1) << 40,
                                          .verify = "off",
                                          .seconds = 2.5,
                                          .stall = 0.5,
                                          .disk_seconds = 2};

    bad.loss = NAN;
    bad.grad_norm = INFINITY;
    bad.pace.node = NULL;
    bad.gpu = (struct sh_gpu_metrics){.gpus = 1,
                                      .watts = NAN,
                                      .limit_watts = NAN,
                                      .usual_watts = NAN,
                                      .mhz = NAN,
                                      .median_mhz = NAN,
                                      .most_mhz = NAN,
                                      .celsius = 40};
    bad.mfu = 0;
    bad.lr = 1.0 / 3e5;
    bad.tokens_per_second = 5e-324;
    bad.skipped = "loss or gradient norm is not finite";
    bad.loss_scale = 65536;
    assert_int_equal(sh_metrics_open(path, &m), SH_OK);
    sh_metrics_step(m, &step);
    sh_metrics_step(m, &bad);
    assert_int_equal(sh_metrics_result(m), SH_OK);
    sh_metrics_close(m);
    assert_int_equal(sh_metrics_open(path, &m), SH_OK); /* a resumed run continues in the same file */
    sh_metrics_validation(m, &(struct sh_validation_metrics){.step = 4, .loss = -NAN, .tokens = 64, .seconds = 1.5});
    sh_metrics_checkpoint(m, &saved);
    sh_metrics_rollback(m, &back);
    sh_metrics_close(m);
}

/* Only a run whose states live in a file has these fields, even if nothing was moved. */
static void moves_have_their_bytes(void **state)
{
    struct sh_step_metrics moved = step;
    struct sh_metrics *m;
    json_t *o;

    (void)state;
    unlink(path);
    moved.offloads = true;
    moved.offload_read_bytes = INT64_C(7) << 32;
    moved.time.exposed_offload = 0.5;
    assert_int_equal(sh_metrics_open(path, &m), SH_OK);
    sh_metrics_step(m, &moved);
    sh_metrics_close(m);
    o = line(0);
    assert_number(o, "offload_read_bytes", (double)(INT64_C(7) << 32));
    assert_number(o, "offload_written_bytes", 0);
    assert_number(json_object_get(o, "seconds"), "exposed_offload", 0.5);
    json_decref(o);
}

static void a_step_has_every_field(void **state)
{
    json_t *o, *time, *pace, *gpu;

    (void)state;
    write_lines();
    o = line(0);
    time = json_object_get(o, "seconds");
    assert_number(o, "step", 3);
    assert_number(o, "loss", 2.5);
    assert_number(o, "grad_norm", 0.1);
    assert_number(o, "lr", 3e-4);
    assert_number(o, "tokens", 1000);
    assert_number(o, "tokens_seen", 3000);
    assert_number(o, "tokens_per_second", 12345.678);
    assert_null(json_object_get(o, "flops_per_token_causal"));
    assert_number(o, "arena_bytes", (double)(INT64_C(5) << 32));
    assert_number(o, "peak_rss_bytes", (double)(INT64_C(6) << 32));
    assert_number(o, "mfu", 0.375);
    assert_number(time, "step", 1);
    assert_number(time, "compute", 0.5);
    assert_number(time, "exposed_comm", 0.25);
    assert_number(time, "checks", 0.0625);
    assert_number(time, "data", 0.125);
    assert_number(time, "checkpoint", 0);
    assert_null(json_object_get(o, "skipped"));
    assert_null(json_object_get(o, "loss_scale"));
    assert_null(json_object_get(o, "offload_read_bytes"));
    assert_null(json_object_get(time, "exposed_offload"));
    pace = json_object_get(o, "rank_seconds");
    assert_number(pace, "min", 0.5);
    assert_number(pace, "median", 0.75);
    assert_number(pace, "max", 1.5);
    assert_number(pace, "slowest_rank", 4);
    assert_string_equal(json_string_value(json_object_get(pace, "slowest_node")), "n7");
    gpu = json_object_get(o, "gpu");
    assert_number(gpu, "told", 2);
    assert_number(gpu, "power_watts", 650.5);
    assert_number(gpu, "limit_watts", 500);
    assert_number(gpu, "default_limit_watts", 700);
    assert_number(gpu, "clock_mhz", 1200);
    assert_number(gpu, "median_clock_mhz", 1500);
    assert_number(gpu, "highest_clock_mhz", 1980);
    assert_number(gpu, "celsius", 81);
    assert_number(gpu, "slowest_rank", 3);
    assert_string_equal(json_string_value(json_object_get(gpu, "slowest_node")), "n6");
    assert_number(gpu, "held", 1);
    assert_int_equal(json_array_size(json_object_get(gpu, "held_by")), 2);
    assert_string_equal(json_string_value(json_array_get(json_object_get(gpu, "held_by"), 1)), "heat");
    json_decref(o);
}

static void what_is_written_is_read(void **state)
{
    union sh_metrics_any m;
    json_t *o = line(0);

    (void)state;
    assert_int_equal(sh_metrics_read(o, &m), SH_METRICS_STEP);
    assert_int_equal(m.step.step, 3);
    assert_true(m.step.loss == 2.5 && m.step.time.data == 0.125 && m.step.gpu.mhz == 1200 && m.step.pace.most == 1.5);
    assert_int_equal(m.step.peak_rss_bytes, INT64_C(6) << 32);
    assert_string_equal(m.step.pace.node, "n7");
    assert_null(m.step.skipped);
    json_decref(o);
    o = line(1);
    assert_int_equal(sh_metrics_read(o, &m), SH_METRICS_STEP);
    assert_true(isnan(m.step.loss) && isnan(m.step.gpu.mhz) && isnan(m.step.mfu));
    assert_non_null(m.step.skipped);
    json_decref(o);
    o = line(3);
    assert_int_equal(sh_metrics_read(o, &m), SH_METRICS_CHECKPOINT);
    assert_true(m.checkpoint.stall == 0.5);
    json_decref(o);
}

/* Every key has its word on the page. */
static void the_page_names_every_key(void **state)
{
    char text[64 << 10] = "", word[64], page[4096];
    FILE *f;

    (void)state;
    snprintf(page, sizeof page, "%s/doc/metrics.md", getenv("SHERD_SRCDIR"));
    f = fopen(page, "r");
    assert_non_null(f);
    assert_in_range(fread(text, 1, sizeof text - 1, f), 1, sizeof text - 2);
    fclose(f);
    for (int i = 0; i < sh_metric_rows; i++) {
        if (!sh_metric_table[i].key)
            continue;
        snprintf(word, sizeof word, "%s`", sh_metric_table[i].key);
        if (!strstr(text, word) && strcmp(sh_metric_table[i].key, "event"))
            fail_msg("doc/metrics.md does not name %s", sh_metric_table[i].key);
    }
}

static void what_is_not_finite_is_null(void **state)
{
    json_t *o = line(1);

    (void)state;
    assert_true(json_is_null(json_object_get(o, "loss")));
    assert_true(json_is_null(json_object_get(o, "grad_norm")));
    assert_null(json_object_get(o, "rank_seconds"));
    assert_int_equal(json_object_size(json_object_get(o, "gpu")), 4); /* told, held, held_by, celsius */
    assert_number(o, "loss_scale", 65536);
    assert_number(o, "lr", 1.0 / 3e5); /* to the last digit */
    assert_number(o, "tokens_per_second", 5e-324);
    assert_string_equal(json_string_value(json_object_get(o, "skipped")), "loss or gradient norm is not finite");
    json_decref(o);
    o = line(2);
    assert_true(json_is_null(json_object_get(o, "validation_loss")));
    assert_number(o, "tokens", 64);
    assert_number(o, "seconds", 1.5);
    json_decref(o);
}

static void a_checkpoint_is_a_line(void **state)
{
    json_t *o = line(3);

    (void)state;
    assert_string_equal(json_string_value(json_object_get(o, "checkpoint")), "a \"quoted\"/\xc3\xa9.h5");
    assert_number(o, "bytes", (double)(INT64_C(1) << 40));
    assert_string_equal(json_string_value(json_object_get(o, "verify")), "off");
    assert_number(o, "disk_share", 0.8);
    assert_number(o, "disk_gb_per_second", (double)(INT64_C(1) << 40) / 2 / 1e9);
    json_decref(o);
}

static void events_are_lines(void **state)
{
    static const char names[4][SH_METRICS_HOST] = {"node1", "node1", "node0", "node1"};
    static const double arenas[] = {3e11, 7};
    struct sh_start_metrics fresh = {.ranks = 6,
                                     .replicate = 2,
                                     .shard = 3,
                                     .nodes = 2,
                                     .threads = 4,
                                     .cores = 12,
                                     .device = "cpu",
                                     .hosts = names[0],
                                     .n_hosts = 4,
                                     .stages = 2,
                                     .stage_bytes = arenas,
                                     .parameters = 1234,
                                     .config = "0123456789abcdef",
                                     .flops_causal = 1e9,
                                     .flops_full = 2e9,
                                     .peak_tflops = 0.5},
                            resumed = fresh;
    struct sh_metrics *m;
    json_t *o;

    (void)state;
    resumed.step = 7;
    resumed.peak_tflops = 0;
    resumed.stages = 0;
    resumed.resumed_from = "a/step-00000007.h5";
    assert_int_equal(sh_metrics_open(path, &m), SH_OK);
    sh_metrics_start(m, &fresh);
    sh_metrics_start(m, &resumed);
    sh_metrics_not_saved(m, &(struct sh_not_saved_metrics){8, 2, "fsync \xff: Input/output error"});
    assert_int_equal(sh_metrics_result(m), SH_OK);
    sh_metrics_close(m);
    o = line(5);
    assert_string_equal(json_string_value(json_object_get(o, "event")), "start");
    assert_number(o, "ranks", 6);
    assert_number(json_object_get(o, "mesh"), "replicate", 2);
    assert_number(json_object_get(o, "mesh"), "shard", 3);
    assert_true(json_is_null(json_object_get(o, "resumed_from")));
    assert_true(json_is_null(json_object_get(o, "parameters_from")));
    assert_number(o, "nodes", 2);
    assert_number(o, "threads", 4);
    assert_number(o, "cores", 12);
    assert_int_equal(json_array_size(json_object_get(o, "stage_arena_bytes")), 2);
    assert_int_equal(json_integer_value(json_array_get(json_object_get(o, "stage_arena_bytes"), 0)), 300000000000);
    assert_number(o, "parameters", 1234);
    assert_number(o, "peak_tflops", 0.5);
    assert_number(o, "flops_per_token_causal", 1e9);
    assert_number(o, "flops_per_token_full", 2e9);
    assert_string_equal(json_string_value(json_object_get(o, "config")), "0123456789abcdef");
    assert_string_equal(json_string_value(json_array_get(json_object_get(o, "hosts"), 0)), "node1");
    assert_string_equal(json_string_value(json_array_get(json_object_get(o, "hosts"), 1)), "node0");
    assert_int_equal(json_array_size(json_object_get(o, "hosts")), 2);
    assert_string_equal(json_string_value(json_object_get(o, "device")), "cpu");
    assert_true(json_is_string(json_object_get(o, "built_with")) && json_is_string(json_object_get(o, "version")));
    json_decref(o);
    o = line(6);
    assert_number(o, "step", 7);
    assert_null(json_object_get(o, "peak_tflops"));
    assert_null(json_object_get(o, "stage_arena_bytes"));
    assert_string_equal(json_string_value(json_object_get(o, "resumed_from")), "a/step-00000007.h5");
    assert_int_equal(strlen(json_string_value(json_object_get(o, "time"))), strlen("2000-01-01T00:00:00Z"));
    json_decref(o);
    o = line(7);
    assert_string_equal(json_string_value(json_object_get(o, "event")), "checkpoint_failed");
    assert_string_equal(json_string_value(json_object_get(o, "reason")), "(not UTF-8)");
    assert_number(o, "step", 8);
    assert_number(o, "failures", 2);
    json_decref(o);
}

static void a_rollback_is_a_line(void **state)
{
    json_t *o = line(4);

    (void)state;
    assert_number(o, "step", 5);
    assert_number(o, "rollback_from", 9);
    assert_number(o, "first_sample_left_out", 100);
    assert_number(o, "last_sample_left_out", 199);
    json_decref(o);
}

static void a_file_that_cannot_be_written_is_an_error(void **state)
{
    const struct rlimit none = {.rlim_cur = 0, .rlim_max = RLIM_INFINITY},
                        all = {.rlim_cur = RLIM_INFINITY, .rlim_max = RLIM_INFINITY};
    struct sh_metrics *m = NULL;

    (void)state;
    assert_int_equal(sh_metrics_open("/nowhere/at/all/metrics.jsonl", &m), SH_E_DATA);
    assert_non_null(strstr(sh_error_text(), "/nowhere/at/all"));
    assert_null(m);
    assert_int_equal(sh_metrics_open(path, &m), SH_OK);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
    assert_int_equal(sh_metrics_result(m), SH_OK);
    sh_metrics_step(m, &step);
    sh_metrics_validation(m, &(struct sh_validation_metrics){.step = 4, .loss = 1, .tokens = 64, .seconds = 1.5});
    for (int again = 0; again < 2; again++) {
        sh_error_clear();
        assert_int_equal(sh_metrics_result(m), SH_E_DATA);
        assert_non_null(strstr(sh_error_text(), "write /tmp/test_metrics."));
        assert_non_null(strstr(sh_error_text(), ": File too large"));
    }
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &all), 0);
    assert_int_equal(sh_metrics_result(NULL), SH_OK);
    sh_metrics_close(m);
}

/* Head, the texts of two ranks, foot. */
static json_t *joined_trace(struct sh_trace *const t[2])
{
    char *all = calloc(1, 1 << 22), *head;
    json_t *root;
    int64_t bytes;

    head = sh_trace_head(&(struct sh_trace_about){.config = "0123456789abcdef", .machine = "a \"b\"", .ranks = 8});
    strcat(all, head);
    free(head);
    for (int i = 0; i < 2; i++) {
        const char *text = sh_trace_text(t[i], &bytes);

        assert_int_equal(bytes, (int64_t)strlen(text));
        strcat(all, text);
    }
    strcat(all, sh_trace_foot);
    root = json_loads(all, 0, NULL);
    free(all);
    assert_non_null(root);
    return root;
}

static const struct sh_mesh_shape meshes[2] = {{.rank = 0}, {.rank = 1}};

/* Every second event has its work, in whole numbers. */
static void check_cost(const json_t *args, int k)
{
    if (k % 2 == 0) {
        assert_null(json_object_get(args, "flops"));
        assert_null(json_object_get(args, "bytes"));
    } else {
        assert_int_equal(json_integer_value(json_object_get(args, "flops")), 1000000007LL * k);
        assert_int_equal(json_integer_value(json_object_get(args, "bytes")), 44080601);
    }
}

static void a_trace_is_json(void **state)
{
    enum { EVENTS = 1000 };
    struct sh_trace *t[2] = {sh_trace_create(&meshes[0], "node0"), sh_trace_create(&meshes[1], "node1")};
    json_t *root, *events, *e;
    int spans = 0;
    size_t i;

    (void)state;
    for (int r = 0; r < 2; r++) {
        sh_trace_clock(t[r], 1000000, 1500);
        sh_trace_row(t[r], 0, "compute");
        for (int k = 0; k < EVENTS; k++)
            sh_trace_add(t[r], &(struct sh_trace_event){.name = "backward layers.3 linear",
                                                        .what = "dy",
                                                        .cat = "backward",
                                                        .begin_ns = 1000000 + k * 2000,
                                                        .end_ns = 1001000 + k * 2000,
                                                        .flops = k % 2 ? 1000000007.0 * k : -1,
                                                        .bytes = k % 2 ? 44080601 : -1});
    }
    root = joined_trace(t);
    events = json_object_get(root, "traceEvents");
    json_array_foreach(events, i, e)
    {
        const char *phase = json_string_value(json_object_get(e, "ph"));

        assert_non_null(phase);
        assert_true(json_is_string(json_object_get(e, "name")) && json_is_integer(json_object_get(e, "pid")));
        if (strcmp(phase, "X"))
            continue;
        assert_true(json_number_value(json_object_get(e, "ts")) == 2.0 * (spans % EVENTS));
        assert_true(json_number_value(json_object_get(e, "dur")) == 1.0);
        assert_string_equal(json_string_value(json_object_get(e, "cat")), "backward");
        check_cost(json_object_get(e, "args"), spans % EVENTS);
        spans++;
    }
    assert_int_equal(spans, 2 * EVENTS);
    json_decref(root);
    sh_trace_destroy(t[0]);
    sh_trace_destroy(t[1]);
}

/* Names from outside (of a host, of a tensor) cannot break the file; long names are cut. */
static void a_trace_survives_any_name(void **state)
{
    char longest[400];
    struct sh_trace *t[2];
    json_t *root;

    (void)state;
    memset(longest, '"', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    t[0] = sh_trace_create(&meshes[0], longest);
    t[1] = sh_trace_create(&meshes[1], "a\"b\\c\nd");
    for (int i = 0; i < 2; i++) {
        sh_trace_row(t[i], 0, longest);
        sh_trace_add(t[i], &(struct sh_trace_event){.name = "q\"\\\t",
                                                    .what = longest,
                                                    .cat = "comm",
                                                    .end_ns = INT64_MAX / 2,
                                                    .flops = 1e300,
                                                    .bytes = 1e300,
                                                    .axis = longest,
                                                    .ranks = INT32_MAX,
                                                    .ticket = INT64_C(1) << 39});
        sh_trace_step(t[i], INT64_MAX, 0, INT64_MAX / 2);
        sh_trace_arena(t[i], INT64_MAX / 2, INT64_MAX);
    }
    root = joined_trace(t);
    json_decref(root);
    sh_trace_destroy(t[0]);
    sh_trace_destroy(t[1]);
}

/* Return the k-th event of a phase on a rank. */
static json_t *traced(json_t *root, const char *phase, int rank, int k)
{
    json_t *e;
    size_t i;

    json_array_foreach(json_object_get(root, "traceEvents"), i,
                       e) if (!strcmp(json_string_value(json_object_get(e, "ph")), phase) &&
                              json_integer_value(json_object_get(e, "pid")) == rank && k-- == 0) return e;
    return NULL;
}

/* A collective from 2 to 6 us, the wait for it from 1 to 5 us, in a step of 10 us that begins at 0. */
static void trace_a_wait(struct sh_trace *t)
{
    sh_trace_clock(t, 5000, 1500);
    sh_trace_row(t, SH_TRACE_STEPS, "steps");
    sh_trace_add(t, &(struct sh_trace_event){.row = 1,
                                             .name = "forward embed all_gather",
                                             .what = "embed.gathered",
                                             .cat = "comm",
                                             .begin_ns = 7000,
                                             .end_ns = 11000,
                                             .flops = -1,
                                             .bytes = 8000,
                                             .axis = "shard",
                                             .ranks = 4,
                                             .ticket = 3});
    for (int ticket = 3; ticket < 5; ticket++) /* nothing else is known about the second one */
        sh_trace_add(t, &(struct sh_trace_event){.row = 2,
                                                 .name = "wait",
                                                 .what = "forward embed all_gather",
                                                 .cat = "comm",
                                                 .begin_ns = ticket == 3 ? 6000 : 10000,
                                                 .end_ns = 10000,
                                                 .flops = -1,
                                                 .bytes = -1,
                                                 .ticket = ticket});
    sh_trace_arena(t, 5000, 100);
    sh_trace_arena(t, 6000, 100);
    sh_trace_arena(t, 7000, 300);
    sh_trace_step(t, 12, 5000, 15000);
}

/* An arrow leads from a collective to its wait, never back in time and with a number that is unique in the file; the
 * step has its share of waits; the used part of the arena is recorded when it changes; clocks; and a description of the
 * run. */
static void a_trace_links_what_belongs_together(void **state)
{
    struct sh_trace *t[2] = {sh_trace_create(&meshes[0], "node0"), sh_trace_create(&meshes[1], "node1")};
    json_t *root, *other, *args, *e;

    (void)state;
    trace_a_wait(t[0]);
    trace_a_wait(t[1]);
    root = joined_trace(t);
    other = json_object_get(root, "otherData");
    assert_string_equal(json_string_value(json_object_get(other, "version")), PACKAGE_VERSION);
    assert_string_equal(json_string_value(json_object_get(other, "config")), "0123456789abcdef");
    assert_string_equal(json_string_value(json_object_get(other, "predicted_for")), "a ?b?");
    for (int r = 0; r < 2; r++) {
        e = traced(root, "s", r, 0);
        assert_number(e, "ts", 2);
        assert_number(e, "tid", 1);
        assert_number(e, "id", 3 + r * 1099511627776.0);
        e = traced(root, "f", r, 0);
        assert_number(e, "ts", 2);
        assert_number(e, "tid", 2);
        assert_number(e, "id", 3 + r * 1099511627776.0);
        assert_null(traced(root, "f", r, 1));
        e = traced(root, "X", r, 0);
        assert_string_equal(json_string_value(json_object_get(e, "name")), "step 12");
        assert_number(json_object_get(e, "args"), "exposed_share", 0.4);
        args = json_object_get(traced(root, "X", r, 1), "args");
        assert_string_equal(json_string_value(json_object_get(args, "axis")), "shard");
        assert_number(args, "ranks", 4);
        assert_number(args, "bytes", 8000);
        assert_number(args, "gb_per_s", 2);
        assert_null(json_object_get(args, "flops"));
        assert_number(json_object_get(traced(root, "C", r, 0), "args"), "share", 0.4);
        assert_number(json_object_get(traced(root, "C", r, 1), "args"), "bytes", 100);
        assert_number(traced(root, "C", r, 2), "ts", 2);
        assert_null(traced(root, "C", r, 3));
        args = json_object_get(traced(root, "M", r, 0), "args");
        assert_number(args, "clock_origin_ns", 5000);
        assert_number(args, "clock_uncertainty_us", 1.5);
        assert_number(json_object_get(traced(root, "M", r, 3), "args"), "sort_index", -1);
    }
    json_decref(root);
    sh_trace_destroy(t[0]);
    sh_trace_destroy(t[1]);
}

/* Capture in `text` what a function writes to standard error. */
static void capture(void (*run)(void), char *text, size_t size)
{
    int saved = dup(STDERR_FILENO), fd = open(path, O_RDWR | O_TRUNC);
    ssize_t n;

    assert_true(saved >= 0 && fd >= 0);
    fflush(stderr);
    dup2(fd, STDERR_FILENO);
    run();
    fflush(stderr);
    dup2(saved, STDERR_FILENO);
    close(saved);
    n = pread(fd, text, size - 1, 0);
    close(fd);
    assert_true(n >= 0);
    text[n] = '\0';
}

static void run_progress(void)
{
    struct sh_progress p;
    struct sh_step_metrics s = step;

    sh_progress_init(&p, true, 25, 10, 1, 0);
    for (s.step = 1; s.step <= 25; s.step++) {
        s.skipped = s.step == 13 ? "because" : NULL;
        sh_progress_step(&p, &s);
    }
    sh_progress_break(&p);
}

static void progress_off_a_terminal(void **state)
{
    static const int due[] = {1, 10, 13, 20, 25};
    char text[4096], *at = text;

    (void)state;
    capture(run_progress, text, sizeof text);
    for (size_t i = 0; i < sizeof due / sizeof *due; i++) {
        char *end = strchr(at, '\n');
        int number = 0;

        assert_non_null(end);
        *end = '\0';
        assert_int_equal(sscanf(at, "step %d/25", &number), 1);
        assert_int_equal(number, due[i]);
        assert_true((strstr(at, "skipped: because") != NULL) == (number == 13));
        at = end + 1;
    }
    assert_int_equal(*at, '\0');
}

/* 4 ranks of half a TFLOP/s each, 10^9 operations per token: 1500 tokens/s are three quarters. */
static void mfu_is_what_the_page_says(void **state)
{
    (void)state;
    assert_true(fabs(sh_mfu(1500, 1e9, 4, 0.5) - 0.75) < 1e-12);
    assert_true(sh_mfu(1500, 1e9, 4, 0) == 0);
}

/* After step 3 of 5000: 3000 tokens in 2 s since the last line, and 2 s per step with what lay between the steps. */
static struct sh_progress three_steps(void)
{
    return (struct sh_progress){.total = 5000,
                                .log_freq = 10,
                                .ranks = 4,
                                .peak_tflops = 0.5,
                                .tokens = 3000,
                                .seconds = 2,
                                .steps = 3,
                                .n_recent = 2,
                                .recent_sum = 4};
}

/* Parts that do not fit are left out, the least important first; no line is ever wider than allowed. */
static void a_line_fits_the_window(void **state)
{
    static const struct {
        int columns;
        const char *line;
    } golden[] = {
        {0,
         "step    3/5000  loss 2.5000  grad_norm 0.100  lr 3.00e-04  1500 tokens/s  MFU 75.0 %  24.0 GiB  ETA 2 h 46 m"},
        {108,
         "step    3/5000  loss 2.5000  grad_norm 0.100  lr 3.00e-04  1500 tokens/s  MFU 75.0 %  24.0 GiB  ETA 2 h 46 m"},
        {107, "step    3/5000  loss 2.5000  lr 3.00e-04  1500 tokens/s  MFU 75.0 %  24.0 GiB  ETA 2 h 46 m"},
        {79, "step    3/5000  loss 2.5000  1500 tokens/s  MFU 75.0 %  ETA 2 h 46 m"},
        {60, "step    3/5000  loss 2.5000  1500 tokens/s  ETA 2 h 46 m"},
        {45, "step    3/5000  loss 2.5000  1500 tokens/s"},
        {39, "step    3/5000  loss 2.5000"},
        {12, "step    3/50"},
    };
    struct sh_progress p = three_steps();
    char text[SH_PROGRESS_LINE];

    (void)state;
    for (size_t i = 0; i < sizeof golden / sizeof *golden; i++) {
        sh_progress_line(&p, &step, golden[i].columns, text);
        assert_string_equal(text, golden[i].line);
    }
    for (int columns = 1; columns < 150; columns++) {
        sh_progress_line(&p, &step, columns, text);
        assert_true(strlen(text) <= (size_t)columns);
    }
}

static void run_uneven(void)
{
    struct sh_progress p;
    struct sh_step_metrics s = step;

    sh_progress_init(&p, true, 1000, 10, 1, 0);
    for (s.step = 1; s.step <= 20; s.step++) {
        s.time.step = s.step % 2 ? 0.5 : 1.5; /* one second on average */
        s.since_last = s.step == 1 ? 100 : s.time.step + 1;
        sh_progress_step(&p, &s);
    }
}

/* Lines of steps 1, 10 and 20. The first step counts for the speed, not for the time left. */
static void speed_is_a_mean_and_the_rest_is_foreseen(void **state)
{
    static const char *const ends[] = {"  2000 tokens/s  24.0 GiB\n", "  947 tokens/s  24.0 GiB  ETA 33 m 55 s\n",
                                       "  1000 tokens/s  24.0 GiB  ETA 33 m 6 s\n"};
    char text[4096], *at = text;

    (void)state;
    capture(run_uneven, text, sizeof text);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        char *end = strchr(at, '\n');

        assert_non_null(end);
        if (strncmp(end + 1 - strlen(ends[i]), ends[i], strlen(ends[i])))
            fail_msg("%.*s does not end in %s", (int)(end - at), at, ends[i]);
        at = end + 1;
    }
}

static const char *line_of(struct sh_step_metrics s, int columns, char text[SH_PROGRESS_LINE])
{
    struct sh_progress p = three_steps();

    sh_progress_line(&p, &s, columns, text);
    return text;
}

/* A line says by what the loss was scaled; the reason for a skipped step is the last part to be left out. */
static void a_line_says_what_is_special(void **state)
{
    struct sh_step_metrics scaled = step, skipped = step;
    char text[SH_PROGRESS_LINE];

    (void)state;
    scaled.loss_scale = 0x1p40;
    skipped.skipped = "gradient norm is an outlier";
    assert_non_null(strstr(line_of(scaled, 0, text), "  lr 3.00e-04  loss_scale 1099511627776  1500 tokens/s  "));
    assert_string_equal(line_of(skipped, 79, text),
                        "step    3/5000  loss 2.5000  skipped: gradient norm is an outlier");
}

/* A job that was killed within a line leaves its begin, and the next start continues there. */
static void a_torn_line_hides_no_recovery(void **state)
{
    static const char back[] = "{\"event\":\"start\",\"step\":3,\"resumed_from\":\"near checkpoint\"";
    FILE *f = fopen(path, "w");
    struct sh_metrics *m;

    (void)state;
    assert_non_null(f);
    fprintf(f, "{\"event\":\"start\",\"resumed_from\":null}\n%s}\n{\"event\":\"st%s}\n%s,\"par%s}\n", back, back, back,
            back);
    fclose(f);
    assert_int_equal(sh_metrics_open(path, &m), SH_OK);
    assert_int_equal(sh_metrics_recoveries(m), 4);
    sh_metrics_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_has_every_field),
        cmocka_unit_test(what_is_written_is_read),
        cmocka_unit_test(the_page_names_every_key),
        cmocka_unit_test(what_is_not_finite_is_null),
        cmocka_unit_test(a_checkpoint_is_a_line),
        cmocka_unit_test(a_rollback_is_a_line),
        cmocka_unit_test(events_are_lines),
        cmocka_unit_test(a_file_that_cannot_be_written_is_an_error),
        cmocka_unit_test(a_trace_is_json),
        cmocka_unit_test(a_trace_survives_any_name),
        cmocka_unit_test(a_trace_links_what_belongs_together),
        cmocka_unit_test(progress_off_a_terminal),
        cmocka_unit_test(mfu_is_what_the_page_says),
        cmocka_unit_test(a_line_fits_the_window),
        cmocka_unit_test(a_line_says_what_is_special),
        cmocka_unit_test(speed_is_a_mean_and_the_rest_is_foreseen),
        cmocka_unit_test(moves_have_their_bytes),
        cmocka_unit_test(a_torn_line_hides_no_recovery),
    };
    return cmocka_run_group_tests(tests, make_file, remove_file);
}
