/*
 * The kernel refuses to let a process read another one's memory: because of users, capabilities,
 * flags, system call filters or namespaces. Each error says why. If there is another way to read,
 * it is used. Source and receiver are separate processes, because they cannot take back the rights
 * that they give up.
 *
 * Most cases need root to change users or to create namespaces. Without root they print that, and
 * do nothing.
 */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "lane/cma/cma.h"
#include "lane/lanes.h"
#include "support/build.h"

enum { USER = 65534, OTHER_USER = 65533, BYTES = 300000, STEP = 1000, PATIENCE_S = 20 };

/** The receiver's results, sent to the test. */
typedef struct outcome {
    wherry_status status; /**< Result of the last probe. */
    wherry_status first;  /**< Result of the first probe, if the source was then asked for help. */
    wherry_status pulled;
    bool assisted; /**< The source was asked for help. */
    wherry_status assist_status;
    bool by_memory; /**< The bytes were read from /proc/PID/mem. */
    bool right;     /**< All bytes are as expected. */
    char message[WHERRY_ERROR_MESSAGE_MAX];
    char assist_message[WHERRY_ERROR_MESSAGE_MAX];
} outcome;

/**
 * A case: what source and receiver do to themselves before they begin, and how the offer is changed
 * on its way. Each function may be NULL.
 */
typedef struct scene {
    void (*source)(void);
    void (*receiver)(void);
    void (*both)(void);
    void (*tamper)(wh_cma_offer *offer);
    bool source_dies;  /**< The source ends before the probe. */
    bool dies_at_pull; /**< The source ends between probe and pull. */
    bool vouched;      /**< The group knows the source's process. */
    bool keep_ptracer;
    bool source_namespace; /**< The source has its own pid namespace. */
    bool receiver_namespace;
} scene;

/** At the same addresses in all processes. Only the source fills source_bytes. */
static uint8_t source_bytes[BYTES];
static uint8_t target_bytes[BYTES];
static int32_t vouched_process;
/** The pid of a process forked from the source, in shared memory; NULL: there is none. */
static atomic_int *bystander;

static int32_t process_of(wh_group *group, int32_t rank) {
    (void)group;
    (void)rank;
    return vouched_process;
}

static const wh_group_backend group_ops = {.name = "scene", .process = process_of};
static wh_group scene_group = {.ops = &group_ops, .rank = 1, .size = 2};

static wh_lane_site site_of(wh_stop *stop, const scene *s) {
    if (wh_stop_init(stop, NULL) != WHERRY_OK) {
        abort();
    }
    return (wh_lane_site){.group = &scene_group,
                          .peer = 0,
                          .threads = 1,
                          .stop = stop,
                          .keep_ptracer = s->keep_ptracer,
                          .deadline = wh_deadline_in_ms(PATIENCE_S * 1000),
                          .no_progress_ms = 1000};
}

static void put(int fd, const void *bytes, size_t size) {
    if (write(fd, bytes, size) != (ssize_t)size) {
        abort();
    }
}

/** @return false at the end of the stream. */
static bool get(int fd, void *bytes, size_t size) {
    return read(fd, bytes, size) == (ssize_t)size;
}

/*
 * The sink has one chunk. The receiver stores its pieces in reverse order, and skips every third.
 */

static bool sink_next(void *context, uint64_t *chunk_p) {
    bool *given = context;
    *chunk_p = 0;
    return !*given && (*given = true);
}

static bool is_wanted(size_t at) {
    return at / STEP % 3 != 2;
}

static wherry_status sink_origin(void *context, uint64_t chunk, wh_segments *segments, wherry_error *error) {
    (void)context;
    (void)chunk;
    (void)error;
    return wh_segments_add(segments, source_bytes, BYTES) ? WHERRY_OK : WHERRY_NO_MEMORY;
}

static wherry_status sink_open(void *context, uint64_t chunk, wh_landing *landing, wherry_error *error) {
    (void)context;
    (void)chunk;
    (void)error;
    bool good = true;
    for (size_t at = 0; at < BYTES; at += STEP) {
        good =
            good && wh_segments_add(&landing->segments, is_wanted(at) ? target_bytes + BYTES - STEP - at : NULL, STEP);
    }
    return good ? WHERRY_OK : WHERRY_NO_MEMORY;
}

static wherry_status sink_close(void *context, wh_landing *landing, const wherry_digest *digest,
                                const wherry_digest *claimed, wherry_error *error) {
    (void)context;
    (void)landing;
    (void)digest;
    (void)claimed;
    (void)error;
    return WHERRY_OK;
}

static void sink_moved(void *context, uint64_t bytes) {
    (void)context;
    (void)bytes;
}

static uint8_t byte_at(size_t at) {
    return (uint8_t)(at * 7 + at / 251 + 1);
}

static bool is_right(void) {
    for (size_t at = 0; at < BYTES; at++) {
        size_t here = BYTES - STEP - at / STEP * STEP + at % STEP;
        if (target_bytes[here] != (is_wanted(at) ? byte_at(at) : 0)) {
            return false;
        }
    }
    return true;
}

/** The source makes an offer, helps if it is asked, and stays until the receiver is done. */
static void be_source(const scene *s, int in, int out) {
    wh_stop stop;
    uint8_t request[WH_CMA_REQUEST_BYTES];
    wherry_error error = {0};
    wh_string offer = {0};
    for (size_t at = 0; at < BYTES; at++) {
        source_bytes[at] = byte_at(at);
    }
    if (s->source) {
        s->source();
    }
    wh_lane_site site = site_of(&stop, s);
    if (wh_lane_cma.offer(&site, &offer, &error) != WHERRY_OK || offer.size != WH_CMA_OFFER_BYTES) {
        fprintf(stderr, "offer: %s\n", error.message);
        abort();
    }
    put(out, offer.bytes, offer.size);
    while (!s->source_dies && get(in, request, sizeof(request)) && request[0] != 0) {
        outcome helped = {0};
        helped.assist_status = wh_lane_cma.assist(&site, request, sizeof(request), &error);
        memcpy(helped.assist_message, error.message, sizeof(error.message));
        put(out, &helped, sizeof(helped));
    }
    if (bystander) {
        kill(atomic_load(bystander), SIGKILL);
        waitpid(atomic_load(bystander), NULL, 0);
    }
}

/**
 * Waits until the source has ended and the test has its exit status, so that its pid can be reused.
 */
static void await_end(pid_t source) {
    while (kill(source, 0) == 0) {
        usleep(1000); /* An alarm ends this process if it takes too long. */
    }
}

static void probe(const wh_lane_site *site, const void *offer, int in, int out, wh_lane_end **end_p, outcome *o) {
    wherry_error error = {0};
    for (int tries = 0; tries < 2 && (tries == 0 || o->assisted); tries++) {
        wh_string request = {0};
        bool assist = false;
        outcome helped;
        o->status = wh_lane_cma.probe(site, offer, WH_CMA_OFFER_BYTES, &request, &assist, end_p, &error);
        memcpy(o->message, error.message, sizeof(o->message));
        if (tries == 0 && assist) {
            o->first = o->status;
            o->assisted = true;
            put(out, request.bytes, request.size);
            if (!get(in, &helped, sizeof(helped))) {
                abort();
            }
            o->assist_status = helped.assist_status;
            memcpy(o->assist_message, helped.assist_message, sizeof(o->assist_message));
        }
        wh_free(request.bytes);
    }
}

/** The receiver probes and, if that succeeds, pulls. */
static void be_receiver(const scene *s, int source, int in, int out, int results) {
    uint8_t bytes[WH_CMA_OFFER_BYTES];
    wh_cma_offer offer;
    wh_string tampered = {0};
    wh_stop stop;
    wh_lane_end *end = NULL;
    wherry_error error = {0};
    outcome o = {0};
    bool given = false;
    wh_sink sink = {.context = &given,
                    .verify = false,
                    .next = sink_next,
                    .origin = sink_origin,
                    .open = sink_open,
                    .close = sink_close,
                    .moved = sink_moved};
    if (s->receiver) {
        s->receiver();
    }
    if (!get(in, bytes, sizeof(bytes)) || wh_cma_parse_offer(bytes, sizeof(bytes), &offer, &error) != WHERRY_OK) {
        abort();
    }
    if (s->tamper) {
        s->tamper(&offer);
    }
    if (s->source_dies) {
        await_end(source);
    }
    wh_cma_append_offer(&tampered, &offer);
    vouched_process = s->vouched ? source : 0;
    wh_lane_site site = site_of(&stop, s);
    probe(&site, tampered.bytes, in, out, &end, &o);
    if (s->dies_at_pull) {
        char nothing[WH_CMA_REQUEST_BYTES] = {0};
        put(out, nothing, sizeof(nothing)); /* This ends the source. */
        await_end(source);
    }
    if (o.status == WHERRY_OK) {
        o.by_memory = wh_cma_end_of(end)->peer.memory >= 0;
        o.pulled = wh_lane_cma.pull(end, 0, &sink, &error);
        memcpy(o.message, error.message, sizeof(o.message));
        o.right = is_right();
    }
    wh_lane_cma.close(end);
    put(results, &o, sizeof(o));
}

/** Forks a child, which has its own pid namespace if `own_namespace`. @return as fork. */
static pid_t start(const scene *s, bool own_namespace) {
    int back = -1;
    if (own_namespace) {
        back = open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC);
        assert_int_equal(unshare(CLONE_NEWPID), 0);
    }
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        wherry_log_set_level(WHERRY_LOG_OFF);
        alarm(PATIENCE_S);
        if (s->both) {
            s->both();
        }
    } else if (own_namespace) {
        assert_int_equal(setns(back, CLONE_NEWPID), 0);
        close(back);
    }
    return child;
}

static outcome play(const scene *s) {
    int to_source[2];
    int to_receiver[2];
    int results[2];
    int status;
    outcome o = {0};
    assert_int_equal(pipe(to_source) | pipe(to_receiver) | pipe(results), 0);
    pid_t source = start(s, s->source_namespace);
    if (source == 0) {
        close(to_source[1]);
        be_source(s, to_source[0], to_receiver[1]);
        _exit(0);
    }
    close(to_receiver[1]);
    close(to_source[0]);
    pid_t receiver = start(s, s->receiver_namespace);
    if (receiver == 0) {
        be_receiver(s, source, to_receiver[0], to_source[1], results[1]);
        _exit(0);
    }
    close(to_source[1]);
    close(to_receiver[0]);
    close(results[1]);
    assert_int_equal(waitpid(source, &status, 0), source);
    assert_int_equal(status, 0);
    assert_true(get(results[0], &o, sizeof(o)));
    assert_int_equal(waitpid(receiver, &status, 0), receiver);
    assert_int_equal(status, 0);
    close(results[0]);
    return o;
}

static bool is_root(void) {
    if (geteuid() != 0) {
        fprintf(stderr, "skipped: only root can change users and create namespaces; run this test as root\n");
    }
    return geteuid() == 0;
}

static void says(const char *text, const char *part) {
    if (!strstr(text, part)) {
        fail_msg("\"%s\" does not say \"%s\"", text, part);
    }
}

static void refused(const outcome *o, wherry_status status, const char *part) {
    says(o->message, part);
    assert_int_equal(o->status, status);
    assert_false(o->right);
}

static void worked(const outcome *o, bool by_memory) {
    if (o->status != WHERRY_OK || o->pulled != WHERRY_OK) {
        fail_msg("%s", o->message);
    }
    assert_int_equal(o->by_memory, by_memory);
    assert_true(o->right);
}

/**
 * Switches to a user without capabilities. The kernel then marks the process as not dumpable, which
 * this undoes.
 */
static void become(uid_t user) {
    if (setgroups(0, NULL) || setresgid(USER, USER, USER) || setresuid(user, user, user) ||
        prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)) {
        abort();
    }
}

static void become_user(void) {
    become(USER);
}

static void become_other_user(void) {
    become(OTHER_USER);
}

static void become_user_with_rights(void) {
    if (prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0)) {
        abort();
    }
    become(USER);
}

static void become_not_dumpable(void) {
    become(USER);
    if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)) {
        abort();
    }
}

static void filter(int errnum) {
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)errnum),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof(steps) / sizeof(*steps), steps};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) {
        abort();
    }
}

static void filter_eperm(void) {
    filter(EPERM);
}

static void filter_enosys(void) {
    filter(ENOSYS);
}

static void filter_and_become_other_user(void) {
    become(OTHER_USER);
    filter(ENOSYS);
}

static void test_same_user(void **state) {
    (void)state;
    scene s = {.source = become_user, .receiver = become_user};
    if (is_root()) {
        outcome o = play(&s);
        worked(&o, false);
    }
}

static void test_other_user(void **state) {
    (void)state;
    scene s = {.source = become_user, .receiver = become_other_user};
    if (is_root()) {
        outcome o = play(&s);
        refused(&o, WHERRY_REFUSED, "the source runs as user 65534 and this process as user 65533");
        says(o.message, "CAP_SYS_PTRACE");
        says(o.message, "/mem: Permission denied");
        assert_false(o.assisted);
    }
}

static void test_not_dumpable(void **state) {
    (void)state;
    scene s = {.source = become_not_dumpable, .receiver = become_user};
    if (is_root()) {
        outcome o = play(&s);
        refused(&o, WHERRY_REFUSED, "not dumpable (PR_SET_DUMPABLE is 0");
        assert_false(o.assisted);
    }
}

static void test_source_with_more_rights(void **state) {
    (void)state;
    scene s = {.source = become_user_with_rights, .receiver = become_user};
    if (is_root()) {
        outcome o = play(&s);
        refused(&o, WHERRY_REFUSED, "the source may have capabilities that this process lacks");
    }
}

static void test_filtered(void **state) {
    (void)state;
    scene eperm = {.receiver = filter_eperm};
    scene enosys = {.receiver = filter_enosys};
    outcome o = play(&eperm);
    worked(&o, true);
    o = play(&enosys);
    worked(&o, true);
}

static void test_filtered_and_other_user(void **state) {
    (void)state;
    scene s = {.source = become_user, .receiver = filter_and_become_other_user};
    if (is_root()) {
        outcome o = play(&s);
        refused(&o, WHERRY_REFUSED, "Function not implemented");
        says(o.message, "the source runs as user");
    }
}

static void test_sibling_namespaces(void **state) {
    (void)state;
    scene s = {.source_namespace = true, .receiver_namespace = true};
    if (is_root()) {
        outcome o = play(&s);
        refused(&o, WHERRY_UNSUPPORTED, "another pid namespace");
    }
}

/**
 * The source is in a child of the receiver's pid namespace, so that its pid differs between the
 * two. The receiver can read its memory if the kernel tells the group the source's pid.
 */
static void test_source_in_a_child_namespace(void **state) {
    (void)state;
    scene s = {.source_namespace = true};
    if (is_root()) {
        outcome o = play(&s);
        refused(&o, WHERRY_UNSUPPORTED, "another pid namespace");
        s.vouched = true;
        o = play(&s);
        worked(&o, false);
    }
}

static void claim_init(wh_cma_offer *offer) {
    offer->identity.process = 1;
}

static void claim_receiver(wh_cma_offer *offer) {
    offer->identity.process = (uint64_t)getpid();
}

static void claim_other_host(wh_cma_offer *offer) {
    offer->identity.boot[0] ^= 1;
}

static void claim_other_address(wh_cma_offer *offer) {
    offer->address = 8;
}

static void test_false_claims(void **state) {
    (void)state;
    scene other = {.tamper = claim_receiver};
    scene host = {.tamper = claim_other_host};
    scene address = {.tamper = claim_other_address};
    outcome o = play(&other);
    refused(&o, WHERRY_REFUSED, "does not hold the nonce");
    o = play(&host);
    refused(&o, WHERRY_UNSUPPORTED, "another host");
    o = play(&address);
    refused(&o, WHERRY_REFUSED, "does not hold the nonce");
}

/** If the kernel tells the group a pid, it overrides the pid in the offer. */
static void test_vouched_process(void **state) {
    (void)state;
    scene s = {.tamper = claim_init, .vouched = true};
    outcome o = play(&s);
    worked(&o, false);
}

/**
 * Forks a process from the source after the source has created its nonce. The child's memory is a
 * copy of the source's, but it must not pass for the source.
 */
static void fork_bystander(void) {
    const uint8_t *nonce;
    if (wh_process_nonce(&nonce, NULL) != WHERRY_OK) {
        abort();
    }
    if (fork() == 0) {
        alarm(PATIENCE_S);                 /* This limit applies if nobody kills the child. */
        atomic_store(bystander, getpid()); /* The child's fork handlers have run. */
        while (true) {
            pause();
        }
    }
    while (!atomic_load(bystander)) {
        usleep(1000);
    }
}

static void claim_bystander(wh_cma_offer *offer) {
    offer->identity.process = (uint64_t)atomic_load(bystander);
}

static void test_fork_of_the_source(void **state) {
    (void)state;
    scene s = {.source = fork_bystander, .tamper = claim_bystander};
    bystander = mmap(NULL, sizeof(*bystander), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(bystander != MAP_FAILED);
    outcome o = play(&s);
    refused(&o, WHERRY_REFUSED, "does not hold the nonce");
    munmap(bystander, sizeof(*bystander));
    bystander = NULL;
}

static void test_death(void **state) {
    (void)state;
    scene before = {.source_dies = true};
    scene between = {.dies_at_pull = true};
    scene by_memory = {.dies_at_pull = true, .receiver = filter_eperm};
    outcome o = play(&before);
    refused(&o, WHERRY_PEER_LOST, "does not exist");
    o = play(&between);
    assert_int_equal(o.status, WHERRY_OK);
    assert_int_equal(o.pulled, WHERRY_PEER_LOST);
    o = play(&by_memory);
    assert_int_equal(o.status, WHERRY_OK);
    assert_int_equal(o.pulled, WHERRY_PEER_LOST);
    says(o.message, "ended while its memory was being read");
}

static void write_file(const char *path, const char *text, size_t size) {
    int file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    if (file < 0) {
        abort();
    }
    put(file, text, size);
    close(file);
}

/** Pretends that the kernel has Yama, by mounting a private /proc/sys/kernel. */
static void fake_yama(void) {
    char boot[WH_BOOT_BYTES];
    int file = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (!get(file, boot, sizeof(boot)) || unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("none", "/proc/sys/kernel", "tmpfs", 0, NULL) || mkdir("/proc/sys/kernel/random", 0755) ||
        mkdir("/proc/sys/kernel/yama", 0755)) {
        abort();
    }
    close(file);
    write_file("/proc/sys/kernel/random/boot_id", boot, sizeof(boot));
    write_file("/proc/sys/kernel/yama/ptrace_scope", "1\n", 2);
}

/** If Yama may be the reason for a refusal, the receiver asks the source for help. */
static void test_asking_the_source(void **state) {
    (void)state;
    scene s = {.both = fake_yama, .source = become_user_with_rights, .receiver = become_user};
    if (is_root()) {
        outcome o = play(&s);
        assert_true(o.assisted);
        assert_int_equal(o.first, WHERRY_REFUSED);
        refused(&o, WHERRY_REFUSED, "Yama's ptrace_scope is 1 and this process is not the ptracer of the source");
        s.keep_ptracer = true;
        o = play(&s);
        assert_true(o.assisted);
        assert_int_equal(o.assist_status, WHERRY_REFUSED);
        says(o.assist_message, "may not set its ptracer, because WHERRY_SEND_NO_PTRACER is set");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_user),          cmocka_unit_test(test_other_user),
        cmocka_unit_test(test_not_dumpable),       cmocka_unit_test(test_source_with_more_rights),
        cmocka_unit_test(test_filtered),           cmocka_unit_test(test_filtered_and_other_user),
        cmocka_unit_test(test_sibling_namespaces), cmocka_unit_test(test_source_in_a_child_namespace),
        cmocka_unit_test(test_false_claims),       cmocka_unit_test(test_vouched_process),
        cmocka_unit_test(test_fork_of_the_source), cmocka_unit_test(test_death),
        cmocka_unit_test(test_asking_the_source),
    };
    return cmocka_run_group_tests_name("cma_refused", tests, NULL, NULL);
}
