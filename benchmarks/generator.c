/* The load generator of the benchmarks: one thread that sends a request again and again over
 * connections to this machine, and notes when each was due, sent and answered, and with what.
 *
 * It shares the processor with what it measures, so that a request costs its system calls and
 * hardly more: on a kept connection one `send` and one `recv`, into one buffer for all, and no
 * `epoll_ctl` unless a send does not go through at once. Nothing is kept of an answer but its
 * status, and nothing is allocated for a request but its record.
 *
 * Ask `generator.py`, which has the words for everything here. Functions that run a load return
 * after SLICE_S, so that whoever called can look at signals in between, and are called again while
 * they return GOES_ON. All times are seconds of CLOCK_MONOTONIC. */

#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define SLICE_S 0.2
/* A load that has nothing to do looks so often whether it is to stop. */
#define IDLE_S 0.05
#define READ_BYTES (64 * 1024)
/* The longest header that may come in pieces. */
#define HEADER_BYTES (16 * 1024)
/* So often is one connection read in a row, or the others would wait for an endless answer. */
#define READS 16
#define EVENTS 1024
#define SAID_BYTES 512
#define SHOWN_BYTES 400
#define CONNECT_WITHIN_MS 10000
#define FIRST_RECORDS 4096
/* A rate needs two answers, however long they take. */
#define LEAST_ANSWERS 2
#define LONGEST_BODY ((int64_t)1 << 50)

enum { GOES_ON, DONE, FAILED };
enum news { NOTHING, ANSWERED, ENDED, WRONG };

struct record {
    double due_s, sent_s, done_s;
    int32_t local_port, status;
};

struct connection {
    int descriptor;
    uint32_t watched;  /* events that are waited for; 0 before there are any */
    bool busy;         /* has a request */
    bool proven;       /* something could be sent: the server's system has accepted it */
    bool closes;       /* takes no other request */
    int status;        /* of the answer that is being read */
    int64_t body_left; /* of it; below 0 while its header is not whole */
    size_t sent;       /* bytes of the request */
    size_t header_bytes;
    char *header; /* as much as there is, once one came in pieces; kept for the next one */
    struct record now;
    struct connection *older, *newer; /* idle ones, a list; of free ones `older` only */
};

struct totals {
    double start_s, seconds, own_cpu_s;
    uint64_t records, refused;
};

struct generator {
    struct totals totals;
    const char *request;
    size_t request_bytes;
    struct sockaddr_in server;
    bool strict; /* whatever is no whole answer with status 200 ends the load */
    bool keeps;  /* a connection takes a next request */
    double tick_s, patience_s;

    int poll;
    struct connection *connections;
    size_t most, used; /* the first `used` have been connections at some time */
    size_t open, idle;
    struct connection *newest, *free;

    struct record *records;
    size_t room;
    enum { NEW, WARMING, COUNTING, SENDING, ENDING } phase;
    double cpu_start_s;
    double answered_s; /* when there was an answer last */
    double dealt_s;    /* when what had come was dealt with last */
    double end_s;      /* of the schedule */
    uint64_t started;  /* requests of the schedule */

    int system_error; /* an errno, or 0 where `said` has the words */
    size_t said_bytes;
    char said[SAID_BYTES];
    char buffer[READ_BYTES];
};

/* --- time, errors and records ---------------------------------------------------------------- */

static double seconds_of(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static double now_s(void) { return seconds_of(CLOCK_MONOTONIC); }

static double own_cpu_s(void) { return seconds_of(CLOCK_THREAD_CPUTIME_ID); }

static void sleep_until(double moment_s)
{
    struct timespec at = {.tv_sec = (time_t)moment_s};
    at.tv_nsec = (long)((moment_s - (double)at.tv_sec) * 1e9);
    /* A signal ends it early: then this tick is a short one. */
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
}

static int fail_system(struct generator *g, int error)
{
    g->system_error = error;
    return FAILED;
}

__attribute__((format(printf, 2, 3))) static int fail(struct generator *g, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    int bytes = vsnprintf(g->said, SAID_BYTES, format, values);
    va_end(values);
    g->said_bytes = bytes < SAID_BYTES ? (size_t)bytes : SAID_BYTES - 1;
    return FAILED;
}

static int fail_closed(struct generator *g, int error)
{
    if (error) return fail(g, "the server closed the connection (%s)", strerror(error));
    return fail(g, "the server closed the connection");
}

/* The request of `c` is over; 0 is the status of one without an answer. */
static int note(struct generator *g, struct connection *c, double done_s, int status)
{
    c->busy = false;
    if (g->totals.records == g->room) {
        size_t room = g->room ? 2 * g->room : FIRST_RECORDS;
        struct record *records = realloc(g->records, room * sizeof *records);
        if (!records) return fail_system(g, ENOMEM);
        g->records = records;
        g->room = room;
    }
    c->now.done_s = done_s;
    c->now.status = status;
    g->records[g->totals.records++] = c->now;
    g->answered_s = done_s;
    return DONE;
}

/* --- connections ----------------------------------------------------------------------------- */

/* NULL where the system gives no further one; why is in errno. */
static struct connection *connect_anew(struct generator *g)
{
    int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (descriptor < 0) return NULL;
    int yes = 1;
    setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    if (connect(descriptor, (struct sockaddr *)&g->server, sizeof g->server) < 0 &&
        errno != EINPROGRESS) {
        int error = errno;
        close(descriptor);
        errno = error;
        return NULL;
    }
    struct sockaddr_in own = {0};
    socklen_t bytes = sizeof own;
    getsockname(descriptor, (struct sockaddr *)&own, &bytes);
    struct connection *c = g->free;
    if (c) g->free = c->older;
    else c = &g->connections[g->used++];
    char *header = c->header;
    *c = (struct connection){.descriptor = descriptor, .header = header};
    c->now.local_port = ntohs(own.sin_port);
    g->open++;
    return c;
}

static void disconnect(struct generator *g, struct connection *c)
{
    /* It is in no other process and was never copied, so that this takes it from the poll, too. */
    close(c->descriptor);
    c->descriptor = -1;
    c->busy = false;
    c->older = g->free;
    g->free = c;
    g->open--;
}

static void put_idle(struct generator *g, struct connection *c)
{
    c->older = g->newest;
    c->newer = NULL;
    if (g->newest) g->newest->newer = c;
    g->newest = c;
    g->idle++;
}

static void take_idle(struct generator *g, struct connection *c)
{
    if (c->newer) c->newer->older = c->older;
    else g->newest = c->older;
    if (c->older) c->older->newer = c->newer;
    g->idle--;
}

static int watch(struct generator *g, struct connection *c, uint32_t events)
{
    if (c->watched == events) return DONE;
    struct epoll_event wanted = {.events = events, .data.ptr = c};
    int change = c->watched ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    if (epoll_ctl(g->poll, change, c->descriptor, &wanted) < 0) return fail_system(g, errno);
    c->watched = events;
    return DONE;
}

/* --- one request and its answer -------------------------------------------------------------- */

static void begin(struct connection *c, double due_s)
{
    c->busy = true;
    c->status = 0;
    c->body_left = -1;
    c->sent = 0;
    c->header_bytes = 0;
    c->now.due_s = due_s;
    c->now.sent_s = 0;
}

/* As much as goes; ENDED where the connection is none any more, with the reason in errno. */
static enum news send_rest(struct generator *g, struct connection *c)
{
    ssize_t bytes =
        send(c->descriptor, g->request + c->sent, g->request_bytes - c->sent, MSG_NOSIGNAL);
    if (bytes >= 0) {
        if (!c->sent) c->now.sent_s = now_s();
        c->sent += (size_t)bytes;
        c->proven = true;
    } else if (errno != EAGAIN && errno != EINTR) {
        return ENDED;
    }
    uint32_t events = c->sent < g->request_bytes ? EPOLLIN | EPOLLOUT : EPOLLIN;
    return watch(g, c, events) == DONE ? NOTHING : WRONG;
}

/* Whether `text`, of which an end is in sight, begins with this, which is in lower case. */
static bool begins_with(const char *text, const char *words)
{
    for (; *words; text++, words++) {
        char letter = *text >= 'A' && *text <= 'Z' ? (char)(*text + 'a' - 'A') : *text;
        if (letter != *words) return false;
    }
    return true;
}

static const char *without_spaces(const char *text)
{
    while (*text == ' ' || *text == '\t') text++;
    return text;
}

/* Bytes, or -1 where it is no number or one that nobody can mean. */
static int64_t length_of(const char *text)
{
    int64_t length = 0;
    text = without_spaces(text);
    if (*text < '0' || *text > '9') return -1;
    for (; *text >= '0' && *text <= '9'; text++) {
        length = 10 * length + (*text - '0');
        if (length > LONGEST_BODY) return -1;
    }
    return *without_spaces(text) == '\r' ? length : -1;
}

/* A whole header, of `bytes` with the empty line; WRONG where no answer can be read after it. */
static enum news read_header(struct generator *g, struct connection *c, const char *text,
                             size_t bytes, size_t with_body)
{
    const char *digits = text + sizeof "HTTP/1.1";
    if (bytes > sizeof "HTTP/1.1 200" && begins_with(text, "http/1.") && digits[-1] == ' ')
        for (const char *digit = digits; digit < digits + 3; digit++) {
            if (*digit < '0' || *digit > '9') {
                c->status = 0;
                break;
            }
            c->status = 10 * c->status + (*digit - '0');
        }
    if (g->strict && c->status != 200) {
        g->said_bytes = (size_t)snprintf(g->said, SAID_BYTES, "the server answered: ");
        size_t shown = with_body < SHOWN_BYTES ? with_body : SHOWN_BYTES;
        memcpy(g->said + g->said_bytes, text, shown);
        g->said_bytes += shown;
        return WRONG;
    }
    /* Without the empty line, so that each one that is looked at ends within the header. */
    const char *end = text + bytes - 2;
    for (const char *line = text; (line = memchr(line, '\n', (size_t)(end - line)));) {
        line++;
        if (c->body_left < 0 && begins_with(line, "content-length:"))
            c->body_left = length_of(line + sizeof "content-length:" - 1);
        else if (begins_with(line, "connection:"))
            c->closes |= begins_with(without_spaces(line + sizeof "connection:" - 1), "close");
    }
    if (c->body_left >= 0 && c->status) return NOTHING;
    fail(g, "the server's answer has no Content-Length");
    return WRONG;
}

/* What there is to read; WRONG where it is no answer, with words, ENDED with an errno or 0. */
static enum news receive(struct generator *g, struct connection *c, int *error)
{
    for (int reads = 0; reads < READS; reads++) {
        ssize_t got = recv(c->descriptor, g->buffer, READ_BYTES, 0);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) return NOTHING;
        if (got <= 0) {
            *error = got < 0 ? errno : 0;
            return ENDED;
        }
        size_t bytes = (size_t)got;
        if (c->body_left < 0) {
            const char *text = g->buffer;
            size_t before = c->header_bytes, known = bytes;
            if (before) {
                known = before + bytes < HEADER_BYTES ? before + bytes : HEADER_BYTES;
                memcpy(c->header + before, g->buffer, known - before);
                text = c->header;
            }
            const char *end = memmem(text, known, "\r\n\r\n", 4);
            if (!end) {
                if (known >= HEADER_BYTES) {
                    fail(g, "the server's answer has a header without an end");
                    return WRONG;
                }
                if (!c->header && !(c->header = malloc(HEADER_BYTES))) {
                    fail_system(g, ENOMEM);
                    return WRONG;
                }
                if (!before) memcpy(c->header, g->buffer, known);
                c->header_bytes = known;
                return NOTHING;
            }
            size_t header_bytes = (size_t)(end - text) + 4;
            if (read_header(g, c, text, header_bytes, known) == WRONG) return WRONG;
            bytes = before + bytes - header_bytes;
        }
        c->body_left -= (int64_t)bytes;
        if (c->body_left <= 0) {
            /* More than an answer, or one to half a request: nobody knows what comes next. */
            if (c->body_left < 0 || c->sent < g->request_bytes) c->closes = true;
            return ANSWERED;
        }
        if (got < READ_BYTES) return NOTHING;
    }
    return NOTHING;
}

/* --- a load ---------------------------------------------------------------------------------- */

void dr_close(struct generator *g)
{
    if (!g) return;
    for (size_t number = 0; number < g->used; number++) {
        if (g->connections[number].descriptor >= 0) close(g->connections[number].descriptor);
        free(g->connections[number].header);
    }
    if (g->poll >= 0) close(g->poll);
    free(g->connections);
    free(g->records);
    free(g);
}

/* The request's bytes stay the caller's. NULL where there is not enough memory; whatever else is
 * amiss is said by the first function that runs a load. */
struct generator *dr_open(const char *request, size_t request_bytes, uint16_t port, size_t most,
                          int strict, int keeps, double tick_s, double patience_s)
{
    struct generator *g = calloc(1, sizeof *g);
    if (!g) return NULL;
    g->request = request;
    g->request_bytes = request_bytes;
    g->server.sin_family = AF_INET;
    g->server.sin_port = htons(port);
    g->server.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    g->strict = strict;
    g->keeps = keeps;
    g->tick_s = tick_s;
    g->patience_s = patience_s;
    g->most = most;
    g->connections = calloc(most, sizeof *g->connections);
    g->poll = epoll_create1(EPOLL_CLOEXEC);
    if (g->poll < 0) g->system_error = errno;
    if (g->connections) return g;
    dr_close(g);
    return NULL;
}

const struct totals *dr_totals(const struct generator *g) { return &g->totals; }

const struct record *dr_records(const struct generator *g) { return g->records; }

/* What went wrong: an errno, or 0 and words. */
int dr_failure(const struct generator *g, const char **said, size_t *bytes)
{
    *said = g->said;
    *bytes = g->said_bytes;
    return g->system_error;
}

/* How many connections have something to say; below 0 where a signal came or it failed. */
static int poll_for(struct generator *g, struct epoll_event *events, double timeout_s)
{
    int count = epoll_wait(g->poll, events, EVENTS, (int)(timeout_s * 1e3));
    if (count < 0 && errno != EINTR) fail_system(g, errno);
    return count;
}

/* --- clients that wait for their answers: the server's speed --------------------------------- */

static int ask(struct generator *g, struct connection *c)
{
    begin(c, now_s());
    enum news news = send_rest(g, c);
    if (news == ENDED) return c->proven ? fail_closed(g, errno) : fail_system(g, errno);
    return news == WRONG ? FAILED : DONE;
}

static int step(struct generator *g, struct connection *c, uint32_t events)
{
    if (events & EPOLLOUT) {
        enum news sent = send_rest(g, c);
        if (sent == ENDED) return c->proven ? fail_closed(g, errno) : fail_system(g, errno);
        if (sent == WRONG) return FAILED;
    }
    if (!(events & (EPOLLIN | EPOLLHUP | EPOLLERR))) return DONE;
    int error = 0;
    switch (receive(g, c, &error)) {
    case NOTHING: return DONE;
    case ENDED: return fail_closed(g, error);
    case WRONG: return FAILED;
    case ANSWERED: break;
    }
    if (note(g, c, now_s(), c->status) == FAILED) return FAILED;
    if (c->closes) {
        /* As a server may ask after any answer (RFC 9112, 9.6). */
        disconnect(g, c);
        if (!(c = connect_anew(g))) return fail_system(g, errno);
    }
    return ask(g, c);
}

/* Deals with what has come, once. DONE where `until` is over: then what has come is still there. */
static int turn(struct generator *g, double until_s)
{
    struct epoll_event events[EVENTS];
    if (g->tick_s > 0) sleep_until(g->dealt_s + g->tick_s);
    int count = poll_for(g, events, SLICE_S);
    if (g->system_error) return FAILED;
    g->dealt_s = now_s();
    if (g->dealt_s - g->answered_s > g->patience_s)
        return fail(g, "no answer for %g s", g->patience_s);
    if (g->dealt_s >= until_s) return DONE;
    for (int number = 0; number < count; number++)
        if (step(g, events[number].data.ptr, events[number].events) == FAILED) return FAILED;
    if (g->dealt_s < g->answered_s) g->dealt_s = g->answered_s;
    return GOES_ON;
}

/* Opens all connections. */
int dr_connect(struct generator *g)
{
    while (!g->system_error) {
        /* The last one may have been left by a signal. */
        struct connection *c = g->used ? &g->connections[g->used - 1] : NULL;
        if (!c || c->proven) {
            if (g->open == g->most) return DONE;
            if (!(c = connect_anew(g))) return fail_system(g, errno);
        }
        struct pollfd made = {.fd = c->descriptor, .events = POLLOUT};
        int count = poll(&made, 1, CONNECT_WITHIN_MS), error = ETIMEDOUT;
        if (count < 0) return errno == EINTR ? GOES_ON : fail_system(g, errno);
        socklen_t bytes = sizeof error;
        if (count) getsockopt(c->descriptor, SOL_SOCKET, SO_ERROR, &error, &bytes);
        if (error) return fail_system(g, error);
        c->proven = true;
    }
    return FAILED;
}

/* Each client sends its next request when it has its answer; nothing is counted yet. */
int dr_warm_up(struct generator *g, double warm_up_s)
{
    double entered_s = now_s();
    if (g->phase == NEW) {
        g->phase = WARMING;
        g->totals.start_s = g->dealt_s = g->answered_s = entered_s;
        for (size_t number = 0; number < g->used; number++)
            if (ask(g, &g->connections[number]) == FAILED) return FAILED;
    }
    int is = GOES_ON;
    while (is == GOES_ON && g->dealt_s - entered_s < SLICE_S)
        is = turn(g, g->totals.start_s + warm_up_s);
    return is;
}

/* The same, counted. */
int dr_measure(struct generator *g, double seconds, uint64_t fewest, double most_s)
{
    double entered_s = now_s();
    if (g->phase == WARMING) {
        g->phase = COUNTING;
        g->totals.records = 0;
        g->totals.start_s = g->dealt_s = g->answered_s = entered_s;
        g->cpu_start_s = own_cpu_s();
    }
    while (g->dealt_s - entered_s < SLICE_S) {
        if (turn(g, HUGE_VAL) == FAILED) return FAILED;
        double spent_s = g->dealt_s - g->totals.start_s;
        uint64_t answers = g->totals.records;
        if ((spent_s >= seconds && answers >= fewest) ||
            (spent_s >= most_s && answers >= LEAST_ANSWERS)) {
            g->totals.seconds = spent_s;
            g->totals.own_cpu_s = own_cpu_s() - g->cpu_start_s;
            return DONE;
        }
    }
    return GOES_ON;
}

/* --- requests that are due, answered or not: the server under a load ------------------------- */

static int refuse(struct generator *g, struct connection *c)
{
    /* Never connected: the server has not seen this one, and it is no request. */
    g->totals.refused++;
    disconnect(g, c);
    return DONE;
}

static int start(struct generator *g, double due_s)
{
    struct connection *c = g->newest;
    if (c) {
        take_idle(g, c);
    } else if (!(c = connect_anew(g))) {
        if (errno != ECONNREFUSED) return fail_system(g, errno);
        g->totals.refused++;
        return DONE;
    }
    begin(c, due_s);
    enum news news = send_rest(g, c);
    /* Where it was closed while it was idle, the poll says so, and perhaps there is an answer. */
    if (news == ENDED) return c->proven ? DONE : refuse(g, c);
    return news == WRONG ? FAILED : DONE;
}

/* What one connection has come to; with `again`, a request that is over is followed by the next. */
static int follow(struct generator *g, struct connection *c, uint32_t events, bool again)
{
    if (events & EPOLLOUT && c->sent < g->request_bytes) {
        enum news sent = send_rest(g, c);
        if (sent == WRONG) return FAILED;
        if (sent == ENDED) {
            if (!c->proven) return refuse(g, c);
            if (watch(g, c, EPOLLIN) == FAILED) return FAILED;
            events |= EPOLLIN;
        }
    }
    if (!(events & (EPOLLIN | EPOLLHUP | EPOLLERR))) return DONE;
    if (!c->busy) {
        /* It was closed, or has an answer that nobody asked for. */
        take_idle(g, c);
        disconnect(g, c);
        return DONE;
    }
    int error;
    enum news news = receive(g, c, &error);
    if (g->system_error) return FAILED;
    if (news == NOTHING) return DONE;
    double done_s = now_s();
    if (note(g, c, done_s, news == ANSWERED ? c->status : 0) == FAILED) return FAILED;
    if (news == ANSWERED && g->keeps && !c->closes) put_idle(g, c);
    else disconnect(g, c);
    return again ? start(g, done_s) : DONE;
}

static int end_offer(struct generator *g, double now)
{
    for (size_t number = 0; number < g->used; number++) {
        struct connection *c = &g->connections[number];
        /* Nobody knows when these would have been answered. */
        if (c->busy && note(g, c, 0, 0) == FAILED) return FAILED;
        if (c->descriptor >= 0) disconnect(g, c);
    }
    g->totals.seconds = (now < g->end_s ? now : g->end_s) - g->totals.start_s;
    g->totals.own_cpu_s = own_cpu_s() - g->cpu_start_s;
    return DONE;
}

/* So many requests a second are due, or there are so many callers, until the end or until `stop` is
 * no longer 0. What is due may wait for a connection; what then still waits is not sent. */
int dr_offer(struct generator *g, double rate_per_s, size_t callers, double seconds,
             const int *stop)
{
    struct epoll_event events[EVENTS];
    double entered_s = now_s();
    if (g->phase == NEW) {
        if (g->system_error) return FAILED;
        g->phase = SENDING;
        g->cpu_start_s = own_cpu_s();
        g->totals.start_s = entered_s;
        g->end_s = entered_s + seconds;
        for (size_t number = 0; number < callers; number++)
            if (start(g, entered_s) == FAILED) return FAILED;
    }
    for (;;) {
        double now = now_s();
        if (now - entered_s >= SLICE_S) return GOES_ON;
        if (g->phase == SENDING && __atomic_load_n(stop, __ATOMIC_RELAXED)) {
            g->phase = ENDING;
            if (now < g->end_s) g->end_s = now;
        }
        if (g->phase == SENDING && rate_per_s > 0)
            for (;;) {
                double due_s = g->totals.start_s + (double)g->started / rate_per_s;
                if (due_s > now || due_s >= g->end_s) break;
                if (!g->idle && g->open >= g->most) break;
                g->started++;
                if (start(g, due_s) == FAILED) return FAILED;
            }
        if (now >= g->end_s) g->phase = ENDING;
        bool sending = g->phase == SENDING;
        if (!sending && (g->open == g->idle || now > g->end_s + g->patience_s))
            return end_offer(g, now);
        /* Something may be due at the next tick, whatever has come; callers wait for answers. */
        bool due = sending && rate_per_s > 0, again = sending && !due;
        if (sending && g->tick_s > 0) sleep_until(now + g->tick_s);
        int count = poll_for(g, events, due ? 0 : IDLE_S);
        if (g->system_error) return FAILED;
        for (int number = 0; number < count; number++)
            if (follow(g, events[number].data.ptr, events[number].events, again) == FAILED)
                return FAILED;
    }
}
