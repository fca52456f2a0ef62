// loadgen: an AMQP 1.0 load generator that is not itself the bottleneck.
//
// One thread, poll(2), frames encoded by hand, no library: it costs about 1 us of CPU a message, so that on a machine
// shared with the broker the broker is what is measured. It knows one message shape, one sending link a connection and
// any number of receiving ones; it is no client library. Anything but the outcome `accepted`, in either direction, ends
// it with a message and a status that is not 0; unless it counts refused sends.
//
// Order of this file: options, the message, connections and links, message sessions, frames in, the loop, the report,
// the modes. Bytes are in amqp.h, TLS and WebSocket in wire.h. Sections quoted are those of the AMQP 1.0 core
// specification (part.section).

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "amqp.h"
#include "wire.h"

static const char USAGE[] =
    "usage: loadgen -m send|recv|both [options]     drive messages and report rates and latencies\n"
    "       loadgen -m next -g N [options]          fill N sessions, then let receivers take the next session again\n"
    "                                               and again: receive what is there, complete, leave, refill\n"
    "       loadgen -I N [options]                  hold N idle connections until stdin closes\n"
    "  -h HOST  -p PORT        broker (127.0.0.1, 5672)\n"
    "  -E                      encrypted: within TLS, whatever the certificate\n"
    "  -W                      over WebSocket, a frame for each AMQP frame\n"
    "  -u USER  -P PASSWORD    SASL PLAIN (default: ANONYMOUS)\n"
    "  -a ADDRESS              queue to send to, and to receive from (q)\n"
    "  -A ADDRESS              queue to receive from, where it differs\n"
    "  -n COUNT                messages over all connections (100000)\n"
    "  -s BYTES                body size (1024)\n"
    "  -r                      rich messages: annotations, properties, application properties\n"
    "  -g N                    rich messages of N sessions in turn: group-id, and partition key\n"
    "  -G                      receive from those N sessions by name, a link each\n"
    "  -t N                    rich messages of N tenants in turn: application property tenant, an int from 0 on\n"
    "  -k N                    mode next: messages in a session when it is filled (1)\n"
    "  -S N  -R N              sending and receiving connections (1 and 1)\n"
    "  -l N                    receiving links over all receiving connections (one each)\n"
    "  -H N                    handlers on each receiving link: each asks for one message, completes it, waits for the\n"
    "                          answer where there is one (-2, -1), and asks again, as those of .NET's processor do\n"
    "  -w N                    unsettled sends, and receive credit, a link (1000)\n"
    "  -o RATE                 offer RATE messages a second over all senders; latency counts from the intended time\n"
    "  -e                      mode send: stop offering when stdin closes, though COUNT is not reached; print a line\n"
    "                          when the offer begins\n"
    "  -f                      mode send: count sends that are refused, and go on\n"
    "  -x                      pre-settled transfers\n"
    "  -i                      one disposition a message (default: ranges of up to 100)\n"
    "  -2                      receiver-settle-mode second: unsettled dispositions, each waits for the broker's answer\n"
    "  -1                      the same dispositions on a link in mode first, for brokers that refuse second\n"
    "  -B PID                  broker process, for its CPU time\n"
    "  -T SECONDS              give up after so long without progress (30)\n"
    "  -j                      report as one line of JSON\n";

static struct {
    const char *mode, *host, *port, *user, *password, *send_address, *recv_address;
    long count, sessions, tenants, fill;
    double rate, stall_s;
    int size, senders, receivers, links, handlers, window, idle, broker_pid;
    bool rich, named, next, settled, individual, second, await_answer, until_eof, forgiving, json, encrypted,
        websocket;
} opt = {
    .mode = "send", .host = "127.0.0.1", .port = "5672", .password = "", .send_address = "q",
    .count = 100000, .fill = 1, .stall_s = 30, .size = 1024, .senders = 1, .receivers = 1, .window = 1000,
};

// Here begins: the message.

static const char SESSION[] = "session-"; // a session's id is this and its number in 8 hexadecimal digits

// The one message that is sent again and again; only these digits in it change. 0: there are none.
static Buffer message;
static size_t message_id_at, partition_key_at, group_id_at, tenant_at;

// Append a section that is a list or map of up to 255 bytes, and give where its items begin.
static size_t put_section(Buffer *b, uint8_t section, uint8_t type, const Buffer *items) {
    put(b, (uint8_t[]){0x00, 0x53, section}, 3), put_variable(b, type, items->data, items->end);
    return b->end - items->end;
}

static void put_digits(uint8_t *at, uint64_t value, int count) {
    while (count-- > 0) at[count] = "0123456789abcdef"[value & 15], value >>= 4;
}

static void build_message(void) {
    Buffer *b = &message;
    put(b, (uint8_t[]){0x00, 0x53, 0x70, 0xc0, 2, 1, 0x41}, 7); // header: durable
    if (opt.rich) {
        Buffer m = {0};
        char session_id[32];
        snprintf(session_id, sizeof session_id, "%s%08x", SESSION, 0);
        // A partition key beside a session id has to be the same.
        put8(&m, 2), put_symbol(&m, "x-opt-partition-key"), put_string(&m, opt.sessions ? session_id : "pk-0001");
        size_t at = put_section(b, 0x72, 0xc1, &m) + m.end - 8;
        if (opt.sessions) partition_key_at = at;

        // No two messages have the same id, whichever run or connection they are of: 16 digits of this run, 8 of the
        // sender, 8 of the message.
        uint8_t id[33] = {0};
        uint64_t run_id;
        if (getrandom(&run_id, sizeof run_id, 0) != sizeof run_id) die(EXIT_PROTOCOL, "no random numbers");
        put_digits(id, run_id, 16), put_digits(id + 16, 0, 16);
        m.end = 0;
        put8(&m, opt.sessions ? 11 : 7), put_string(&m, (char *)id);
        for (int i = 0; i < 5; i++) put_null(&m);
        put_symbol(&m, "application/json");
        if (opt.sessions) put_null(&m), put_null(&m), put_null(&m), put_string(&m, session_id);
        at = put_section(b, 0x73, 0xc0, &m);
        message_id_at = at + 3 + 16;
        if (opt.sessions) group_id_at = at + m.end - 8;

        m.end = 0;
        put8(&m, 4), put_string(&m, "kind"), put_string(&m, "order");
        put_string(&m, "tenant");
        if (opt.tenants) put8(&m, 0x71), put32(&m, 0); else put(&m, (uint8_t[]){0x54, 42}, 2);
        at = put_section(b, 0x74, 0xc1, &m);
        if (opt.tenants) tenant_at = at + m.end - 4;
        free(m.data);
    }
    uint8_t *body = must_alloc(opt.size, 1);
    memset(body, 'x', opt.size);
    put(b, (uint8_t[]){0x00, 0x53, 0x75, 0xb0}, 4), put32(b, opt.size), put(b, body, opt.size);
    free(body);
}

static void number_message(uint32_t sender, uint32_t n, uint32_t session, uint32_t tenant) {
    uint8_t *bytes = message.data;
    if (message_id_at) put_digits(bytes + message_id_at, (uint64_t)sender << 32 | n, 16);
    if (group_id_at) put_digits(bytes + partition_key_at, session, 8), put_digits(bytes + group_id_at, session, 8);
    if (tenant_at) store32(bytes + tenant_at, tenant);
}

// Here begins: connections and links.

typedef enum { SASL_HEADER, SASL, OPENING, READY, CLOSING, CLOSED } Phase;
typedef enum { DETACHED, ATTACHING, ATTACHED, DETACHING } LinkPhase;

typedef struct Connection Connection;

typedef struct {
    Connection *on;
    uint32_t handle; // ours
    char name[48];
    LinkPhase phase;
    long total, started, done, outstanding; // messages: to do, sent or received, settled, neither yet
    long credit;         // as sender: what the peer allows. As receiver: what we gave and is not used
    uint32_t delivery_count;
    uint32_t partial_id; // delivery in progress over several frames
    long session;        // that it receives from; -1: none
    // Where the broker gives it one session after the other:
    long attaches, received; // so far; messages of this session
    bool drained;            // the broker has said that there is no more
    double left_s;           // when it gave the session back
    // Where handlers ask for one message each: requests so far, and when the last of each handler's was made
    long asked;
    double *asked_s;
} Link;

typedef struct {
    double started_s; // negative once settled
    Link *link;
} Delivery;

// One connection with one session: one link that sends, or many that receive. Delivery ids count from 0 over all links,
// so that one array holds what is known of a delivery.
struct Connection {
    Wire wire;
    int id;
    Phase phase;
    bool sends;
    bool header_seen; // the peer's AMQP header, after SASL
    Buffer in, out;
    Link *links, **by_peer_handle;
    int link_count, attaching; // of these, answers to attaches still to come
    Delivery *deliveries;
    long delivery_count, deliveries_max;
    uint32_t next_out, peer_window, next_in; // session: transfer ids, and transfers the peer still takes
    uint32_t first_in;                       // the peer's first delivery id
    uint32_t ack_first, ack_count;           // accepted and not acknowledged yet
    double last_write_s;
};

static long sent, received; // messages: sends accepted, or refused where that is counted; deliveries settled
static long refused;        // sends, of those
static float *latencies_us; // send to accepted; where only receiving, from a delivery, or from a handler's request for
                            // one, to the broker's answer to its disposition
static long latency_count;
static double clock_s;   // time of the turn: one look at the clock serves all frames of a read
static double started_s; // when every link stood

// Attach a link; a receiver's session is the named one, or the next where it is -1 and the mode is that.
static void write_attach(Link *l) {
    Connection *c = l->on;
    Buffer *b = &c->out;
    size_t frame = open_frame(b, AMQP_FRAME), list = open_list(b, ATTACH, c->sends ? 10 : 7);
    snprintf(l->name, sizeof l->name, "link-%d-%d-%u-%ld", getpid(), c->id, l->handle, ++l->attaches);
    put_string(b, l->name), put_uint(b, l->handle), put_bool(b, c->sends ? ROLE_SENDER : ROLE_RECEIVER);
    put_ubyte(b, opt.settled ? 1 : 0), put_ubyte(b, opt.second ? 1 : 0);
    bool filtered = !c->sends && (opt.next || l->session >= 0);
    size_t terminus = open_list(b, SOURCE, filtered ? 8 : 1);
    if (c->sends) put_null(b); else put_string(b, opt.recv_address);
    if (filtered) {
        Buffer filter = {0};
        char session_id[32];
        snprintf(session_id, sizeof session_id, "%s%08lx", SESSION, l->session);
        put8(&filter, 2), put_symbol(&filter, "com.microsoft:session-filter");
        if (opt.next) put_null(&filter); else put_string(&filter, session_id);
        for (int i = 0; i < 6; i++) put_null(b);
        put_variable(b, 0xc1, filter.data, filter.end);
        free(filter.data);
    }
    close_list(b, terminus), terminus = open_list(b, TARGET, 1);
    if (c->sends) put_string(b, opt.send_address); else put_null(b);
    close_list(b, terminus);
    if (c->sends) put_null(b), put_null(b), put_uint(b, 0); // initial-delivery-count
    close_list(b, list), close_frame(b, frame);
    l->phase = ATTACHING;
    c->attaching++;
}

static void write_detach(Link *l) {
    Buffer *b = &l->on->out;
    size_t frame = open_frame(b, AMQP_FRAME), list = open_list(b, DETACH, 2);
    put_uint(b, l->handle), put_bool(b, true);
    close_list(b, list), close_frame(b, frame);
    l->phase = DETACHING;
}

static void write_open(Connection *c) {
    Buffer *b = &c->out;
    char name[64];
    put(b, "AMQP\0\1\0\0", 8);
    size_t frame = open_frame(b, AMQP_FRAME), list = open_list(b, OPEN, 5);
    snprintf(name, sizeof name, "loadgen-%d-%d", getpid(), c->id);
    put_string(b, name), put_string(b, opt.host);
    put_uint(b, 1 << 18);                        // max-frame-size
    put(b, (uint8_t[]){0x60, 0x00, 0xff}, 3);    // channel-max
    put_uint(b, 240000);                         // idle-time-out, ms
    close_list(b, list), close_frame(b, frame);

    frame = open_frame(b, AMQP_FRAME), list = open_list(b, BEGIN, 4);
    put_null(b), put_uint(b, 0), put_uint(b, 0x7fffffff), put_uint(b, 0x7fffffff);
    close_list(b, list), close_frame(b, frame);

    if (opt.next && !c->sends) return; // its links come when the sessions are filled
    for (int i = 0; i < c->link_count; i++) write_attach(&c->links[i]);
}

static void write_sasl_init(Connection *c) {
    Buffer *b = &c->out, response = {0};
    size_t frame = open_frame(b, SASL_FRAME), list = open_list(b, SASL_INIT, 2);
    if (opt.user) {
        put8(&response, 0), put(&response, opt.user, strlen(opt.user));
        put8(&response, 0), put(&response, opt.password, strlen(opt.password));
    }
    put_symbol(b, opt.user ? "PLAIN" : "ANONYMOUS");
    put_variable(b, 0xa0, response.data ? response.data : (uint8_t *)"", response.end);
    close_list(b, list), close_frame(b, frame);
    free(response.data);
}

// Say what credit a link has, with all fields, as .NET's client does.
static void write_flow(Link *l, long credit) {
    Connection *c = l->on;
    Buffer *b = &c->out;
    l->credit = credit;
    size_t frame = open_frame(b, AMQP_FRAME), list = open_short_list(b, FLOW, 11);
    put_uint(b, c->next_in), put_uint(b, 0x7fffffff), put_uint(b, c->next_out), put_uint(b, 0x7fffffff);
    put_uint(b, l->handle), put_uint(b, l->delivery_count), put_uint(b, credit), put_uint(b, 0); // available
    if (opt.next) put_bool(b, true); else put_null(b); // drain: say when there is no more
    put_bool(b, false), put_null(b);                   // echo, properties
    close_short_list(b, list), close_frame(b, frame);
}

static void write_credit(Link *l) {
    long left = opt.next ? opt.window : l->total - l->started;
    write_flow(l, left < opt.window ? left : opt.window);
}

// Let one more handler wait for a message: credit is the number of those who do.
static void ask_for_one(Link *l) {
    if (l->asked == l->total) return;
    l->asked_s[l->asked++ % opt.handlers] = clock_s;
    write_flow(l, l->credit + 1);
}

static void write_accepted(Connection *c, uint32_t first, uint32_t last) {
    Buffer *b = &c->out;
    size_t frame = open_frame(b, AMQP_FRAME), list = open_short_list(b, DISPOSITION, 6);
    put_bool(b, ROLE_RECEIVER), put_uint(b, first);
    if (last == first) put_null(b); else put_uint(b, last);
    put_bool(b, !opt.await_answer);
    put(b, (uint8_t[]){0x00, 0x53, ACCEPTED, 0x45}, 4), put_null(b); // batchable
    close_short_list(b, list), close_frame(b, frame);
}

static void flush_accepted(Connection *c) {
    if (c->ack_count) write_accepted(c, c->ack_first, c->ack_first + c->ack_count - 1);
    c->ack_count = 0;
}

static void write_transfer(Connection *c, uint32_t session, uint32_t tenant) {
    uint8_t head[40], *p = head + 8;
    number_message(c->id, c->next_out, session, tenant);
    // All fields, as .NET's client has them: handle 0, delivery-id, delivery-tag (little endian, from 1 on), ...
    memcpy(p, (uint8_t[]){0x00, 0x53, TRANSFER, 0xc0, 0, 11, 0x43}, 7), p += 7;
    if (c->next_out == 0) *p++ = 0x43;
    else if (c->next_out < 256) *p++ = 0x52, *p++ = c->next_out;
    else *p++ = 0x70, store32(p, c->next_out), p += 4;
    *p++ = 0xa0, *p++ = 4;
    for (uint32_t tag = c->next_out + 1, i = 0; i < 4; i++) *p++ = tag >> 8 * i;
    // ... message-format 0, settled, more, four that are null, batchable
    memcpy(p, (uint8_t[]){0x43, opt.settled ? 0x41 : 0x40, 0x42, 0x40, 0x40, 0x40, 0x40, 0x41}, 8), p += 8;
    head[12] = p - head - 13;
    store32(head, (p - head) + message.end);
    memcpy(head + 4, (uint8_t[]){2, AMQP_FRAME, 0, 0}, 4);
    put(&c->out, head, p - head);
    put(&c->out, message.data, message.end);
}

static void begin_delivery(Link *l, double at_s) {
    Connection *c = l->on;
    if (c->delivery_count >= c->deliveries_max) die(EXIT_PROTOCOL, "connection %d: too many deliveries", c->id);
    c->deliveries[c->delivery_count++] = (Delivery){at_s, l};
    l->started++, l->outstanding++, l->delivery_count++, l->credit--;
}

// Here begins: message sessions, where the broker hands out the next one again and again.
//
// A session is filled, can be had, is held by a link until that has completed all there is, and is filled again while
// messages are left to send. So as many sessions as ever can be had or are held, until the last of them are drained.

typedef struct {
    long inside;        // messages sent and not received
    double available_s; // since when it can be had, as early as that may be; negative: it is held, or empty
    bool held;
    long handed_out; // so many times
} Session;

static Session *sessions;
static uint32_t *plan; // the session of each message to send
static long planned;
static float *waits_us; // from when a session could be had to when a link had it
static long handed_out;
static double steady_end_s;    // when the last message was planned
static long steady_handed_out; // so many times until then

static void fill(uint32_t session) {
    if (planned == opt.count) return;
    for (long i = 0; i < opt.fill; i++) plan[planned++] = session;
    if (planned == opt.count) steady_end_s = clock_s, steady_handed_out = handed_out;
}

static void sent_to_session(uint32_t session) {
    Session *s = &sessions[session];
    s->inside++;
    if (!s->held && s->available_s < 0) s->available_s = clock_s;
}

// Which session the broker says that a link got: the value of the filter in the source of its answer.
static long session_of_source(const uint8_t *source, const uint8_t *end) {
    const uint8_t *filter = source ? decode_performative(source, end).field[7] : NULL, *value = NULL;
    if (filter && filter[0] == 0xc1 && filter[2] == 2) value = filter + 3 + value_size(filter + 3, end);
    size_t prefix = strlen(SESSION);
    if (!value || value[0] != 0xa1 || value[1] != prefix + 8 || memcmp(value + 2, SESSION, prefix))
        die(EXIT_PROTOCOL, "an attach is answered without one of our sessions");
    return strtol(readable(value + 2 + prefix, value + 2 + prefix + 8), NULL, 16);
}

static void take_session(Link *l, long session) {
    if (session >= opt.sessions) die(EXIT_PROTOCOL, "session %ld is none of ours", session);
    Session *s = &sessions[session];
    if (s->held) die(EXIT_PROTOCOL, "session %ld is held twice", session);
    if (s->available_s < 0) die(EXIT_PROTOCOL, "session %ld was handed out although it is empty", session);
    waits_us[handed_out++] = (clock_s - s->available_s) * 1e6;
    s->held = true, s->available_s = -1, s->handed_out++;
    l->session = session, l->received = 0, l->drained = false;
    write_credit(l);
}

static void leave_if_done(Link *l) {
    if (!l->drained || l->outstanding || l->phase != ATTACHED) return;
    if (!l->received) die(EXIT_PROTOCOL, "session %ld was handed out and gave nothing", l->session);
    flush_accepted(l->on);
    l->left_s = clock_s;
    write_detach(l);
}

static void on_session_left(Link *l) {
    Session *s = &sessions[l->session];
    s->held = false;
    if (s->inside) s->available_s = l->left_s; else fill(l->session);
    l->session = -1, l->delivery_count = 0;
    if (received < opt.count) write_attach(l);
}

// Here begins: what connections do in their turn.

// When message n of this sender is meant to leave: at once, or at its place in the offered rate.
static double intended_s(const Connection *c, long n) {
    return opt.rate > 0 ? started_s + (double)(n * opt.senders + c->id) / opt.rate : clock_s;
}

// The place of message n of this sender among `groups` that get one in turn.
static uint32_t in_turn(const Connection *c, long n, long groups) {
    return groups ? (n * opt.senders + c->id) % groups : 0;
}

// Send what window, credit and rate allow.
static void pump(Connection *c) {
    if (!c->sends || c->phase != READY || started_s == 0) return;
    Link *l = &c->links[0];
    while (l->started < (opt.next ? planned : l->total) && l->credit > 0 && c->peer_window > 0 &&
           l->outstanding < opt.window && live(&c->out) < 1 << 18) {
        double due = intended_s(c, l->started);
        if (due > clock_s) break;
        uint32_t session = opt.next ? plan[l->started] : in_turn(c, l->started, opt.sessions);
        write_transfer(c, session, in_turn(c, l->started, opt.tenants));
        if (opt.next) sent_to_session(session);
        begin_delivery(l, due);
        c->next_out++, c->peer_window--;
        if (opt.settled) l->done++, l->outstanding--, sent++;
    }
}

// Count deliveries first..last as settled, each of which must be in flight.
static void settle(Connection *c, uint32_t first, uint32_t last) {
    for (uint32_t id = first;; id++) {
        uint32_t n = id - (c->sends ? 0 : c->first_in);
        if (n >= (uint32_t)c->delivery_count || c->deliveries[n].started_s < 0)
            die(EXIT_PROTOCOL, "connection %d: delivery %u settled twice, or never begun", c->id, id);
        Delivery *d = &c->deliveries[n];
        if (c->sends || opt.senders == 0) latencies_us[latency_count++] = (clock_s - d->started_s) * 1e6;
        d->started_s = -1;
        d->link->done++, d->link->outstanding--;
        ++*(c->sends ? &sent : &received);
        leave_if_done(d->link);
        if (opt.handlers && !c->sends) ask_for_one(d->link);
        if (id == last) return;
    }
}

// Here begins: frames in.

static Link *link_by_peer_handle(Connection *c, const uint8_t *handle) {
    uint64_t h = number(handle, UINT64_MAX);
    if (h >= (uint64_t)c->link_count || !c->by_peer_handle[h])
        die(EXIT_PROTOCOL, "connection %d: a frame about a link that is not attached", c->id);
    return c->by_peer_handle[h];
}

static void on_attach(Connection *c, const Performative *p, const uint8_t *end) {
    const uint8_t *name = p->field[0];
    uint64_t handle = number(p->field[1], UINT64_MAX);
    Link *l = c->links, *last = l + c->link_count;
    while (l < last && (name[1] != strlen(l->name) || memcmp(name + 2, l->name, name[1]))) l++;
    if (l == last || handle >= (uint64_t)c->link_count)
        die(EXIT_PROTOCOL, "connection %d: an attach that answers none of ours, or with a strange handle", c->id);
    c->by_peer_handle[handle] = l;
    l->phase = ATTACHED;
    if (--c->attaching == 0 && c->phase == OPENING) c->phase = READY;
    if (c->sends) return;
    l->delivery_count = number(p->field[9], 0);
    if (opt.next && p->field[5]) take_session(l, session_of_source(p->field[5], end)); // else refused: detach follows
}

static void on_transfer(Connection *c, const Performative *p) {
    Link *l = link_by_peer_handle(c, p->field[0]);
    bool more = number(p->field[5], 0), settled = number(p->field[4], 0);
    uint32_t id = p->field[1] ? number(p->field[1], 0) : l->partial_id;
    if (c->delivery_count == 0) c->first_in = id;
    c->next_in++, l->partial_id = id;
    if (more) return;
    if (l->credit <= 0) die(EXIT_PROTOCOL, "connection %d: more deliveries than credit", c->id);
    begin_delivery(l, opt.handlers ? l->asked_s[l->started % opt.handlers] : clock_s);
    if (opt.next) l->received++, sessions[l->session].inside--;
    if (settled) {
        settle(c, id, id);
    } else if (opt.individual) {
        write_accepted(c, id, id);
    } else {
        if (c->ack_count && c->ack_first + c->ack_count != id) flush_accepted(c);
        if (c->ack_count++ == 0) c->ack_first = id;
    }
    if (!settled && !opt.await_answer) settle(c, id, id);
    bool more_wanted = !opt.next && !opt.handlers && l->started < l->total && l->credit <= opt.window / 2;
    if (c->ack_count >= 100 || more_wanted) flush_accepted(c);
    if (more_wanted) write_credit(l);
}

static void on_disposition(Connection *c, const Performative *p, const uint8_t *end) {
    // A sender hears from receivers and the other way round; the rest is about no delivery of this link.
    if (number(p->field[0], 0) != (c->sends ? ROLE_RECEIVER : ROLE_SENDER)) return;
    uint32_t first = number(p->field[1], 0), last = number(p->field[2], first);
    uint8_t outcome = outcome_code(p->field[4]);
    if (outcome == REJECTED && opt.forgiving)
        refused += last - first + 1;
    else if (outcome != ACCEPTED)
        die(EXIT_OUTCOME, "connection %d: deliveries %u to %u came to outcome 0x%02x, not accepted: %s", c->id, first, last,
            outcome, p->field[4] ? readable(p->field[4], end) : "none");
    if (!number(p->field[3], 0))
        die(EXIT_OUTCOME, "connection %d: deliveries %u to %u are not settled by the broker's answer", c->id, first, last);
    settle(c, first, last);
}

static void on_flow(Connection *c, const Performative *p) {
    c->peer_window = number(p->field[0], 0) + number(p->field[1], 0) - c->next_out;
    if (!p->field[4]) return;
    Link *l = link_by_peer_handle(c, p->field[4]);
    if (c->sends) { // 2.6.7: credit is relative to the receiver's view of delivery-count
        l->credit = (int32_t)(number(p->field[5], 0) + number(p->field[6], 0) - l->delivery_count);
    } else if (opt.next && number(p->field[8], 0)) { // the answer to our drain comes after the last delivery
        l->credit = 0, l->delivery_count = number(p->field[5], 0), l->drained = true;
        leave_if_done(l);
    }
}

// Take the answer to our own close or detach; false: it is none.
static bool on_answered_end(Connection *c, const Performative *p) {
    if (p->code == CLOSE && c->phase == CLOSING && !p->field[0]) {
        c->phase = CLOSED;
        return true;
    }
    if (p->code != DETACH || p->field[2]) return false;
    Link *l = link_by_peer_handle(c, p->field[0]);
    if (l->phase != DETACHING) return false;
    c->by_peer_handle[number(p->field[0], 0)] = NULL;
    l->phase = DETACHED;
    on_session_left(l);
    return true;
}

static void on_sasl_frame(Connection *c, const Performative *p) {
    if (p->code == SASL_MECHANISMS) {
        write_sasl_init(c);
    } else if (p->code == SASL_OUTCOME) {
        if (number(p->field[0], 255) != 0) die(EXIT_PEER_CLOSED, "connection %d: SASL refused", c->id);
        c->phase = OPENING;
        write_open(c);
    }
}

static void on_frame(Connection *c, const uint8_t *frame, const uint8_t *end) {
    const uint8_t *body = frame + frame[4] * 4;
    if (body >= end) return; // empty: a sign of life
    Performative p = decode_performative(body, end);
    if (frame[5] == SASL_FRAME) {
        on_sasl_frame(c, &p);
        return;
    }
    switch (p.code) {
    case OPEN:
        if (message.end + 64 > number(p.field[2], UINT32_MAX))
            die(EXIT_USAGE, "the message does not fit into one frame of the broker");
        break;
    case BEGIN:
        c->next_in = number(p.field[1], 0);
        c->peer_window = number(p.field[2], 0);
        if ((uint64_t)c->link_count - 1 > number(p.field[4], UINT32_MAX))
            die(EXIT_USAGE, "%d links are more than the broker lets a session have", c->link_count);
        if (!c->attaching) c->phase = READY;
        break;
    case ATTACH: on_attach(c, &p, end); break;
    case FLOW: on_flow(c, &p); break;
    case TRANSFER: on_transfer(c, &p); break;
    case DISPOSITION: on_disposition(c, &p, end); break;
    case CLOSE: case DETACH: case END:
        if (on_answered_end(c, &p)) break;
        die(EXIT_PEER_CLOSED, "connection %d: the broker ended it: %s", c->id, readable(body, end));
    }
}

static void on_bytes(Connection *c) {
    for (;;) {
        const uint8_t *p = c->in.data + c->in.start;
        if (live(&c->in) < 8) break;
        bool header = c->phase == SASL_HEADER || (c->phase == OPENING && !c->header_seen);
        if (header) {
            if (memcmp(p, "AMQP", 4)) die(EXIT_PROTOCOL, "connection %d: the answer is not AMQP", c->id);
            if (c->phase == SASL_HEADER) c->phase = SASL; else c->header_seen = true;
            consume(&c->in, 8);
            continue;
        }
        size_t size = load32(p);
        if (size < 8 || p[4] < 2) die(EXIT_PROTOCOL, "connection %d: a frame of %zu bytes", c->id, size);
        if (live(&c->in) < size) break;
        on_frame(c, p, p + size);
        consume(&c->in, size);
    }
    flush_accepted(c);
}

// Here begins: the loop.

static Connection *connect_one(int id, bool sends, int link_count, long deliveries_max) {
    Connection *c = must_alloc(1, sizeof *c);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
    int one = 1, error = getaddrinfo(opt.host, opt.port, &hints, &found);
    if (error) die(EXIT_USAGE, "%s: %s", opt.host, gai_strerror(error));
    *c = (Connection){.id = id, .sends = sends, .last_write_s = clock_s};
    c->link_count = link_count, c->deliveries_max = deliveries_max;
    c->links = must_alloc(link_count, sizeof *c->links);
    c->by_peer_handle = must_alloc(link_count, sizeof *c->by_peer_handle);
    c->deliveries = must_alloc(deliveries_max, sizeof *c->deliveries);
    for (int i = 0; i < link_count; i++)
        c->links[i] = (Link){.on = c, .handle = i, .session = -1, .asked_s = must_alloc(opt.handlers, sizeof(double))};
    int fd = c->wire.fd = socket(found->ai_family, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, found->ai_addr, found->ai_addrlen))
        die(EXIT_PEER_CLOSED, "%s:%s: %s", opt.host, opt.port, strerror(errno));
    freeaddrinfo(found);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    const char *failed = opt.encrypted ? wire_encrypt(&c->wire) : NULL;
    if (!failed && opt.websocket) failed = wire_upgrade(&c->wire);
    if (failed) die(EXIT_PEER_CLOSED, "connection %d: %s", id, failed);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    put(&c->out, "AMQP\3\1\0\0", 8);
    return c;
}

static void read_some(Connection *c) {
    static uint8_t chunk[1 << 18];
    Wire *w = &c->wire;
    ssize_t n;
    do {
        n = wire_read(w, chunk, sizeof chunk);
        if (n > 0) put(w->websocket ? &w->framed_in : &c->in, chunk, n);
    } while (n > 0 && opt.encrypted); // what TLS keeps decrypted does not wake poll
    int error = errno;
    if (w->websocket) unframe_input(w, &c->in);
    on_bytes(c);
    if (n == 0 && c->phase == CLOSING) {
        c->phase = CLOSED;
    } else if (n == 0 && c->phase != CLOSED) {
        die(EXIT_PEER_CLOSED, "connection %d: end of stream", c->id);
    } else if (n < 0 && error != EAGAIN) {
        die(EXIT_PEER_CLOSED, "connection %d: %s", c->id, strerror(error));
    }
}

static size_t unsent(const Connection *c) { return live(&c->out) + live(&c->wire.framed_out); }

static void write_some(Connection *c) {
    Wire *w = &c->wire;
    Buffer *b = w->websocket ? &w->framed_out : &c->out;
    if (w->websocket && !live(b)) frame_output(w, &c->out);
    if (!live(b)) return;
    ssize_t n = wire_write(w, b->data + b->start, live(b));
    if (n > 0) {
        consume(b, n);
        c->last_write_s = clock_s;
    } else if (n < 0 && errno != EAGAIN) {
        die(EXIT_PEER_CLOSED, "connection %d: %s", c->id, strerror(errno));
    }
}

// One turn over all connections: wait for bytes, for `wait_s` at most, then read, send and write.
static void turn(Connection **all, int n, double wait_s, int extra_fd, bool *extra_ready) {
    static struct pollfd *fds;
    static int capacity;
    if (n + 1 > capacity) {
        capacity = n + 1;
        fds = realloc(fds, capacity * sizeof *fds);
        if (!fds) die(EXIT_PROTOCOL, "out of memory");
    }
    for (int i = 0; i < n; i++) {
        bool open = all[i]->phase != CLOSED;
        pump(all[i]); // before the wait, since output is made in portions
        fds[i] = (struct pollfd){open ? all[i]->wire.fd : -1, POLLIN | (unsent(all[i]) ? POLLOUT : 0), 0};
    }
    fds[n] = (struct pollfd){extra_fd, POLLIN, 0};
    struct timespec wait = {(time_t)wait_s, (long)((wait_s - (time_t)wait_s) * 1e9)};
    if (ppoll(fds, n + 1, &wait, NULL) < 0 && errno != EINTR) die(EXIT_PROTOCOL, "poll: %s", strerror(errno));
    clock_s = now_s();
    if (extra_ready) *extra_ready = fds[n].revents != 0;
    for (int i = 0; i < n; i++) {
        if (fds[i].revents & (POLLIN | POLLHUP | POLLERR)) read_some(all[i]);
        pump(all[i]); // and after it, so that an answer's place in the window is used in the same turn
        if (all[i]->phase == READY && clock_s - all[i]->last_write_s > 20)
            put(&all[i]->out, (uint8_t[]){0, 0, 0, 8, 2, 0, 0, 0}, 8);
        if (all[i]->phase != CLOSED) write_some(all[i]);
    }
}

// Take leave properly: bytes still unread at close() would reset the connection and lose our last dispositions.
static void close_all(Connection **all, int n) {
    double deadline = now_s() + 5;
    for (int i = 0; i < n; i++) {
        put(&all[i]->out, (uint8_t[]){0, 0, 0, 12, 2, 0, 0, 0, 0x00, 0x53, CLOSE, 0x45}, 12);
        all[i]->phase = CLOSING;
    }
    for (int open = n; open && clock_s < deadline;) {
        turn(all, n, 0.1, -1, NULL);
        open = 0;
        for (int i = 0; i < n; i++) open += all[i]->phase != CLOSED;
    }
}

static void wait_until_ready(Connection **all, int n) {
    double deadline = now_s() + opt.stall_s;
    for (int ready = 0; ready < n;) {
        turn(all, n, 0.1, -1, NULL);
        ready = 0;
        for (int i = 0; i < n; i++) ready += all[i]->phase >= READY;
        if (ready < n && clock_s > deadline) die(EXIT_STALLED, "%d of %d connections ready", ready, n);
    }
}

// Give up where nothing has moved for too long.
static void watch_progress(void) {
    static long before = -1;
    static double since_s;
    if (sent + received != before) before = sent + received, since_s = clock_s;
    if (clock_s - since_s > opt.stall_s)
        die(EXIT_STALLED, "no progress: %ld sends accepted, %ld received and settled", sent, received);
}

// Here begins: the report.

// CPU time of all threads of a process; /proc has it in steps of 10 ms, too coarse for short runs.
static double process_cpu_s(int pid) {
    clockid_t clock;
    struct timespec t;
    if (!pid || clock_getcpuclockid(pid, &clock) || clock_gettime(clock, &t)) return 0;
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double own_cpu_s(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return u.ru_utime.tv_sec + u.ru_stime.tv_sec + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

static int by_value(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

// The smallest of sorted values that at least `share` of all do not exceed.
static double percentile(const float *values, long count, double share) {
    long n = (long)(share * count + 0.999999) - 1;
    return values[n < 0 ? 0 : n];
}

typedef struct {
    double seconds, send_s, recv_s, client_cpu_s, broker_cpu_s;
} Measured;

static void report(Measured m) {
    double send_rate = m.send_s ? opt.count / m.send_s : 0, recv_rate = m.recv_s ? opt.count / m.recv_s : 0;
    double p[] = {0, 0, 0, 0, 0};
    if (latency_count) {
        qsort(latencies_us, latency_count, sizeof *latencies_us, by_value);
        double shares[] = {0.5, 0.9, 0.99, 0.999, 1};
        for (int i = 0; i < 5; i++) p[i] = percentile(latencies_us, latency_count, shares[i]);
    }
    double client_us = m.client_cpu_s * 1e6 / opt.count, broker_us = m.broker_cpu_s * 1e6 / opt.count;
    if (opt.json)
        printf("{\"mode\": \"%s\", \"count\": %ld, \"size\": %d, \"seconds\": %.4f, \"send_rate\": %.1f, "
               "\"recv_rate\": %.1f, \"client_us_per_message\": %.3f, \"broker_us_per_message\": %.3f, "
               "\"broker_cpu_cores\": %.3f, \"latency_us\": {\"p50\": %.1f, \"p90\": %.1f, \"p99\": %.1f, "
               "\"p99.9\": %.1f, \"max\": %.1f}, \"refused\": %ld}\n",
               opt.mode, opt.count, opt.size, m.seconds, send_rate, recv_rate, client_us, broker_us,
               m.broker_cpu_s / m.seconds, p[0], p[1], p[2], p[3], p[4], refused);
    else
        printf("%s: %ld messages of %d bytes in %.2f s, sent %.0f/s, received %.0f/s, CPU a message: client %.2f us, "
               "broker %.2f us (%.2f cores); latency us: p50 %.0f, p90 %.0f, p99 %.0f, p99.9 %.0f, max %.0f\n",
               opt.mode, opt.count, opt.size, m.seconds, send_rate, recv_rate, client_us, broker_us,
               m.broker_cpu_s / m.seconds, p[0], p[1], p[2], p[3], p[4]);
}

static void report_hand_out(Measured m) {
    double steady_s = steady_end_s > started_s ? steady_end_s - started_s : 0;
    double steady_rate = steady_s ? steady_handed_out / steady_s : 0;
    double drain_rate = (handed_out - steady_handed_out) / (m.seconds - steady_s);
    long fewest = sessions[0].handed_out, most = 0;
    for (long i = 0; i < opt.sessions; i++) {
        if (sessions[i].handed_out < fewest) fewest = sessions[i].handed_out;
        if (sessions[i].handed_out > most) most = sessions[i].handed_out;
    }
    qsort(waits_us, handed_out, sizeof *waits_us, by_value);
    double median = percentile(waits_us, handed_out, 0.5) / 1e6, longest = percentile(waits_us, handed_out, 1) / 1e6;
    double client_us = m.client_cpu_s * 1e6 / handed_out, broker_us = m.broker_cpu_s * 1e6 / handed_out;
    if (opt.json)
        printf("{\"mode\": \"next\", \"count\": %ld, \"sessions\": %ld, \"seconds\": %.4f, \"handed_out\": %ld, "
               "\"recv_rate\": %.1f, \"steady_rate\": %.1f, \"drain_rate\": %.1f, \"wait_s\": {\"p50\": %.4f, "
               "\"max\": %.4f}, \"times_handed_out\": {\"min\": %ld, \"max\": %ld}, \"client_us_per_session\": %.3f, "
               "\"broker_us_per_session\": %.3f}\n",
               opt.count, opt.sessions, m.seconds, handed_out, opt.count / m.seconds, steady_rate, drain_rate, median,
               longest, fewest, most, client_us, broker_us);
    else
        printf("next: %ld sessions handed out %ld times with %ld messages in %.2f s: %.0f/s while they are filled again, "
               "%.0f/s while they are drained; a session waits %.3f s (median), %.3f s at most, and is handed out %ld to "
               "%ld times; CPU a hand-out: client %.1f us, broker %.1f us\n",
               opt.sessions, handed_out, opt.count, m.seconds, steady_rate, drain_rate, median, longest, fewest, most,
               client_us, broker_us);
}

// Here begins: the modes.

// Part i of n, so that together they are the whole.
static long part(long whole, long i, long n) { return whole / n + (i < whole % n); }

static int hold_idle(void) {
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    Connection **all = must_alloc(opt.idle, sizeof *all);
    clock_s = now_s();
    for (int n = 0; n < opt.idle;) { // in steps below the usual listen backlog of 100
        for (int step = 0; step < 50 && n < opt.idle; step++, n++) all[n] = connect_one(n, false, 1, 0);
        wait_until_ready(all, n);
    }
    printf("holding %d connections\n", opt.idle);
    fflush(stdout);
    for (bool done = false; !done;) {
        bool ready;
        char bytes[64];
        turn(all, opt.idle, 5, STDIN_FILENO, &ready);
        done = ready && read(STDIN_FILENO, bytes, sizeof bytes) <= 0;
    }
    close_all(all, opt.idle);
    return 0;
}

static Connection **connect_all(void) {
    Connection **all = must_alloc(opt.senders + opt.receivers, sizeof *all), **next = all;
    clock_s = now_s();
    for (int i = 0; i < opt.senders; i++) {
        long total = part(opt.count, i, opt.senders);
        *next = connect_one(i, true, 1, total);
        (*next++)->links[0].total = total;
    }
    long link = 0;
    for (int i = 0; i < opt.receivers; i++) {
        int link_count = part(opt.links, i, opt.receivers);
        long total = 0;
        for (int j = 0; j < link_count; j++) total += part(opt.count, link + j, opt.links);
        *next = connect_one(opt.senders + i, false, link_count, opt.next ? opt.count : total);
        for (int j = 0; j < link_count; j++, link++) {
            (*next)->links[j].total = part(opt.count, link, opt.links);
            if (opt.named) (*next)->links[j].session = link;
        }
        next++;
    }
    wait_until_ready(all, opt.senders + opt.receivers);
    prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0); // ns: the usual 50 us would count as latency
    return all;
}

// How long to wait for bytes before the next message is due, where a rate is offered.
static double until_due_s(Connection **all) {
    double wait_s = opt.stall_s < 1 ? opt.stall_s : 1;
    for (int i = 0; opt.rate > 0 && i < opt.senders; i++) {
        const Link *l = &all[i]->links[0];
        if (l->started == l->total) continue;
        double due_in = intended_s(all[i], l->started) - now_s();
        wait_s = due_in < 0 ? 0 : due_in < wait_s ? due_in : wait_s;
        // Late because the broker holds us back: only its bytes help.
        if (due_in < 0 && (l->credit <= 0 || l->outstanding >= opt.window)) wait_s = 0.01;
    }
    return wait_s;
}

// Offer no more; but each sender offers one message, so that there is something to report.
static void stop_offering(Connection **all) {
    opt.count = 0;
    for (int i = 0; i < opt.senders; i++) {
        Link *l = &all[i]->links[0];
        opt.count += l->total = l->started ? l->started : 1;
    }
}

static void start_receiving(Link *l) {
    if (!opt.handlers) write_credit(l);
    for (int i = 0; i < opt.handlers; i++) ask_for_one(l);
}

static int drive(void) {
    int n = opt.senders + opt.receivers;
    Measured m = {0};
    build_message();
    latencies_us = must_alloc(opt.count, sizeof *latencies_us);
    Connection **all = connect_all();
    double broker_cpu_s = process_cpu_s(opt.broker_pid), client_cpu_s = own_cpu_s();
    if (opt.until_eof) puts("offering"), fflush(stdout);
    started_s = clock_s = now_s();
    for (int i = opt.senders; i < n; i++)
        for (int j = 0; j < all[i]->link_count; j++) start_receiving(&all[i]->links[j]);
    int extra_fd = opt.until_eof ? STDIN_FILENO : -1;
    for (;;) {
        if (opt.senders && !m.send_s && sent == opt.count) m.send_s = clock_s - started_s;
        if (opt.receivers && !m.recv_s && received == opt.count) m.recv_s = clock_s - started_s;
        if ((!opt.senders || m.send_s) && (!opt.receivers || m.recv_s)) break;
        watch_progress();
        bool extra_ready;
        char bytes[64];
        turn(all, n, until_due_s(all), extra_fd, &extra_ready);
        if (extra_ready && read(extra_fd, bytes, sizeof bytes) <= 0) stop_offering(all), extra_fd = -1;
    }
    m.seconds = clock_s - started_s;
    m.broker_cpu_s = process_cpu_s(opt.broker_pid) - broker_cpu_s;
    m.client_cpu_s = own_cpu_s() - client_cpu_s;
    close_all(all, n);
    report(m);
    return 0;
}

static int hand_out(void) {
    int n = opt.senders + opt.receivers;
    Measured m = {0};
    build_message();
    latencies_us = must_alloc(opt.count, sizeof *latencies_us);
    plan = must_alloc(opt.count, sizeof *plan);
    waits_us = must_alloc(opt.count, sizeof *waits_us);
    sessions = must_alloc(opt.sessions, sizeof *sessions);
    for (long i = 0; i < opt.sessions; i++) sessions[i].available_s = -1;
    for (long i = 0; i < opt.sessions; i++) fill(i);
    Connection **all = connect_all();
    started_s = clock_s = now_s();
    while (sent < planned) turn(all, n, 1, -1, NULL), watch_progress();

    double broker_cpu_s = process_cpu_s(opt.broker_pid), client_cpu_s = own_cpu_s();
    started_s = clock_s = now_s();
    for (long i = 0; i < opt.sessions; i++) sessions[i].available_s = started_s;
    for (int i = opt.senders; i < n; i++)
        for (int j = 0; j < all[i]->link_count; j++) write_attach(&all[i]->links[j]);
    while (received < opt.count) turn(all, n, 1, -1, NULL), watch_progress();
    m.seconds = clock_s - started_s;
    m.broker_cpu_s = process_cpu_s(opt.broker_pid) - broker_cpu_s;
    m.client_cpu_s = own_cpu_s() - client_cpu_s;
    close_all(all, n);
    report_hand_out(m);
    return 0;
}

static bool choose_mode(void) {
    if (!opt.recv_address) opt.recv_address = opt.send_address;
    opt.next = !strcmp(opt.mode, "next");
    if (opt.sessions || opt.tenants) opt.rich = true;
    if (!strcmp(opt.mode, "send")) opt.receivers = 0;
    else if (!strcmp(opt.mode, "recv")) opt.senders = 0;
    else if (opt.next) opt.senders = 1;
    else if (strcmp(opt.mode, "both")) return false;
    if (opt.named) opt.links = opt.sessions;
    if (opt.links < opt.receivers) opt.links = opt.receivers;
    if (opt.next && (opt.sessions < 1 || opt.fill < 1 || opt.count % opt.fill || opt.count < opt.sessions * opt.fill))
        return false;
    if (opt.next && (opt.receivers < 1 || opt.settled || opt.rate > 0)) return false;
    if (opt.handlers && (opt.handlers < 0 || !opt.receivers || opt.next || opt.settled)) return false;
    if (opt.handlers) opt.individual = true;
    return opt.count > 0 && opt.size > 0 && opt.window > 0 && opt.senders >= 0 && opt.receivers >= 0 &&
           opt.sessions >= 0 && opt.tenants >= 0 && (!opt.named || opt.sessions >= opt.receivers) &&
           !((opt.until_eof || opt.forgiving) && opt.receivers);
}

int main(int argc, char **argv) {
    for (int o; (o = getopt(argc, argv, "m:I:h:p:EWu:P:a:A:n:s:rg:Gt:k:S:R:l:H:w:o:efxi21B:T:j")) != -1;) {
        switch (o) {
        case 'm': opt.mode = optarg; break;
        case 'I': opt.idle = atoi(optarg); break;
        case 'h': opt.host = optarg; break;
        case 'p': opt.port = optarg; break;
        case 'E': opt.encrypted = true; break;
        case 'W': opt.websocket = true; break;
        case 'u': opt.user = optarg; break;
        case 'P': opt.password = optarg; break;
        case 'a': opt.send_address = optarg; break;
        case 'A': opt.recv_address = optarg; break;
        case 'n': opt.count = atol(optarg); break;
        case 's': opt.size = atoi(optarg); break;
        case 'r': opt.rich = true; break;
        case 'g': opt.sessions = atol(optarg); break;
        case 'G': opt.named = true; break;
        case 't': opt.tenants = atol(optarg); break;
        case 'k': opt.fill = atol(optarg); break;
        case 'S': opt.senders = atoi(optarg); break;
        case 'R': opt.receivers = atoi(optarg); break;
        case 'l': opt.links = atoi(optarg); break;
        case 'H': opt.handlers = atoi(optarg); break;
        case 'w': opt.window = atoi(optarg); break;
        case 'o': opt.rate = atof(optarg); break;
        case 'e': opt.until_eof = true; break;
        case 'f': opt.forgiving = true; break;
        case 'x': opt.settled = true; break;
        case 'i': opt.individual = true; break;
        case '2': opt.second = opt.await_answer = true; break;
        case '1': opt.await_answer = true; break;
        case 'B': opt.broker_pid = atoi(optarg); break;
        case 'T': opt.stall_s = atof(optarg); break;
        case 'j': opt.json = true; break;
        default: fputs(USAGE, stderr); return EXIT_USAGE;
        }
    }
    if (optind < argc || !choose_mode()) {
        fputs(USAGE, stderr);
        return EXIT_USAGE;
    }
    if (opt.idle > 0) return hold_idle();
    return opt.next ? hand_out() : drive();
}
