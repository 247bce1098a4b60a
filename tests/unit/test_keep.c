/* The keeper and its packets, with processes that stand in for ranks. */
#include "src/near/keep.h"

#include "src/base/time.h"
#include "src/near/next.h"
#include "src/near/pulse.h"
#include "src/near/wire.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[] = "keep-XXXXXX";
static pid_t keeper;

static void on_signal(int which)
{
    (void)which;
    sh_keep_leave(NULL);
}

static int begin(void **state)
{
    (void)state;
    strcpy(folder + 5, "XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    keeper = fork();
    if (keeper == 0 && signal(SIGUSR1, on_signal) != SIG_ERR)
        _exit(sh_keep_serve(folder, 1 << 20, 0.3));
    return keeper < 0;
}

static int end(void **state)
{
    (void)state;
    kill(keeper, SIGKILL);
    waitpid(keeper, NULL, 0);
    return rmdir(folder);
}

/* A process that is a rank until it is killed. `held`: a child of it keeps the connection, as if it could not end. Both are
 * of one group, whose number is returned. */
static pid_t be_rank(int rank, uint64_t start, bool held)
{
    int ready[2], fd;
    uint64_t id;
    char byte;
    pid_t pid;

    assert_int_equal(pipe(ready), 0);
    pid = fork();
    if (pid == 0) {
        setpgid(0, 0);
        alarm(60); /* a test that fails ends no rank */
        if (sh_keep_connect(folder, 10, &fd) != SH_OK || sh_keep_hello(fd, 0, rank, 2, start, &id) != SH_OK)
            _exit(1);
        if ((!held || fork() > 0) && write(ready[1], "x", 1) != 1)
            _exit(1);
        alarm(60); /* of the child, too: it inherits none */
        for (;;)
            pause();
    }
    close(ready[1]);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    return pid;
}

static int hello(int rank, uint64_t start)
{
    uint64_t id;
    int fd;

    assert_int_equal(sh_keep_connect(folder, 10, &fd), SH_OK);
    assert_int_equal(sh_keep_hello(fd, 0, rank, 2, start, &id), SH_OK);
    return fd;
}

/* A death is told although another rank of the same start says hello afterwards. */
static void a_later_hello_does_not_hide_a_death(void **state)
{
    pid_t pid = be_rank(1, 7, false);
    int rank = -1, late, fd = hello(0, 7);
    struct pollfd p = {.fd = fd, .events = POLLIN};

    (void)state;
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    usleep(100000);
    late = hello(2, 7);
    assert_int_equal(poll(&p, 1, 10000), 1);
    assert_true(sh_keep_hear(fd, &rank));
    assert_int_equal(rank, 1);
    close(late);
    close(fd);
}

/* The next start waits until the ranks of the one before are gone. */
static void the_next_start_has_the_node_to_itself(void **state)
{
    pid_t pid = be_rank(0, 7, false);
    int fd = hello(0, 8), status;

    (void)state;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    close(fd);
}

/* One that cannot end is named, and the next start does not begin beside it. */
static void a_rank_that_cannot_end_is_named(void **state)
{
    pid_t pid = be_rank(5, 7, true);
    int64_t began = sh_now_ns();
    char process[32];
    uint64_t id;
    int fd;

    (void)state;
    assert_int_equal(sh_keep_connect(folder, 10, &fd), SH_OK);
    assert_int_equal(sh_keep_hello(fd, 0, 0, 2, 8, &id), SH_E_COMM);
    assert_true(sh_seconds_since(began) >= 0.3);
    snprintf(process, sizeof process, "process %lld", (long long)pid);
    assert_non_null(strstr(sh_error_text(), "rank 5 of an earlier start"));
    assert_non_null(strstr(sh_error_text(), process));
    sh_error_clear();
    kill(-pid, SIGKILL);
    waitpid(pid, NULL, 0);
    close(fd);
    close(hello(0, 8));
}

/* A rank that stood still before its hello, while its start ended, does not end the next one. */
static void a_late_rank_of_an_earlier_start_is_turned_away(void **state)
{
    uint64_t id;
    pid_t pid;
    int fd;

    (void)state;
    setenv("SHERD_START", "2", 1);
    pid = be_rank(0, 8, false);
    setenv("SHERD_START", "1", 1);
    assert_int_equal(sh_keep_connect(folder, 10, &fd), SH_OK);
    assert_int_equal(sh_keep_hello(fd, 0, 1, 2, 7, &id), SH_E_COMM);
    assert_non_null(
        strstr(sh_error_text(), "a later start of the run has come to this node before this rank, process "));
    sh_error_clear();
    close(fd);
    setenv("SHERD_START", "2", 1);
    close(hello(1, 8));
    unsetenv("SHERD_START");
    assert_int_equal(waitpid(pid, NULL, WNOHANG), 0);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

/* Nor does one whose hello still waits for a rank of the start before its own. */
static void a_waiting_rank_of_an_earlier_start_is_turned_away(void **state)
{
    struct sh_wire first = {.kind = SH_WIRE_HELLO, .world = 2, .start = 17, .slot = 4},
                   second = {.kind = SH_WIRE_HELLO, .world = 2, .start = 18, .slot = 5};
    int64_t begin;
    int a, b;
    bool soon;
    pid_t pid;

    (void)state;
    setenv("SHERD_START", "3", 1);
    pid = be_rank(5, 16, true);
    unsetenv("SHERD_START");
    assert_int_equal(sh_keep_connect(folder, 10, &a), SH_OK);
    assert_int_equal(sh_keep_connect(folder, 10, &b), SH_OK);
    begin = sh_now_ns();
    assert_true(sh_wire_send(a, &first, -1));
    usleep(50000);
    assert_true(sh_wire_send(b, &second, -1));
    soon = sh_seconds_since(begin) < 0.2; /* else it may have waited long enough */
    assert_true(sh_wire_receive(a, &first, NULL));
    assert_int_equal(first.rc, SH_E_COMM);
    assert_true(!soon || strstr(first.text, "a later start of the run has come to this node before this rank"));
    kill(-pid, SIGKILL);
    waitpid(pid, NULL, 0);
    close(a);
    close(b);
}

/* A keeper that leaves kills its ranks, and is there for as long as one of them. */
static void a_keeper_that_leaves_ends_its_ranks(void **state)
{
    pid_t pid = be_rank(3, 7, true);
    int fd, status;

    (void)state;
    kill(keeper, SIGUSR1);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    usleep(200000);
    assert_int_equal(sh_keep_connect(folder, 0, &fd), SH_OK);
    close(fd);
    assert_int_equal(waitpid(keeper, &status, WNOHANG), 0);
    kill(-pid, SIGKILL);
    assert_int_equal(waitpid(keeper, &status, 0), keeper);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == SH_OK);
    assert_int_equal(sh_keep_connect(folder, 0, &fd), SH_E_COMM);
    sh_error_clear();
    keeper = fork(); /* for end() */
    if (keeper == 0)
        for (;;)
            pause();
}

/* Whoever asks for near checkpoints and started no keeper learns how to. */
static void a_missing_keeper_is_said(void **state)
{
    int fd;

    (void)state;
    kill(keeper, SIGKILL);
    waitpid(keeper, NULL, 0);
    assert_int_equal(sh_keep_connect(folder, 0, &fd), SH_E_COMM);
    assert_non_null(strstr(sh_error_text(), "start one before the run, in the same folder: `sherd keep CONFIG &`"));
    sh_error_clear();
    keeper = fork();
    if (keeper == 0)
        _exit(sh_keep_serve(folder, 1 << 20, 0.3));
}

/* A keeper, and from here on ranks, of a script whose watch is "a". */
static void begin_watched(double seconds)
{
    kill(keeper, SIGKILL);
    waitpid(keeper, NULL, 0);
    setenv(SH_PULSE_VARIABLE, "a:1:aa", 1);
    keeper = fork();
    if (keeper == 0) {
        sh_next_begin();
        _exit(sh_keep_serve(folder, 1 << 20, seconds));
    }
}

/* A script that stood still while another took its place may still start ranks, or have some. */
static void only_ranks_of_its_own_script_are_let_in(void **state)
{
    uint64_t id;
    pid_t pid;
    int fd, status;

    (void)state;
    begin_watched(0.3);
    pid = be_rank(0, 7, false);
    assert_int_equal(sh_keep_connect(folder, 0, &fd), SH_OK);
    assert_int_equal(sh_keep_follow(fd, "b:2:bb"), SH_OK);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    assert_int_equal(sh_keep_hello(fd, 0, 0, 2, 8, &id), SH_E_COMM);
    assert_non_null(strstr(sh_error_text(), "another script has taken the place"));
    sh_error_clear();
    setenv(SH_PULSE_VARIABLE, "b:2:bb", 1);
    close(hello(0, 9));
    unsetenv(SH_PULSE_VARIABLE); /* a rank that somebody has started by hand */
    close(hello(1, 9));
    close(fd);
}

/* Nor is one let in that had said hello before the keeper was told of the other script. */
static void a_rank_that_waits_may_be_of_the_script_before(void **state)
{
    pid_t pid;
    struct sh_wire m = {.kind = SH_WIRE_HELLO, .rank = 1, .start = 8, .text = "a:1:aa"};
    int fd, late;

    (void)state;
    begin_watched(30);
    pid = be_rank(0, 7, true);
    assert_int_equal(sh_keep_connect(folder, 10, &late), SH_OK);
    assert_true(sh_wire_send(late, &m, -1));
    usleep(100000);
    assert_int_equal(sh_keep_connect(folder, 0, &fd), SH_OK);
    assert_int_equal(sh_keep_follow(fd, "b:2:bb"), SH_OK);
    usleep(100000);
    kill(-pid, SIGKILL);
    waitpid(pid, NULL, 0);
    assert_true(sh_wire_receive(late, &m, NULL));
    assert_int_equal(m.rc, SH_E_COMM);
    assert_non_null(strstr(m.text, "another script has taken the place"));
    unsetenv(SH_PULSE_VARIABLE);
    close(late);
    close(fd);
}

/* A script that has heard no answer says again which watch it has, and may have started ranks. */
static void to_follow_once_more_ends_nobody(void **state)
{
    pid_t pid;
    int fd;

    (void)state;
    begin_watched(0.3);
    assert_int_equal(sh_keep_connect(folder, 10, &fd), SH_OK);
    assert_int_equal(sh_keep_follow(fd, "b:2:bb"), SH_OK);
    setenv(SH_PULSE_VARIABLE, "b:2:bb", 1);
    pid = be_rank(0, 9, false);
    assert_int_equal(sh_keep_follow(fd, "b:2:bb"), SH_OK);
    usleep(100000);
    assert_int_equal(waitpid(pid, NULL, WNOHANG), 0);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    unsetenv(SH_PULSE_VARIABLE);
    close(fd);
}

/* ---- packets ---- */

static int count_open(void)
{
    int n = 0;

    for (int fd = 0; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

/* Send two descriptors, where a packet carries one. */
static void send_two(int socket)
{
    struct sh_wire m = {.kind = SH_WIRE_TAKE};
    struct iovec data = {.iov_base = &m, .iov_len = sizeof m};
    union {
        char bytes[CMSG_SPACE(2 * sizeof(int))];
        struct cmsghdr align;
    } room = {0};
    struct msghdr h = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = room.bytes, .msg_controllen = sizeof room.bytes};
    struct cmsghdr *c = CMSG_FIRSTHDR(&h);
    const int two[2] = {0, 1};

    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof two);
    memcpy(CMSG_DATA(c), two, sizeof two);
    assert_int_equal(sendmsg(socket, &h, 0), sizeof m);
}

static void only_one_descriptor_is_taken(void **state)
{
    struct sh_wire m;
    int pair[2], before, fd;

    (void)state;
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
    before = count_open();
    send_two(pair[0]);
    assert_true(sh_wire_receive(pair[1], &m, &fd));
    assert_int_equal(count_open(), before + 1);
    close(fd);
    send_two(pair[0]);
    assert_true(sh_wire_receive(pair[1], &m, NULL));
    assert_int_equal(count_open(), before);
    close(pair[0]);
    close(pair[1]);
}

/* What the doctor asks. */
static void a_keeper_can_be_tried(void **state)
{
    struct sh_keep_part part = {.rank = 0, .world = 1, .bytes = 8192};
    bool running;
    int64_t reserved;
    int fd;

    (void)state;
    assert_int_equal(sh_keep_connect(folder, 10, &fd), SH_OK);
    assert_int_equal(sh_keep_take(fd, 0, &part), SH_OK);
    close(part.fd);
    close(fd);
    assert_int_equal(sh_keep_try(folder, &running, &reserved), SH_OK);
    assert_true(running);
    assert_int_equal(reserved, 8192);
    kill(keeper, SIGKILL);
    waitpid(keeper, NULL, 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(sh_keep_try(folder, &running, &reserved), SH_OK);
        assert_false(running);
        assert_int_equal(reserved, 0);
    }
    assert_int_equal(sh_keep_try("/proc/no", &running, &reserved), SH_E_DATA);
}

/* The doctor may try while the script starts keepers. */
static void a_keeper_begins_beside_a_doctor(void **state)
{
    pid_t doctor = fork();

    (void)state;
    if (doctor == 0) {
        alarm(60);
        for (bool running;;) {
            int64_t reserved;

            if (sh_keep_try(folder, &running, &reserved) != SH_OK)
                sh_error_clear(); /* the keeper is killed meanwhile */
        }
    }
    for (int i = 0; i < 20; i++) {
        kill(keeper, SIGKILL);
        waitpid(keeper, NULL, 0);
        keeper = fork();
        if (keeper == 0)
            _exit(sh_keep_serve(folder, 1 << 20, 0.3));
        close(hello(0, 7));
    }
    kill(doctor, SIGKILL);
    waitpid(doctor, NULL, 0);
}

/* Nobody listens at port 1, and the other name is reserved for names that do not exist (RFC 2606). */
static void a_watch_that_cannot_be_reached_is_named(void **state)
{
    (void)state;
    assert_int_equal(sh_pulse_try("127.0.0.1:1:0", 0), SH_E_COMM);
    assert_int_equal(sh_pulse_try("node.invalid:1:0", 0), SH_E_COMM);
    assert_non_null(strstr(sh_error_text(), "node.invalid cannot be reached"));
}

/* More calls than the kernel keeps: each is taken, and hung up on. */
static void a_stand_in_takes_each_call(void **state)
{
    const struct timeval most = {.tv_sec = 10};
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    struct sh_pulse_answer *answer;
    char address[512], local[64], byte;
    int fd[200];

    (void)state;
    assert_int_equal(sh_pulse_answer_begin(address, sizeof address, &answer), SH_OK);
    at.sin_port = htons((uint16_t)atoi(strchr(address, ':') + 1));
    for (int i = 0; i < 200; i++) {
        fd[i] = socket(AF_INET, SOCK_STREAM, 0);
        setsockopt(fd[i], SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
        assert_int_equal(connect(fd[i], (struct sockaddr *)&at, sizeof at), 0);
    }
    for (int i = 0; i < 200; i++) {
        assert_int_equal(recv(fd[i], &byte, 1, 0), 0);
        close(fd[i]);
    }
    snprintf(local, sizeof local, "127.0.0.1:%d:0", ntohs(at.sin_port));
    assert_int_equal(sh_pulse_try(local, 0), SH_OK);
    sh_pulse_answer_end(answer);
    assert_int_equal(sh_pulse_try(local, 0), SH_E_COMM);
    sh_error_clear();
}

/* A node whose first try is lost tries again, as its keeper would. */
static void a_try_is_made_again(void **state)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof at;
    char local[64];
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    pid_t pid;

    (void)state;
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &length), 0);
    pid = fork();
    if (pid == 0) {
        usleep(300000);
        _exit(listen(fd, 8) || sleep(20)); /* the caller ends it */
    }
    snprintf(local, sizeof local, "127.0.0.1:%d:0", ntohs(at.sin_port));
    assert_int_equal(sh_pulse_try(local, 20), SH_OK);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    close(fd);
}

/* ---- a watch ---- */

enum { STILL_SECONDS = 6 };

/* In place of the C library's: whoever hears this byte stands still for a while. */
ssize_t recv(int fd, void *bytes, size_t n, int flags)
{
    ssize_t got = recvfrom(fd, bytes, n, flags, NULL, NULL);

    if (got > 0 && memchr(bytes, '!', (size_t)got))
        for (unsigned left = STILL_SECONDS; left > 0;)
            left = sleep(left); /* a signal ends it */
    return got;
}

/* Start a watch; returns its process, the end of its pipe, and its port and token. */
static pid_t begin_watch(double silence, FILE **said, int *port, char token[32])
{
    char line[256];
    int out[2];
    pid_t pid;

    assert_int_equal(pipe(out), 0);
    fflush(stdout); /* what the child has of it goes to the pipe */
    pid = fork();
    if (pid == 0) {
        alarm(600);
        dup2(out[1], STDOUT_FILENO);
        _exit(sh_pulse_watch(silence));
    }
    close(out[1]);
    *said = fdopen(out[0], "r");
    assert_non_null(fgets(line, sizeof line, *said));
    assert_int_equal(sscanf(line, "watch %*[^:]:%d:%31[0-9a-f]", port, token), 2);
    return pid;
}

static int call_watch(int port, const char *token, const char *node)
{
    struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}, .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_true(dprintf(fd, "%s %s\n", token, node) > 0);
    return fd;
}

/* A watch that stands still while it listens to one node has not listened to the others. */
static void a_watch_that_stands_still_blames_nobody(void **state)
{
    char token[32], line[64];
    int port, fd[2];
    FILE *said;
    pid_t pid = begin_watch(STILL_SECONDS - 1, &said, &port, token);
    struct pollfd p = {.fd = fileno(said), .events = POLLIN};

    (void)state;
    for (int i = 0; i < 2; i++) {
        fd[i] = call_watch(port, token, i ? "n1" : "n0");
        assert_non_null(fgets(line, sizeof line, said));
    }
    assert_true(write(fd[1], ".", 1) == 1 && write(fd[0], "!\n", 2) == 2);
    kill(pid, SIGUSR1);
    while (poll(&p, 1, 100) == 0)
        assert_true(write(fd[1], ".", 1) == 1 && write(fd[0], ".", 1) == 1);
    assert_non_null(fgets(line, sizeof line, said));
    assert_string_equal(line, "all\n");
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    fclose(said);
    close(fd[0]);
    close(fd[1]);
}

/* A keeper may be told of the next watch while it still calls the one before, whose node is lost. */
static void a_keeper_that_finds_no_watch_turns_to_the_next(void **state)
{
    char token[32], line[64], address[64];
    int port, fd;
    FILE *said;
    pid_t pid = begin_watch(60, &said, &port, token);

    (void)state;
    kill(keeper, SIGKILL);
    waitpid(keeper, NULL, 0);
    keeper = fork();
    if (keeper == 0)
        _exit(sh_pulse_start("127.0.0.1:1:aa") != SH_OK || sh_keep_serve(folder, 1 << 20, 0.3));
    assert_int_equal(sh_keep_connect(folder, 10, &fd), SH_OK);
    snprintf(address, sizeof address, "127.0.0.1:%d:%s", port, token);
    assert_int_equal(sh_keep_follow(fd, address), SH_OK);
    close(fd);
    assert_non_null(fgets(line, sizeof line, said));
    assert_int_equal(strncmp(line, "here ", 5), 0);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    fclose(said);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_later_hello_does_not_hide_a_death, begin, end),
        cmocka_unit_test_setup_teardown(the_next_start_has_the_node_to_itself, begin, end),
        cmocka_unit_test_setup_teardown(a_rank_that_cannot_end_is_named, begin, end),
        cmocka_unit_test_setup_teardown(a_late_rank_of_an_earlier_start_is_turned_away, begin, end),
        cmocka_unit_test_setup_teardown(a_waiting_rank_of_an_earlier_start_is_turned_away, begin, end),
        cmocka_unit_test_setup_teardown(a_keeper_that_leaves_ends_its_ranks, begin, end),
        cmocka_unit_test_setup_teardown(a_missing_keeper_is_said, begin, end),
        cmocka_unit_test_setup_teardown(a_keeper_can_be_tried, begin, end),
        cmocka_unit_test_setup_teardown(a_keeper_begins_beside_a_doctor, begin, end),
        cmocka_unit_test(a_watch_that_cannot_be_reached_is_named),
        cmocka_unit_test(a_stand_in_takes_each_call),
        cmocka_unit_test(a_try_is_made_again),
        cmocka_unit_test(a_watch_that_stands_still_blames_nobody),
        cmocka_unit_test_setup_teardown(a_keeper_that_finds_no_watch_turns_to_the_next, begin, end),
        cmocka_unit_test_setup_teardown(only_ranks_of_its_own_script_are_let_in, begin, end),
        cmocka_unit_test_setup_teardown(a_rank_that_waits_may_be_of_the_script_before, begin, end),
        cmocka_unit_test_setup_teardown(to_follow_once_more_ends_nobody, begin, end),
        cmocka_unit_test(only_one_descriptor_is_taken),
    };

    alarm(300); /* several wait for a process to end */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
